package transport_test

import (
	"testing"

	"github.com/softroce/softroce/internal/simnet"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/wq"
)

// In the world each side opens a part of its memory to the other in two more
// ways: by a memory window of type 2, and by a region that it registers fast.
// It opens them by requests of its own queue pair; they are closed by another
// one, or by the peer's SEND with Invalidate. Then they are opened anew under
// another key, while the network still delivers packets with the old one.

const (
	fastPage = 4096
	fastBase = 0x40000000 // iova of the fast region
)

// fastOrder is the order of the pages in the fast region.
var fastOrder = [slots]int{2, 0, 3, 1}

// An exportState is what the model knows of an export.
type exportState uint8

const (
	exportClosed exportState = iota
	exportOpening
	exportOpen
	exportClosing
)

// export is one way into a side's memory.
type export struct {
	win   *mrtable.Window // or
	fast  *mrtable.Region
	state exportState
	key   mrtable.RKey
	users int // requests of the peer that go by it and are not known to be done
}

// makeExports gives a side its ways in.
func (s *side) makeExports(t testing.TB) {
	w, err := s.keys.AllocWindow(1, mrtable.WindowType2, 0)
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.keys.AllocRegion(1, slots, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.exports = [2]*export{{win: w, key: w.RKey()}, {fast: f, key: f.RKey()}}
}

// openExport is one of a side's exports that is open, nil when there is none.
func (s *side) openExport(r *simnet.Rand) *export {
	e := s.exports[r.IntN(len(s.exports))]
	if e.state != exportOpen {
		return nil
	}
	return e
}

// planLocal makes a request to open or close an export, or a SEND where neither
// can be.
func (s *side) planLocal(o *op, wr *wq.SendWR) {
	e := s.exports[s.rand.IntN(len(s.exports))]
	o.n, o.via = 0, e
	switch {
	case e.state == exportClosed:
		e.key = e.key&^0xFF | (e.key+1)&0xFF
		wr.Bind.RKey = e.key
		e.state = exportOpening
		if e.win != nil {
			o.code = wq.BindMW
			wr.Bind = wq.Bind{
				RKey: e.key, MR: s.mr.LKey(), Addr: memBase + readOff, Length: landOff - readOff,
				Access: mrtable.AccessRemoteWrite | mrtable.AccessRemoteRead,
			}
			break
		}
		o.code = wq.RegMR
		wr.Bind.Addr, wr.Bind.Access = fastBase, mrtable.AccessLocalWrite|mrtable.AccessRemoteWrite
		for _, p := range fastOrder {
			wr.SGList = append(wr.SGList, s.sge(fastOff+p*fastPage, fastPage))
		}
	case e.state == exportOpen && e.users == 0:
		o.code, wr.InvalidateRKey, e.state = wq.LocalInv, e.key, exportClosing
	default:
		o.code, o.via = wq.Send, nil
	}
	wr.Opcode = o.code
}

// planInvalidate makes the request close an export of the peer, or a SEND when
// none is open. It is fenced: a READ's answer may need the key.
func (w *world) planInvalidate(s *side, o *op, wr *wq.SendWR) {
	e := w.peer(s).openExport(s.rand)
	if e == nil {
		o.code, wr.Opcode = wq.Send, wq.Send
		return
	}
	o.via, o.inv, e.state = e, e.key, exportClosing
	wr.InvalidateRKey = e.key
	wr.Flags |= wq.SendFence
}

// planVia makes some WRITEs and READs go by an export of the peer.
func (w *world) planVia(s *side, o *op, wr *wq.SendWR) {
	e := w.peer(s).openExport(s.rand)
	if e == nil || e.fast != nil && o.code == wq.RDMARead {
		return
	}
	o.via, wr.RKey = e, e.key
	e.users++
	if e.fast != nil {
		o.n = min(o.n, fastPage)
		o.at = fastOff + fastOrder[o.slot]*fastPage
		wr.RemoteAddr = fastBase + uint64(o.slot)*fastPage
	}
}

// localDone: what was opened opens something, and what was closed nothing.
func (w *world) localDone(s *side, o *op) {
	e := o.via
	switch {
	case e == nil:
	case o.code == wq.BindMW || o.code == wq.RegMR:
		e.state = exportOpen
		w.checkExport(s, e, true)
		w.opened++
	case o.code == wq.LocalInv:
		e.state = exportClosed
		w.checkExport(s, e, false)
	case o.code != wq.SendWithInv:
		e.users--
	}
}

// invalidated: a message with Invalidate closed an export of the side.
func (w *world) invalidated(s *side, o *op, wc *cq.WC) {
	if has := o.inv != 0; has != (wc.Flags&cq.WithInv != 0) || has && wc.InvalidatedRKey != uint32(o.inv) {
		w.fail("side %d: message %d: invalidated key %#x, want %#x", s.index, o.id, wc.InvalidatedRKey, o.inv)
	}
	if o.inv == 0 {
		return
	}
	o.via.state = exportClosed
	w.checkExport(s, o.via, false)
	w.closed++
}

func (w *world) checkExport(s *side, e *export, open bool) {
	va := uint64(memBase + readOff)
	if e.fast != nil {
		va = fastBase
	}
	_, err := s.keys.Remote(e.key, 1, uint32(s.qpn), va, 1, mrtable.AccessRemoteWrite)
	if (err == nil) != open {
		w.fail("side %d: key %#x: %v, want open %v", s.index, e.key, err, open)
	}
}

// checkExportsEnd: no binding was forgotten or counted twice.
func (w *world) checkExportsEnd(s *side) {
	for _, e := range s.exports {
		var err error
		if e.win != nil {
			err = s.keys.MarkWindow(e.win)
		} else {
			err = s.keys.Mark(e.fast)
		}
		if err != nil {
			w.fail("side %d: end of an export: %v", s.index, err)
		}
	}
	if err := s.keys.Mark(s.mr); err != nil {
		w.fail("side %d: end of the region: %v", s.index, err)
	}
}

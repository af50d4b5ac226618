package adapter_test

import (
	"bytes"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/verbs"
)

const (
	wrapAddr = 0xFFFFFFFFFFFFFC00
	wrapLen  = 0x400 // address plus length is 2^64
)

// Field case F5 through the verbs: requests whose range wraps to 0 end as
// REM_ACCESS_ERR and touch nothing.
func TestF5WrappedRangeThroughVerbs(t *testing.T) {
	x, y := start(t, nil), start(t, nil)
	for _, c := range []struct {
		name string
		wr   verbs.SendWR
		addr uint64
		n    int
	}{
		{"READ to the end", verbs.SendWR{Opcode: verbs.WRRDMARead}, wrapAddr, wrapLen},
		{"READ over the end", verbs.SendWR{Opcode: verbs.WRRDMARead}, wrapAddr, wrapLen + 8},
		{"WRITE to the end", verbs.SendWR{Opcode: verbs.WRRDMAWrite}, wrapAddr, wrapLen},
		{"WRITE over the end", verbs.SendWR{Opcode: verbs.WRRDMAWrite}, wrapAddr, wrapLen + 1},
		{"WRITE with immediate", verbs.SendWR{Opcode: verbs.WRRDMAWriteWithImm}, wrapAddr, wrapLen},
		{"FETCH_ADD at the end", verbs.SendWR{Opcode: verbs.WRAtomicFetchAdd, CompareAdd: 1}, 1<<64 - 8, 8},
		{"CMP_SWAP at the end", verbs.SendWR{Opcode: verbs.WRAtomicCmpAndSwp}, 1<<64 - 8, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := x.open(t, shape{}), y.open(t, shape{})
			connect(a, b, verbs.RCConfig{})
			fill(b.mr.Bytes(), 1)
			want := bytes.Clone(b.mr.Bytes())
			b.recv(9, 0, 64)
			wr := c.wr
			wr.SGList, wr.RemoteAddr, wr.RKey = []verbs.SGE{a.mr.SGE(0, c.n)}, c.addr, b.mr.RKey()
			wr.WRID, wr.Flags = 7, verbs.SendSignaled
			a.post(wr)
			a.status(7, verbs.WCRemAccessErr)
			if c.wr.Opcode == verbs.WRRDMAWriteWithImm {
				// It is the receive's operation that failed, by ibv_poll_cq(3).
				b.status(9, verbs.WCLocAccessErr)
			} else {
				b.status(9, verbs.WCWRFlushErr)
			}
			if !bytes.Equal(b.mr.Bytes(), want) {
				t.Error("the region was written")
			}
		})
	}
}

// Field case F5 on the wire: the identical packet comes again, first as a
// request, then in the place of a duplicate. The NAK is 0x62; the duplicate
// executes nothing.
func TestF5WrappedRangeReplayed(t *testing.T) {
	h := start(t, nil)
	t.Run("the refused packet again", func(t *testing.T) {
		p, raw := rawPair(t, h, shape{}, verbs.RCConfig{})
		want := bytes.Clone(p.mr.Bytes())
		for _, b := range [][]byte{
			raw.read(100, wrapAddr, p.mr.RKey(), wrapLen),
			raw.read(100, wrapAddr, p.mr.RKey(), wrapLen),
			raw.write(100, wrapAddr, p.mr.RKey(), make([]byte, wrapLen)),
		} {
			raw.send(b)
		}
		raw.acked(100, nakRemoteAccess)
		eventually(t, "the other two are seen", func() bool {
			return h.workers().Transport.Verdicts[transport.DropState] == 2
		})
		if q, err := p.qp.Query(); err != nil || q.State != verbs.StateErr {
			t.Errorf("state %v, %v; want ERR", q.State, err)
		}
		if !bytes.Equal(p.mr.Bytes(), want) {
			t.Error("the region was written")
		}
	})
	t.Run("as a duplicate", func(t *testing.T) {
		p, raw := rawPair(t, h, shape{}, verbs.RCConfig{})
		fill(p.mr.Bytes(), 3)
		want := bytes.Clone(p.mr.Bytes())
		raw.order()
		// PSN 100 is a READ, 101 an atomic; then come duplicates of both with
		// other addresses.
		raw.send(raw.read(100, p.mr.Addr(), p.mr.RKey(), 4))
		if got := raw.recv(); got.Opcode != bth.RCReadResponseOnly || !bytes.Equal(got.Payload, want[:4]) {
			t.Fatalf("the READ is answered with %v, % x", got.Opcode, got.Payload)
		}
		atomic := func(va uint64) []byte {
			return raw.packet(bth.Headers{
				BTH:       bth.BTHFields{Opcode: bth.RCFetchAdd, PSN: 101, AckReq: true},
				AtomicETH: bth.AtomicETHFields{VA: va, RKey: uint32(p.mr.RKey()), Swap: 0},
			}, nil, -1)
		}
		raw.send(atomic(p.mr.Addr() + 8))
		if got := raw.recv(); got.Opcode != bth.RCAtomicAcknowledge {
			t.Fatalf("the atomic is answered with %v", got.Opcode)
		}
		in := h.workers().Stats.PacketsIn
		raw.send(raw.read(100, wrapAddr, p.mr.RKey(), wrapLen))
		raw.send(raw.write(100, wrapAddr, p.mr.RKey(), make([]byte, wrapLen)))
		raw.send(atomic(1<<64 - 8))
		eventually(t, "the duplicates are seen", func() bool { return h.workers().Stats.PacketsIn == in+3 })
		// The connection goes on. What the duplicates are answered with, if
		// anything, carries no byte.
		raw.send(raw.write(102, p.mr.Addr(), p.mr.RKey(), want[:4]))
		for {
			got := raw.recv()
			if len(got.Payload) != 0 {
				t.Fatalf("a duplicate is answered with %v and %d bytes", got.Opcode, len(got.Payload))
			}
			if got.BTH().PSN() == 102 {
				break
			}
		}
		if !bytes.Equal(p.mr.Bytes(), want) {
			t.Error("the region was written")
		}
	})
}

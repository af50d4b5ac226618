package transport_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/simnet"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/wq"
)

// FuzzNetwork lets bytes choose what happens to each packet of a working pair:
// drop, double, hold back, corrupt. Everything completes once, in order and with
// the right bytes, or the retries are used up; nothing stands still.
func FuzzNetwork(f *testing.F) {
	f.Add([]byte{}, uint16(0))
	f.Add([]byte{1, 0, 2, 0, 3, 0, 4, 0x1F, 0x2F}, uint16(1))
	f.Add(bytes.Repeat([]byte{0, 0, 0, 1}, 50), uint16(2))
	f.Add(bytes.Repeat([]byte{0x12, 0, 0x24}, 60), uint16(3))
	f.Add(bytes.Repeat([]byte{3}, 300), uint16(4))
	f.Fuzz(func(t *testing.T, fates []byte, seed uint16) {
		c := pairOf(uint64(seed), 0)
		c.ops = 12
		c.net.Choose = func(seq uint64, size int) (fate simnet.Fate) {
			if seq >= uint64(len(fates)) || seq > 4000 {
				return fate
			}
			return fateOf(fates[seq])
		}
		w := newWorld(t, c)
		if err := w.run(); err != nil && !bytes.Contains([]byte(err.Error()), []byte("_ERR")) {
			t.Error(err)
		}
	})
}

// FuzzLetters does the same to unreliable connections and datagrams: what comes
// is whole.
func FuzzLetters(f *testing.F) {
	f.Add([]byte{}, uint16(0), false)
	f.Add([]byte{1, 0, 2, 0, 3, 0, 4, 0x1F, 0x2F}, uint16(1), true)
	f.Add(bytes.Repeat([]byte{0, 0, 0, 1}, 50), uint16(2), false)
	f.Add(bytes.Repeat([]byte{0x12, 0, 0x24}, 60), uint16(3), true)
	f.Fuzz(func(t *testing.T, fates []byte, seed uint16, datagrams bool) {
		typ := qpstate.UC
		if datagrams {
			typ = qpstate.UD
		}
		p := newPostOffice(t, typ, uint64(seed), false, func(seq uint64, size int) (fate simnet.Fate) {
			if seq < uint64(len(fates)) {
				fate = fateOf(fates[seq])
			}
			return fate
		})
		if err := p.run(20); err != nil {
			t.Error(err)
		}
	})
}

// fateOf is what a byte has happen to a packet.
func fateOf(b byte) (fate simnet.Fate) {
	hold := time.Duration(b>>3) * 10 * time.Microsecond
	switch b & 7 {
	case 1:
		fate.Drop = true
	case 2:
		fate.Copies = 1 + int(b>>6)
	case 3:
		fate.Hold = hold
	case 4:
		fate.Corrupt = 1 + int(b>>6)
	case 5:
		fate.Copies, fate.Hold = 1, hold
	}
	return fate
}

// FuzzPackets gives a queue pair that has work of its own a series of packets made
// of arbitrary bytes. It must not panic, nor touch memory that no right covers.
// The bytes are commands: a length, then that many bytes of a packet whose P_Key,
// key and PSN are mostly brought into range, so that the depths are reached.
func FuzzPackets(f *testing.F) {
	seedPackets(f, "rc_*")
	f.Fuzz(func(t *testing.T, data []byte) { fuzzPackets(t, qpstate.RC, data) })
}

// FuzzUCPackets is the same for an unreliable connection.
func FuzzUCPackets(f *testing.F) {
	seedPackets(f, "uc_*")
	f.Fuzz(func(t *testing.T, data []byte) { fuzzPackets(t, qpstate.UC, data) })
}

// FuzzUDPackets is the same for datagrams.
func FuzzUDPackets(f *testing.F) {
	seedPackets(f, "ud_*")
	f.Fuzz(func(t *testing.T, data []byte) { fuzzPackets(t, qpstate.UD, data) })
}

// seedPackets adds the packets of captures.
func seedPackets(f *testing.F, pattern string) {
	names, err := filepath.Glob("../bth/testdata/captures/" + pattern + ".pcap")
	if err != nil || len(names) == 0 {
		f.Fatalf("no captures: %v", err)
	}
	for _, n := range names {
		raw, err := os.ReadFile(n)
		if err != nil {
			f.Fatal(err)
		}
		var seed []byte
		for at := 24; at+16+42 < len(raw) && len(seed) < 4000; {
			size := int(raw[at+8]) | int(raw[at+9])<<8
			end := at + 16 + size
			if end > len(raw) {
				break
			}
			pkt := raw[at+16+42 : end]
			seed = append(seed, byte(min(len(pkt), 255)), 0)
			seed = append(seed, pkt[:min(len(pkt), 255)]...)
			at = end
		}
		f.Add(seed)
	}
}

// fuzzOps are what the queue pair has to do itself.
var fuzzOps = map[qpstate.Type][]wq.Opcode{
	qpstate.RC: {wq.Send, wq.RDMAWrite, wq.RDMARead, wq.AtomicFetchAndAdd},
	qpstate.UC: {wq.Send, wq.RDMAWrite, wq.SendWithImm, wq.RDMAWriteWithImm},
	qpstate.UD: {wq.Send, wq.SendWithImm},
}

func fuzzPackets(t *testing.T, typ qpstate.Type, data []byte) {
	const size = 1 << 16
	o := options{typ: typ, mtu: bth.MTU256, memSize: size, timeout: 8, retry: 3}.withDefaults()
	a, b := newEnd(t, 0x11, 1, o), newEnd(t, 0x22, 2, o)
	a.to(qpstate.RTS, b, o)
	// A second region that only this side may use.
	secret := append([]byte(nil), a.mem...)
	r, err := a.keys.Register(1, a.mem, 0x900000, size, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.keys.Mark(a.mr); err != nil { // the remote rights cover the upper half only
		t.Fatal(err)
	}
	if a.mr, err = a.keys.Register(1, a.mem[size/2:], memBase, size/2, allAccess|mrtable.AccessMWBind, 0); err != nil {
		t.Fatal(err)
	}
	w := a.window(mrtable.WindowType2)
	bind := func(now time.Time) {
		wr := a.bindWR(w, 0, size/4, allAccess)
		_ = a.qp.PostSend(now, &wr) // a datagram's queue pair has none, and one in ERR flushes it
	}
	bind(start)
	for i := 0; i < 6; i++ {
		for _, op := range fuzzOps[typ] {
			n := 700
			sge := wq.SGE{Addr: 0x900000, Length: uint32(n), LKey: r.LKey()}
			if op == wq.RDMARead || op == wq.AtomicFetchAndAdd {
				sge = a.sge(0, n)
			}
			if op == wq.AtomicFetchAndAdd {
				sge.Length = 8
			}
			a.post(start, wq.SendWR{Opcode: op, Flags: wq.SendSignaled, AH: 1, SGList: []wq.SGE{sge}})
		}
		a.postRecv(start, uint64(i), a.sge(1024*i, 1024))
	}
	now := start
	drain := func() {
		for i := 0; ; i++ {
			n, _ := a.qp.PollTransmit(now, a.buf[:])
			if n == 0 {
				return
			}
			a.qp.PollMiddles(now, a.buf[:], i%4)
			if i > 1<<16 {
				t.Fatal("endless transmission")
			}
		}
	}
	drain()
	for len(data) > 2 {
		n, how := int(data[0])+int(data[1]&1)*256, data[1]
		data = data[2:]
		n = min(n, len(data))
		p := append([]byte(nil), data[:n]...)
		data = data[n:]
		if how&2 != 0 {
			now = now.Add(time.Duration(how) * 50 * time.Microsecond)
			a.qp.HandleTimeout(now)
		}
		if _, err := a.keys.Remote(w.RKey(), 1, 0x11, memBase, 1, mrtable.AccessRemoteRead); err != nil && how&4 != 0 {
			bind(now)
		}
		steer(a, p, how, uint32(w.RKey()))
		a.parsed.Src, a.parsed.Dst = b.gid, a.gid
		if a.parsed.Parse(p) == nil {
			a.qp.HandlePacket(now, &a.parsed)
			runOfPacket(a, now, how)
		}
		if typ != qpstate.RC && how == 0xA5 {
			_ = a.qp.Modify(now, &qpstate.Attr{State: qpstate.RTS}, qpstate.MaskState, nil)
			_ = a.recv.Push(&wq.RecvWR{SGList: []wq.SGE{a.sge(0, 300)}})
		}
		if how&4 == 0 {
			drain()
		}
	}
	for i := 0; i < 1000 && !a.qp.NextTimeout().IsZero(); i++ {
		now = a.qp.NextTimeout()
		a.qp.HandleTimeout(now)
		drain()
	}
	if !bytes.Equal(secret[:size/2], a.mem[:size/2]) {
		t.Error("memory without a remote right changed")
	}
	if d := a.qp.NextTimeout(); !d.IsZero() {
		t.Error("the timer never ends")
	}
}

// runOfPacket hands on two Middle packets that follow the one just handled.
func runOfPacket(e *end, now time.Time, how byte) {
	op, ok := middleOf[e.parsed.Info.Op]
	op |= bth.Opcode(e.parsed.Info.Class) << 5
	if !ok || how&1 != 0 {
		return
	}
	size := bth.BTHLen + 256 + bth.ICRCLen
	e.qp.HandleMiddles(now, op, e.parsed.BTH().PSN().Add(1), make([]byte, 2*size), size)
}

// steer brings a packet's class, P_Key, PSN and key into range, unless how says
// not to. window is the key of a window, the one that a SEND with Invalidate gets.
func steer(e *end, p []byte, how byte, window uint32) {
	if len(p) < bth.BTHLen+bth.ICRCLen || how&8 != 0 {
		return
	}
	class := map[qpstate.Type]bth.Class{qpstate.RC: bth.ClassRC, qpstate.UC: bth.ClassUC, qpstate.UD: bth.ClassUD}[e.cfg.Type]
	p[0] = p[0]&0x1F | byte(class)<<5
	p[1] &= 0xF0
	p[2], p[3] = 0xFF, 0xFF
	var attr qpstate.Attr
	e.qp.Query(&attr)
	psn := attr.RQPSN
	info := bth.Opcode(p[0]).Info()
	if info.Response {
		psn = 0x100
		if how&16 != 0 {
			psn = attr.SQPSN
		}
	}
	psn = psn.Add(uint32(int32(int8(p[11])) >> 3 & 0xFFFFFF))
	if how&32 != 0 && !info.Response {
		psn = attr.RQPSN
	}
	p[9], p[10], p[11] = byte(psn>>16), byte(psn>>8), byte(psn)
	if e.cfg.Type == qpstate.UD && len(p) > bth.BTHLen+4 && how&64 == 0 {
		copy(p[bth.BTHLen:], []byte{0x11, 0x11, 0x11, 0x11})
	}
	at := bth.BTHLen
	if info.Headers.Has(bth.HasIETH) && len(p) >= at+4+bth.ICRCLen {
		binary.BigEndian.PutUint32(p[at:], window)
	}
	if len(p) < at+16+bth.ICRCLen || !info.Headers.Has(bth.HasRETH) && !info.Headers.Has(bth.HasAtomicETH) {
		return
	}
	key := uint32(e.mr.RKey())
	if p[at+11]&1 != 0 {
		key = window
	}
	binary.BigEndian.PutUint32(p[at+8:], key)
	if how&64 == 0 {
		copy(p[at:at+6], []byte{0, 0, 0, 0, 0, 1})
	}
	if how&128 == 0 && info.Headers.Has(bth.HasRETH) {
		n := len(p) - info.HeaderLen - bth.ICRCLen
		if info.Op == bth.OpReadRequest || info.Position == bth.First {
			n = int(p[at+15]) * 8
		}
		p[at+12], p[at+13], p[at+14], p[at+15] = 0, 0, byte(n>>8), byte(n)
	}
}

package transport_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"testing"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// Rules of the specification and of the engine's contract that a line of a
// scenario cannot show.

// logged is memory that writes down what is stored where, in order.
type logged struct {
	mrtable.HeapMemory
	log *[]string
}

func (l logged) WriteAt(src []byte, off uint64) error {
	*l.log = append(*l.log, fmt.Sprintf("%d+%d", off, len(src)))
	return l.HeapMemory.WriteAt(src, off)
}

// TestLastBytesLast: a message's payload lands in packet order, its last bytes
// last, for WRITEs, SENDs and READs: programs poll on them.
func TestLastBytesLast(t *testing.T) {
	for _, c := range []struct {
		op   wq.Opcode
		n    int
		want string
	}{
		{wq.RDMAWrite, 600, "[0+256 256+256 512+80 592+8]"},
		{wq.RDMAWrite, 512, "[0+256 256+248 504+8]"},
		{wq.RDMAWrite, 100, "[0+96 96+4]"},
		{wq.RDMAWrite, 1, "[0+1]"},
		{wq.Send, 601, "[0+256 256+256 512+88 600+1]"},
		{wq.RDMARead, 600, "[0+256 256+256 512+80 592+8]"},
	} {
		a, b := connected(t, options{mtu: bth.MTU256})
		var log []string
		mem := logged{make(mrtable.HeapMemory, 4096), &log}
		target := b
		if c.op == wq.RDMARead {
			target = a
		}
		r, err := target.keys.Register(1, mem, 0x5000000, 4096, allAccess, 0)
		if err != nil {
			t.Fatal(err)
		}
		there := wq.SGE{Addr: 0x5000000, Length: uint32(c.n), LKey: r.LKey()}
		wr := wq.SendWR{Opcode: c.op, RemoteAddr: 0x5000000, RKey: r.RKey(), SGList: []wq.SGE{a.sge(0, c.n)}}
		if c.op == wq.RDMARead {
			wr.RemoteAddr, wr.RKey, wr.SGList = memBase, b.mr.RKey(), []wq.SGE{there}
		}
		b.postRecv(start, 1, there)
		a.post(start, wr)
		exchange(start, a, b)
		if got := fmt.Sprint(log); got != c.want {
			t.Errorf("%v of %d: stored %s, want %s", c.op, c.n, got, c.want)
		}
	}
}

// TestF14_RefusalIsNoTimeout: the socket takes one packet and then refuses for
// many times the ACK timeout. Own packets wait: nothing is sent again, no retry is
// used up. Once nothing waits, the timer counts.
func TestF14_RefusalIsNoTimeout(t *testing.T) {
	a, _ := connected(t, options{timeout: 8, retry: 1})
	for i := 0; i < 2; i++ {
		a.post(start, wq.SendWR{Opcode: wq.Send, SGList: []wq.SGE{a.sge(0, 4)}})
	}
	a.poll(start)
	now := start
	for i := 0; i < 10; i++ {
		now = a.qp.NextTimeout()
		a.qp.HandleTimeout(now)
	}
	wantTexts(t, "after the refusal", texts(a.pollAll(now)), "RC SEND Only psn=0x101 A data=4")
	if s := a.qp.Stats(); s.Timeouts != 0 || a.ctr.AckDeferred != 10 {
		t.Errorf("time-outs %d, put off %d", s.Timeouts, a.ctr.AckDeferred)
	}
	now = a.qp.NextTimeout()
	a.qp.HandleTimeout(now)
	wantTexts(t, "time-out", texts(a.pollAll(now)), "RC SEND Only psn=0x100 A data=4", "RC SEND Only psn=0x101 A data=4")
}

// TestDeterminism: the same inputs give the same outputs, byte for byte.
func TestDeterminism(t *testing.T) {
	run := func() uint64 {
		h := fnv.New64a()
		w := newWorld(t, pairOf(12345, .1))
		w.trace = func(s string) { fmt.Fprintln(h, s) }
		if err := w.run(); err != nil {
			t.Fatal(err)
		}
		return h.Sum64()
	}
	if a, b := run(), run(); a != b {
		t.Errorf("two runs differ: %#x, %#x", a, b)
	}
}

// TestResentPacketsAreTheSame: what is sent again has the same bytes, apart from
// AckReq (IBTA Vol 1 §9.7.5.1.1, TMO-07); no sent packet is stored.
func TestResentPacketsAreTheSame(t *testing.T) {
	for _, op := range []wq.Opcode{wq.Send, wq.RDMAWrite, wq.RDMARead, wq.AtomicFetchAndAdd, wq.RDMAWriteWithImm, wq.AtomicCmpAndSwp} {
		a, b := connected(t, options{mtu: bth.MTU512, timeout: 8})
		sg := []wq.SGE{a.sge(1, 1000), a.sge(7000, 1001)}
		if op == wq.AtomicFetchAndAdd || op == wq.AtomicCmpAndSwp {
			sg = []wq.SGE{a.sge(0, 8)}
		}
		a.post(start, wq.SendWR{Opcode: op, RemoteAddr: memBase, RKey: b.mr.RKey(), CompareAdd: 3, Swap: 4, ImmData: 5, SGList: sg})
		first := a.pollAll(start)
		for try := 0; try < 2; try++ {
			now := a.qp.NextTimeout()
			a.qp.HandleTimeout(now)
			again := a.pollAll(now)
			if len(again) != len(first) {
				t.Fatalf("%v: %d packets, first %d", op, len(again), len(first))
			}
			for i := range first {
				if !bytes.Equal(first[i], again[i]) {
					t.Errorf("first %s, again %s", packetText(first[i]), packetText(again[i]))
				}
			}
		}
	}
}

// TestPostErrors: what post refuses at once (IBTA Vol 1 §11.4.1), and a full queue.
func TestPostErrors(t *testing.T) {
	a, _ := connected(t, options{sendWR: 2})
	for _, c := range []struct {
		name string
		wr   wq.SendWR
		want error
	}{
		{"too many elements", wq.SendWR{Opcode: wq.Send, SGList: make([]wq.SGE, 5)}, wq.ErrSGECount},
		{"too much inline", wq.SendWR{Opcode: wq.Send, Flags: wq.SendInline, Inline: make([]byte, 513)}, wq.ErrInline},
		{"inline READ", wq.SendWR{Opcode: wq.RDMARead, Flags: wq.SendInline}, wq.ErrInline},
		{"atomic of 4 bytes", wq.SendWR{Opcode: wq.AtomicFetchAndAdd, SGList: []wq.SGE{a.sge(0, 4)}}, wq.ErrAtomic},
		{"unknown opcode", wq.SendWR{Opcode: 99}, wq.ErrOpcode},
	} {
		if err := a.qp.PostSend(start, &c.wr); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	wr := wq.SendWR{Opcode: wq.Send}
	for i, want := range []error{nil, nil, transport.ErrFull} {
		if err := a.qp.PostSend(start, &wr); !errors.Is(err, want) {
			t.Errorf("post %d: %v, want %v", i, err, want)
		}
	}
	o := options{}.withDefaults()
	e := newEnd(t, 5, 1, o)
	for _, s := range []qpstate.State{qpstate.Reset, qpstate.Init, qpstate.RTR} {
		e.to(s, a, o)
		if err := e.qp.PostSend(start, &wr); e.qp.State() != s || !errors.Is(err, transport.ErrState) {
			t.Errorf("post in %v: %v", e.qp.State(), err)
		}
	}
}

// TestModifyErrors: a modify that is refused changes nothing and says what is
// wrong (QPS-03 to QPS-06, F6's range of rnr_retry, F43).
func TestModifyErrors(t *testing.T) {
	a, _ := connected(t, options{})
	var before, after qpstate.Attr
	a.qp.Query(&before)
	for _, c := range []struct {
		a    qpstate.Attr
		m    qpstate.Mask
		want string
	}{
		{qpstate.Attr{State: qpstate.RTR}, qpstate.MaskState, "from RTS to RTR"},
		{qpstate.Attr{RNRRetry: 3}, qpstate.MaskRNRRetry, "rnr_retry"},
		{qpstate.Attr{MinRNRTimer: 32}, qpstate.MaskMinRNRTimer, "min_rnr_timer is 32"},
	} {
		err := a.qp.Modify(start, &c.a, c.m, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	if a.qp.Query(&after); before != after {
		t.Errorf("attributes changed: %+v, %+v", before, after)
	}
	o := options{}.withDefaults()
	e := newEnd(t, 5, 1, o)
	e.to(qpstate.Init, a, o)
	rtr := qpstate.Attr{State: qpstate.RTR, PathMTU: bth.MTU256, AH: qpstate.AHAttr{IsGlobal: true, PortNum: 1}, MaxDestRDAtomic: 17}
	m := qpstate.MaskState | qpstate.MaskAV | qpstate.MaskPathMTU | qpstate.MaskDestQPN | qpstate.MaskRQPSN | qpstate.MaskMaxDestRDAtomic | qpstate.MaskMinRNRTimer
	if err := e.qp.Modify(start, &rtr, m, &transport.Path{}); err == nil || !strings.Contains(err.Error(), "max_dest_rd_atomic is 17") {
		t.Errorf("max_dest_rd_atomic 17: %v", err)
	}
	rtr.MaxDestRDAtomic = 16
	if err := e.qp.Modify(start, &rtr, m, nil); !errors.Is(err, transport.ErrPath) {
		t.Errorf("no path: %v", err)
	}
}

// TestReconnect: after RESET a queue pair starts anew: PSNs, MSN, no completions,
// and what belongs to the old connection is dropped (QPS-10, QPS-17).
func TestReconnect(t *testing.T) {
	o := options{sigAll: true}.withDefaults()
	a, b := connected(t, o)
	b.postRecv(start, 1, b.sge(0, 100))
	a.post(start, wq.SendWR{WRID: 1, Opcode: wq.Send, SGList: []wq.SGE{a.sge(0, 4)}})
	a.post(start, wq.SendWR{WRID: 2, Opcode: wq.RDMARead, RemoteAddr: memBase, RKey: b.mr.RKey(), SGList: []wq.SGE{a.sge(0, 4)}})
	old := a.pollAll(start)
	for _, p := range old {
		b.handle(start, p, a.gid)
	}
	stale := b.pollAll(start)
	b.recvCQ.take0()
	reset := qpstate.Attr{State: qpstate.Reset}
	for _, e := range []*end{a, b} {
		if err := e.qp.Modify(start, &reset, qpstate.MaskState, nil); err != nil {
			t.Fatal(err)
		}
		if len(e.sendCQ.wcs)+len(e.recvCQ.wcs) != 0 {
			t.Error("completions at RESET")
		}
	}
	o.psnA, o.psnB = 0x900000, 0x700000
	a.to(qpstate.RTS, b, o)
	b.to(qpstate.RTS, a, o)
	for _, p := range stale {
		if v := a.handle(start, p, b.gid); v != transport.DropStale && v != transport.Duplicate {
			t.Errorf("%s: %v", packetText(p), v)
		}
	}
	b.postRecv(start, 2, b.sge(0, 100))
	a.post(start, wq.SendWR{WRID: 3, Opcode: wq.Send, SGList: []wq.SGE{a.sge(0, 4)}})
	pkts := a.pollAll(start)
	wantTexts(t, "first request", texts(pkts), "RC SEND Only psn=0x900000 A data=4")
	b.handle(start, pkts[0], a.gid)
	wantTexts(t, "first ACK", texts(b.pollAll(start)), "RC Acknowledge psn=0x900000 ACK msn=1")
}

// TestOutstandingPSNs: unacknowledged PSNs stay far below 2^23 (IBTA Vol 1 §9.7.1),
// even with the largest window and the smallest packets.
func TestOutstandingPSNs(t *testing.T) {
	if testing.Short() {
		t.Skip("sends millions of packets")
	}
	a, b := connected(t, options{mtu: bth.MTU256, window: 1 << 40, noTimeout: true, memSize: 1 << 20, sendWR: 4096})
	sg := []wq.SGE{a.sge(0, 1<<20)}
	for i := 0; i < 4096; i++ {
		a.post(start, wq.SendWR{Opcode: wq.RDMAWrite, SGList: sg})
	}
	// Acknowledged bursts open the window; the last one is not acknowledged.
	n := 0
	for burst := 0; burst < 50 && n < 1<<20; burst++ {
		n = 0
		var psn bth.PSN
		for k, tx := a.qp.PollTransmit(start, a.buf[:]); k > 0; k, tx = a.qp.PollTransmit(start, a.buf[:]) {
			n++
			psn = tx.PSN
		}
		ack, err := craft(fmt.Sprintf("RC Acknowledge psn=%#x ack=ACK", uint32(psn)), 0)
		if err != nil {
			t.Fatal(err)
		}
		a.handle(start, ack, b.gid)
	}
	if n >= 1<<23 || n < 1<<20 {
		t.Errorf("%d packets outstanding", n)
	}
}

// TestShortBuffer: a buffer that may not hold a packet gets none.
func TestShortBuffer(t *testing.T) {
	a, _ := connected(t, options{})
	a.post(start, wq.SendWR{Opcode: wq.Send})
	if n, _ := a.qp.PollTransmit(start, a.buf[:transport.TransmitSpace-1]); n != 0 {
		t.Errorf("%d bytes in a buffer that is too short", n)
	}
	if n, _ := a.qp.PollTransmit(start, a.buf[:]); n == 0 {
		t.Error("nothing was sent")
	}
}

// TestConfigErrors: Validate names the field.
func TestConfigErrors(t *testing.T) {
	good := newEnd(t, 0x11, 1, options{}.withDefaults()).cfg
	for _, c := range []struct {
		want string
		edit func(*transport.Config)
	}{
		{"Type", func(c *transport.Config) { c.Type = qpstate.GSI }},
		{"AHs", func(c *transport.Config) { c.Type, c.AHs = qpstate.UD, nil }},
		{"QPN", func(c *transport.Config) { c.QPN = 0 }},
		{"PD", func(c *transport.Config) { c.PD = 0 }},
		{"Keys", func(c *transport.Config) { c.Keys = nil }},
		{"SendCQ", func(c *transport.Config) { c.SendCQ = nil }},
		{"Recv", func(c *transport.Config) { c.Recv = nil }},
		{"Window", func(c *transport.Config) { c.Window = -1 }},
	} {
		cfg := good
		c.edit(&cfg)
		if _, err := transport.New(cfg); !errors.Is(err, transport.ErrConfig) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.want, err)
		}
	}
}

// TestForeignAddress: a packet from another address than the peer's, or to another
// than ours, is dropped (IBTA Annex A17).
func TestForeignAddress(t *testing.T) {
	a, _ := connected(t, options{})
	b, err := craft("RC SEND Only psn=0x200 A data=4", 0)
	if err != nil {
		t.Fatal(err)
	}
	if v := a.handle(start, b, gid4(3)); v != transport.DropAddress {
		t.Errorf("from a stranger: %v", v)
	}
	p := &a.parsed
	p.Src, p.Dst = gid4(2), gid4(9)
	if v := a.qp.HandlePacket(start, p); v != transport.DropAddress {
		t.Errorf("to a stranger: %v", v)
	}
	if n := a.ctr.Verdicts[transport.DropAddress]; n != 2 {
		t.Errorf("counted %d", n)
	}
}

// TestEarlyTimeoutDoesNothing: early calls of HandleTimeout do nothing.
func TestEarlyTimeoutDoesNothing(t *testing.T) {
	a, _ := connected(t, options{timeout: 8})
	a.post(start, wq.SendWR{Opcode: wq.Send})
	a.pollAll(start)
	due := a.qp.NextTimeout()
	if want := start.Add(bth.AckTimeout(8)); !due.Equal(want) {
		t.Errorf("due in %v, want %v", due.Sub(start), want.Sub(start))
	}
	for _, at := range []time.Time{start, due.Add(-1)} {
		a.qp.HandleTimeout(at)
		wantTexts(t, "early", texts(a.pollAll(at)))
	}
	a.qp.HandleTimeout(due)
	wantTexts(t, "due", texts(a.pollAll(due)), "RC SEND Only psn=0x100 A")
}

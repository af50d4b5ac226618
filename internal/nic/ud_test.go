package nic

import (
	"bytes"
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/udp4791"
	"github.com/softroce/softroce/pkg/verbs"
)

const testQKey verbs.QKey = 0x11223344

// newUD makes a UD queue pair that is ready to send and to receive.
func newUD(t testing.TB, d *verbs.Device, size int, change func(*verbs.QPInitAttr)) *endpoint {
	t.Helper()
	e := newQPOf(t, d, size, func(init *verbs.QPInitAttr) {
		init.Type = verbs.UD
		if change != nil {
			change(init)
		}
	})
	if err := e.qp.ReadyUD(testQKey, 9); err != nil {
		t.Fatal(err)
	}
	return e
}

// newQPOf is newEndpoint with other attributes.
func newQPOf(t testing.TB, d *verbs.Device, size int, change func(*verbs.QPInitAttr)) *endpoint {
	t.Helper()
	e := &endpoint{dev: d}
	var err error
	if e.pd, err = d.AllocPD(); err != nil {
		t.Fatal(err)
	}
	return e.with(t, size, change)
}

// with gives e, of which pd is set, the rest.
func (e *endpoint) with(t testing.TB, size int, change func(*verbs.QPInitAttr)) *endpoint {
	t.Helper()
	var err error
	if e.cq, err = e.dev.CreateCQ(256, nil, 0); err != nil {
		t.Fatal(err)
	}
	if e.mr, err = e.pd.AllocMR(size, allAccess); err != nil {
		t.Fatal(err)
	}
	init := verbs.QPInitAttr{
		SendCQ: e.cq, RecvCQ: e.cq, Type: verbs.RC,
		Cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 64},
	}
	change(&init)
	if e.qp, err = e.pd.CreateQP(&init); err != nil {
		t.Fatal(err)
	}
	return e
}

// handleTo makes an address handle for a GID.
func (e *endpoint) handleTo(t testing.TB, gid verbs.GID) *verbs.AH {
	t.Helper()
	ah, err := e.pd.CreateAH(&verbs.AHAttr{DGID: gid, IsGlobal: true, PortNum: 1, HopLimit: 33, TrafficClass: 0x28})
	if err != nil {
		t.Fatal(err)
	}
	return ah
}

// gid is the GID that the endpoint's adapter has at index 0.
func (e *endpoint) gid(t testing.TB) verbs.GID {
	t.Helper()
	g, err := e.dev.QueryGID(0)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// sge is a part of the endpoint's region.
func (e *endpoint) sge(off, n int) []verbs.SGE {
	return []verbs.SGE{{Addr: e.mr.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}}
}

func (e *endpoint) postRecv(t testing.TB, id uint64, off, n int) {
	t.Helper()
	if _, err := e.qp.PostRecv(verbs.RecvWR{WRID: id, SGList: e.sge(off, n)}); err != nil {
		t.Fatal(err)
	}
}

// datagram is a request that sends part of the endpoint's region.
func (e *endpoint) datagram(ah *verbs.AH, to verbs.QPN, off, n int) verbs.SendWR {
	return verbs.SendWR{
		Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: e.sge(off, n),
		AH: ah.Handle(), RemoteQPN: to, RemoteQKey: testQKey,
	}
}

func (e *endpoint) post(t testing.TB, wr verbs.SendWR) {
	t.Helper()
	if _, err := e.qp.PostSend(wr); err != nil {
		t.Fatal(err)
	}
}

// next is the endpoint's next completion, which has to be of a kind.
func (e *endpoint) next(t testing.TB, op cq.Opcode, status cq.Status) verbs.WC {
	t.Helper()
	wc, err := completion(within(t), e.cq)
	if err != nil {
		t.Fatalf("no completion: %v", err)
	}
	if wc.Opcode != op || wc.Status != status {
		t.Fatalf("completion %+v, want %v with %v", wc, op, status)
	}
	return wc
}

// twoAdapters starts two adapters that meet over the network, or one twice.
func twoAdapters(t *testing.T, same bool) (a, b *Adapter) {
	t.Helper()
	a = startAdapter(t, nil)
	if same {
		return a, a
	}
	return a, startAdapter(t, nil)
}

// Datagrams of every size between two adapters, and between queue pairs of one:
// the header area says where they came from, and an answer made of it arrives.
func TestUD(t *testing.T) {
	for _, same := range []bool{false, true} {
		name := "two adapters"
		if same {
			name = "one adapter"
		}
		t.Run(name, func(t *testing.T) {
			hops := uint8(33)
			if testmatrix.Backend(t) == BackendTUN {
				hops-- // the host is a router on the way
			}
			a, b := twoAdapters(t, same)
			x, y := newUD(t, openDevice(t, a), 1<<14, nil), newUD(t, openDevice(t, b), 1<<14, nil)
			ah := x.handleTo(t, y.gid(t))
			for i, n := range []int{0, 1, 7, 1000, 4095, 4096} {
				for k := range n {
					x.mr.Bytes()[k] = byte(i + k)
				}
				clear(y.mr.Bytes())
				y.postRecv(t, uint64(i), 0, 40+n)
				wr := x.datagram(ah, y.qp.Num(), 0, n)
				wr.Opcode, wr.ImmData = verbs.WRSendWithImm, uint32(n)
				x.post(t, wr)
				x.next(t, cq.Send, cq.Success)
				wc := y.next(t, cq.Recv, cq.Success)
				if wc.WRID != uint64(i) || wc.ByteLen != uint32(40+n) || wc.SrcQP != x.qp.Num() || wc.ImmData != uint32(n) || wc.Flags != cq.GRH|cq.WithImm {
					t.Errorf("%d bytes: completion %+v", n, wc)
				}
				if !bytes.Equal(y.mr.Bytes()[40:40+n], x.mr.Bytes()[:n]) {
					t.Errorf("%d bytes: the payload differs", n)
				}
				back, err := y.dev.InitAHFromWC(1, &wc, y.mr.Bytes()[:40])
				if err != nil {
					t.Fatal(err)
				}
				if back.DGID != x.gid(t) || back.HopLimit != hops || back.TrafficClass != 0x28 {
					t.Errorf("the header area gives %+v", back)
				}
			}
			wc := verbs.WC{Flags: cq.GRH}
			answer, err := y.pd.CreateAHFromWC(1, &wc, y.mr.Bytes()[:40])
			if err != nil {
				t.Fatal(err)
			}
			x.postRecv(t, 99, 8192, 100)
			y.post(t, y.datagram(answer, x.qp.Num(), 0, 5))
			if wc := x.next(t, cq.Recv, cq.Success); wc.WRID != 99 || wc.SrcQP != y.qp.Num() {
				t.Errorf("the answer: %+v", wc)
			}
		})
	}
}

// Datagrams to several queue pairs and by several address handles leave in
// common sends as far as the steering keys go, and each arrives at its own.
func TestUDFanOut(t *testing.T) {
	const dests, each = 12, 20
	a, b := twoAdapters(t, false)
	x := newUD(t, openDevice(t, a), 1<<14, func(init *verbs.QPInitAttr) { init.Cap.MaxSendWR = 256 })
	db := openDevice(t, b)
	var ys []*endpoint
	var ahs []*verbs.AH
	for i := range dests {
		y := newUD(t, db, 1<<13, nil)
		for k := range each {
			y.postRecv(t, uint64(k), 128*k, 64+40)
		}
		ys = append(ys, y)
		if i < 3 {
			ahs = append(ahs, x.handleTo(t, y.gid(t)))
		}
	}
	var wrs []verbs.SendWR
	for i, y := range ys {
		for k := range each {
			x.mr.Bytes()[64*(k*dests+i)%8192] = byte(k)
			wr := x.datagram(ahs[(k+i)%len(ahs)], y.qp.Num(), 0, 64)
			wr.Opcode, wr.ImmData, wr.Flags = verbs.WRSendWithImm, uint32(i<<16|k), verbs.SendSignaled
			wrs = append(wrs, wr)
		}
	}
	if n, err := x.qp.PostSend(wrs...); err != nil {
		t.Fatal(n, err)
	}
	for range wrs {
		x.next(t, cq.Send, cq.Success)
	}
	for i, y := range ys {
		for k := range each {
			if wc := y.next(t, cq.Recv, cq.Success); wc.ImmData != uint32(i<<16|k) {
				t.Fatalf("queue pair %d: datagram %#x where number %d was due", i, wc.ImmData, k)
			}
		}
	}
	var s WorkerStats
	for _, w := range a.Snapshot().Workers {
		s.Sends += w.Stats.Sends
		s.PacketsOut += w.Stats.PacketsOut
	}
	if s.PacketsOut != dests*each || a.group.Segments() && s.Sends >= s.PacketsOut {
		t.Errorf("%d packets in %d sends", s.PacketsOut, s.Sends)
	}
}

// rawDatagram is a datagram without its ICRC.
func rawDatagram(to bth.QPN, qkey bth.QKey, payload []byte) []byte {
	h := bth.Headers{
		BTH:  bth.BTHFields{Opcode: bth.UDSendOnly, PKey: bth.DefaultPKey, MigReq: true, DestQP: to, PSN: 5, Pad: bth.PadLen(len(payload))},
		DETH: bth.DETHFields{QKey: qkey, SrcQP: 0x77},
	}
	b := append(h.Append(nil), payload...)
	return append(b, make([]byte, bth.PadLen(len(payload)))...)
}

// A rawSender sends packets that no adapter would.
type rawSender struct {
	t    testing.TB
	addr netip.Addr
	g    *udp4791.Group
	flow udp4791.FlowID
	port uint16
}

func newRawSender(t testing.TB) *rawSender {
	t.Helper()
	s := &rawSender{t: t, addr: testaddr.Take(t, 1)[0]}
	var err error
	if s.g, err = udp4791.Open(udp4791.Config{Addrs: []netip.Addr{s.addr}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.g.Close() })
	if s.flow, s.port, err = s.g.Endpoint(0).OpenFlow(s.addr, 0, 0); err != nil {
		t.Fatal(err)
	}
	return s
}

// send gives a packet its ICRC and sends it.
func (s *rawSender) send(dst netip.Addr, b []byte) {
	s.t.Helper()
	h := bth.NetHeader{Src: bth.GIDFromAddr(s.addr), Dst: bth.GIDFromAddr(dst), SrcPort: s.port, DstPort: udp4791.Port}
	b = bth.AppendICRC(b, bth.ICRC(h.Seed(len(b)+bth.ICRCLen), b))
	if n, err := s.g.Endpoint(0).WriteBatch([]udp4791.SendSlot{{Flow: s.flow, Dst: dst, Buf: b}}); n != 1 || err != nil {
		s.t.Fatal(n, err)
	}
}

// verdicts sums what the adapter's engines did with packets, and drops those
// that came to none.
func (a *Adapter) verdicts() (v [NumVerdicts]uint64, drops [NumDrops]uint64) {
	for _, w := range a.Snapshot().Workers {
		for i, n := range w.Transport.Verdicts {
			v[i] += n
		}
		for i, n := range w.Stats.Drops {
			drops[i] += n
		}
	}
	return v, drops
}

// Field case F25, and a stranger's Q_Key: an oversized datagram, one that the
// posted receive has no room for and one with a wrong Q_Key are dropped and
// counted; the queue pair stays in RTS and takes the next good one.
func TestF25BadDatagramsHurtNobody(t *testing.T) {
	a := startAdapter(t, nil)
	y := newUD(t, openDevice(t, a), 1<<14, nil)
	raw := newRawSender(t)
	dst := a.Addrs()[0]
	y.postRecv(t, 1, 0, 40+100)
	for _, row := range []struct {
		name    string
		packet  []byte
		verdict string
	}{
		{"wrong Q_Key", rawDatagram(y.qp.Num(), testQKey+1, make([]byte, 8)), "drop_qkey"},
		{"longer than the receive", rawDatagram(y.qp.Num(), testQKey, make([]byte, 101)), "drop_length"},
		{"longer than any MTU", rawDatagram(y.qp.Num(), testQKey, make([]byte, 4100)), "drop_length"},
		{"of another service", writeOnly(y, 5, 0, make([]byte, 8)), "drop_opcode_class"},
	} {
		before, _ := a.verdicts()
		raw.send(dst, row.packet)
		awaitVerdict(t, a, row.name, row.verdict, before)
	}
	raw.send(dst, rawDatagram(y.qp.Num(), testQKey, []byte("good")))
	wc := y.next(t, cq.Recv, cq.Success)
	if wc.WRID != 1 || wc.ByteLen != 44 || string(y.mr.Bytes()[40:44]) != "good" || wc.SrcQP != 0x77 {
		t.Errorf("the good one: %+v, %q", wc, y.mr.Bytes()[40:44])
	}
	if attr, err := y.qp.Query(); err != nil || attr.State != verbs.StateRTS {
		t.Errorf("state %v, %v", attr.State, err)
	}
}

// awaitVerdict waits until one more packet met a verdict.
func awaitVerdict(t testing.TB, a *Adapter, name, verdict string, before [NumVerdicts]uint64) {
	t.Helper()
	ctx := within(t)
	for {
		now, _ := a.verdicts()
		for v := range NumVerdicts {
			if now[v] == before[v] {
				continue
			}
			if v.String() != verdict || now[v] != before[v]+1 {
				t.Errorf("%s: %d times %v, want one %s", name, now[v]-before[v], v, verdict)
			}
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s: no %s was counted", name, verdict)
		}
		runtime.Gosched()
	}
}

// A datagram longer than the link's MTU completes with LOC_LEN_ERR, the next is
// flushed, the queue pair is in SQE, still receives, and goes on from RTS.
func TestUDSendErrors(t *testing.T) {
	a, b := twoAdapters(t, false)
	x, y := newUD(t, openDevice(t, a), 1<<14, nil), newUD(t, openDevice(t, b), 1<<14, nil)
	ah := x.handleTo(t, y.gid(t))
	bad := x.datagram(ah, y.qp.Num(), 0, 4097)
	if _, err := x.qp.PostSend(bad, x.datagram(ah, y.qp.Num(), 0, 4)); err != nil {
		t.Fatal(err)
	}
	x.next(t, cq.Send, cq.LocLenErr)
	x.next(t, cq.Send, cq.WRFlushErr)
	if attr, err := x.qp.Query(); err != nil || attr.State != verbs.StateSQE {
		t.Fatalf("state %v, %v; want SQE", attr.State, err)
	}
	x.postRecv(t, 1, 0, 64)
	answer := y.handleTo(t, x.gid(t))
	y.post(t, y.datagram(answer, x.qp.Num(), 0, 4))
	x.next(t, cq.Recv, cq.Success)
	if err := x.qp.Modify(&verbs.QPAttr{State: verbs.StateRTS}, verbs.QPStateMask); err != nil {
		t.Fatal(err)
	}
	y.postRecv(t, 2, 0, 64)
	x.post(t, x.datagram(ah, y.qp.Num(), 0, 4))
	x.next(t, cq.Send, cq.Success)
	y.next(t, cq.Send, cq.Success)
	y.next(t, cq.Recv, cq.Success)

	// A handle of another domain, and none at all.
	pd, err := x.dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	other := &endpoint{dev: x.dev, pd: pd}
	stranger := other.handleTo(t, y.gid(t))
	for _, handle := range []uint32{stranger.Handle(), 0xFFFFFFFF, 1 << 20} {
		wr := x.datagram(ah, y.qp.Num(), 0, 4)
		wr.AH = handle
		x.post(t, wr)
		x.next(t, cq.Send, cq.LocQPOpErr)
		if err := x.qp.Modify(&verbs.QPAttr{State: verbs.StateRTS}, verbs.QPStateMask); err != nil {
			t.Fatal(err)
		}
	}
}

// Requests that were posted before their handle was destroyed still go where it
// said; the handle's place and its send sockets come back.
func TestDestroyedAHServesWhatWasPosted(t *testing.T) {
	const n = 30
	a, b := twoAdapters(t, false)
	x, y := newUD(t, openDevice(t, a), 1<<14, nil), newUD(t, openDevice(t, b), 1<<14, nil)
	for round := range 20 {
		ah := x.handleTo(t, y.gid(t))
		var wrs []verbs.SendWR
		for i := range n {
			y.postRecv(t, uint64(i), 64*i, 64)
			wrs = append(wrs, x.datagram(ah, y.qp.Num(), 0, 8))
		}
		w := a.workerOf(x.qp.Num())
		w.do(func() { // it does not look at what is posted meanwhile
			if _, err := x.qp.PostSend(wrs...); err != nil {
				t.Error(err)
			}
			if l := a.programList()[0].links[w.index]; !l.hasDatagrams() {
				t.Error("what was posted is not seen to wait")
			}
		})
		if err := ah.Destroy(); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			x.next(t, cq.Send, cq.Success)
			if wc := y.next(t, cq.Recv, cq.Success); wc.WRID != uint64(i) {
				t.Fatalf("round %d: receive %d where %d was due", round, wc.WRID, i)
			}
		}
	}
	last := x.handleTo(t, y.gid(t))
	if err := last.Destroy(); err != nil {
		t.Fatal(err)
	}
	p := a.programList()[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ahs.count != 0 || len(p.ahs.used) != 64 || a.ledger.usage()[ResourceAHs] != 0 {
		t.Errorf("%d handles, %d places, %d booked", p.ahs.count, len(p.ahs.used), a.ledger.usage()[ResourceAHs])
	}
	for _, l := range p.links {
		if len(l.ahs.paths) != 0 {
			t.Errorf("%d ways are kept", len(l.ahs.paths))
		}
	}
}

// ibv_create_ah(3): what is no address is EINVAL, where there is no way
// ENETUNREACH; a domain with handles is busy.
func TestCreateAHRefused(t *testing.T) {
	a := startAdapter(t, nil)
	d := openDevice(t, a)
	pd, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	gid := bth.GIDFromAddr(a.Addrs()[0])
	good := verbs.AHAttr{DGID: gid, IsGlobal: true, PortNum: 1}
	for _, row := range []struct {
		name  string
		f     func(*verbs.AHAttr)
		errno syscall.Errno
	}{
		{"port", func(a *verbs.AHAttr) { a.PortNum = 2 }, syscall.EINVAL},
		{"no GRH", func(a *verbs.AHAttr) { a.IsGlobal = false }, syscall.EINVAL},
		{"sgid_index", func(a *verbs.AHAttr) { a.SGIDIndex = 1 }, syscall.EINVAL},
		{"no dgid", func(a *verbs.AHAttr) { a.DGID = bth.GID{} }, syscall.EINVAL},
		{"broadcast", func(a *verbs.AHAttr) { a.DGID = bth.GIDFromAddr(netip.MustParseAddr("255.255.255.255")) }, syscall.EINVAL},
		{"another family", func(a *verbs.AHAttr) { a.DGID = bth.GIDFromAddr(netip.MustParseAddr("fd00::1")) }, syscall.EINVAL},
	} {
		attr := good
		row.f(&attr)
		if _, err := pd.CreateAH(&attr); !errors.Is(err, row.errno) {
			t.Errorf("%s: %v, want %v", row.name, err, row.errno)
		}
	}
	ah, err := pd.CreateAH(&good)
	if err != nil {
		t.Fatal(err)
	}
	if err := pd.Dealloc(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("dealloc with a handle: %v, want EBUSY", err)
	}
	n := ah.Handle()
	if err := ah.Destroy(); err != nil {
		t.Fatal(err)
	}
	again, err := pd.CreateAH(&good)
	if err != nil || again.Handle() == n {
		t.Errorf("a new handle is %#x, as the old one; %v", again.Handle(), err)
	}
	if err := again.Destroy(); err != nil {
		t.Fatal(err)
	}
	if err := pd.Dealloc(); err != nil {
		t.Errorf("dealloc: %v", err)
	}
}

// What a capture has of datagrams: addresses and QPNs of each, both ways.
func TestUDCapture(t *testing.T) {
	var tape bytes.Buffer
	w, err := capture.NewWriter(&tape, "ud", capture.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	addrs := testaddr.Take(t, 2)
	a := startAdapter(t, func(c *Config) { c.Addrs, c.Capture = addrs, w })
	x, y := newUD(t, openDevice(t, a), 1<<12, nil), newUD(t, openDevice(t, a), 1<<12, nil)
	// From the second address to the first: the queue pair has none of its own.
	ah, err := x.pd.CreateAH(&verbs.AHAttr{DGID: bth.GIDFromAddr(addrs[0]), SGIDIndex: 1, IsGlobal: true, PortNum: 1})
	if err != nil {
		t.Fatal(err)
	}
	y.postRecv(t, 1, 0, 100)
	x.post(t, x.datagram(ah, y.qp.Num(), 0, 10))
	x.next(t, cq.Send, cq.Success)
	y.next(t, cq.Recv, cq.Success)
	a.quiesce()
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	var seen []capture.Record
	if err := capture.Decode(&tape, func(r capture.Record) { seen = append(seen, r) }); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 2 {
		t.Fatalf("%d packets captured, want 2", len(seen))
	}
	for i, p := range seen {
		if p.Opcode != bth.UDSendOnly || p.QPN != y.qp.Num() || p.Bad() {
			t.Errorf("packet %d: %v", i, p)
		}
		if p.Src.Addr() != addrs[1] || p.Dst.Addr() != addrs[0] {
			t.Errorf("packet %d: from %v to %v", i, p.Src, p.Dst)
		}
	}
	// The receiver's worker may write its side first.
	if out, in := "qp ", "accepted"; !strings.HasPrefix(seen[0].Comment, out) && !strings.HasPrefix(seen[1].Comment, out) ||
		!strings.HasPrefix(seen[0].Comment, in) && !strings.HasPrefix(seen[1].Comment, in) {
		t.Errorf("what left and what came: %q, %q", seen[0].Comment, seen[1].Comment)
	}
}

// The steady state of datagrams allocates nothing, whether the receives are the
// queue pair's own or shared.
func TestUDAllocatesNothing(t *testing.T) {
	for _, shared := range []bool{false, true} {
		a := startAdapter(t, func(c *Config) { c.Workers = 1 })
		x := newUD(t, openDevice(t, a), 1<<12, nil)
		y := &endpoint{dev: openDevice(t, a)}
		var err error
		if y.pd, err = y.dev.AllocPD(); err != nil {
			t.Fatal(err)
		}
		srq, err := y.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 8, MaxSGE: 1})
		if err != nil {
			t.Fatal(err)
		}
		y.with(t, 1<<12, func(init *verbs.QPInitAttr) {
			init.Type = verbs.UD
			if shared {
				init.SRQ = srq
			}
		})
		if err := y.qp.ReadyUD(testQKey, 1); err != nil {
			t.Fatal(err)
		}
		post := y.qp.PostRecv
		if shared {
			post = srq.PostRecv
		}
		ah := x.handleTo(t, y.gid(t))
		wrs := []verbs.SendWR{x.datagram(ah, y.qp.Num(), 0, 8)}
		recv := []verbs.RecvWR{{SGList: y.sge(0, 64)}}
		ends, wcs := []*endpoint{x, y}, make([]verbs.WC, 1)
		round := func() {
			if _, err := post(recv...); err != nil {
				t.Fatal(err)
			}
			if _, err := x.qp.PostSend(wrs...); err != nil {
				t.Fatal(err)
			}
			for _, e := range ends {
				for n := 0; n == 0; runtime.Gosched() {
					if n, err = e.cq.Poll(wcs); err != nil || n == 1 && wcs[0].Status != cq.Success {
						t.Fatal(wcs[0], err)
					}
				}
			}
		}
		for range 100 {
			round()
		}
		n := testing.AllocsPerRun(500, round)
		for tries := 0; n >= 1 && tries < 5; tries++ {
			n = testing.AllocsPerRun(500, round) // it may be the watch over the network, which a new link wakes
		}
		if n >= 1 {
			t.Errorf("shared receives %v: %v allocations a datagram", shared, n)
		}
	}
}

package transport_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/scenario"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// start is the virtual time at which every test begins.
var start = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// completions records what a queue pair completes.
type completions struct {
	wcs       []cq.WC
	solicited []bool
}

func (c *completions) Complete(wc *cq.WC, solicited bool) {
	c.wcs = append(c.wcs, *wc)
	c.solicited = append(c.solicited, solicited)
}

// take returns what completed since the last call, as text.
func (c *completions) take() []string {
	var out []string
	for i := range c.wcs {
		out = append(out, wcText(&c.wcs[i]))
	}
	c.wcs, c.solicited = c.wcs[:0], c.solicited[:0]
	return out
}

// wcText writes a completion without its prefix: "1 SUCCESS SEND len=4".
func wcText(wc *cq.WC) string { return scenario.WCText(wc) }

// udKey is the Q_Key of datagram queue pairs.
const udKey bth.QKey = 0x11111111

// handles are the address handles of a test's queue pair.
type handles map[uint32]*transport.Path

// Path implements [transport.AddressHandles].
func (h handles) Path(ah uint32, pd mrtable.PD, _ bth.QPN) *transport.Path {
	if pd != 1 {
		return nil
	}
	return h[ah]
}

const (
	allAccess = mrtable.AccessLocalWrite | mrtable.AccessRemoteWrite | mrtable.AccessRemoteRead | mrtable.AccessRemoteAtomic
	memBase   = 0x10000
	memSize   = 1 << 20
)

// end is one queue pair with memory of its own.
type end struct {
	t      testing.TB
	qp     *transport.QP
	keys   *mrtable.Table
	mem    mrtable.HeapMemory
	mr     *mrtable.Region
	recv   *wq.RecvQueue
	ahs    handles
	sendCQ completions
	recvCQ completions
	ctr    transport.Counters
	slab   *wq.Slab
	cfg    transport.Config
	qpn    bth.QPN
	gid    bth.GID
	parsed transport.Packet
	buf    [transport.TransmitSpace]byte
}

// options of a connection; the zero value is usable.
type options struct {
	mtu       bth.MTU
	peerMTU   bth.MTU // of B, when it differs
	rd        uint8
	destRD    uint8
	timeout   uint8
	retry     uint8
	rnrRetry  uint8
	rnrTimer  uint8
	psnA      bth.PSN
	psnB      bth.PSN
	sigAll    bool
	window    int
	access    uint32
	zeroRetry bool
	noTimeout bool
	noRD      bool
	memAccess mrtable.Access
	recvWR    int
	sendWR    int
	memSize   int
	typ       qpstate.Type  // 0: RC
	qkey      bth.QKey      // 0: udKey
	srq       *wq.RecvQueue // nil: a receive queue of its own
	stage     *transport.Stage
	peers     [2]*transport.Peers // of A and of B
}

func (o options) withDefaults() options {
	def := func(p *uint8, v uint8) {
		if *p == 0 {
			*p = v
		}
	}
	if o.mtu == 0 {
		o.mtu = bth.MTU1024
	}
	if o.peerMTU == 0 {
		o.peerMTU = o.mtu
	}
	def(&o.rd, 4)
	def(&o.destRD, 4)
	def(&o.timeout, 14)
	def(&o.retry, 7)
	def(&o.rnrRetry, 7)
	def(&o.rnrTimer, 12)
	if o.psnA == 0 {
		o.psnA = 0x100
	}
	if o.psnB == 0 {
		o.psnB = 0x200
	}
	if o.access == 0 {
		o.access = uint32(allAccess)
	}
	if o.memAccess == 0 {
		o.memAccess = allAccess
	}
	if o.typ == 0 {
		o.typ = qpstate.RC
	}
	if o.qkey == 0 {
		o.qkey = udKey
	}
	if o.recvWR == 0 {
		o.recvWR = 64
	}
	if o.sendWR == 0 {
		o.sendWR = 64
	}
	if o.memSize == 0 {
		o.memSize = memSize
	}
	if o.zeroRetry {
		o.retry = 0
	}
	if o.noTimeout {
		o.timeout = 0
	}
	if o.noRD {
		o.rd, o.destRD = 0, 0
	}
	return o
}

func gid4(d byte) bth.GID { return bth.GID{10: 0xFF, 11: 0xFF, 12: 127, 13: 0, 14: 0, 15: d} }

// newEnd makes a queue pair in RESET.
func newEnd(t testing.TB, qpn bth.QPN, host byte, o options) *end {
	t.Helper()
	e := &end{t: t, qpn: qpn, gid: gid4(host), keys: mrtable.New(mrtable.Config{MaxRegions: 64, Secret: uint64(host)})}
	e.mem = make(mrtable.HeapMemory, o.memSize)
	for i := range e.mem {
		e.mem[i] = byte(i*7+i>>8) + 128*(host-1)
	}
	var err error
	if e.mr, err = e.keys.Register(1, e.mem, memBase, uint64(o.memSize), o.memAccess, 0); err != nil {
		t.Fatal(err)
	}
	if e.recv = o.srq; o.srq == nil {
		e.recv = wq.NewRecvQueue(o.recvWR)
	}
	e.ahs = handles{}
	e.slab = wq.NewSlab(0)
	e.cfg = transport.Config{
		Type: o.typ, QPN: qpn, PD: 1, Keys: e.keys, SendCQ: &e.sendCQ, RecvCQ: &e.recvCQ, Recv: e.recv,
		SRQ: o.srq != nil, AHs: e.ahs, Stage: o.stage,
		Cap:      qpstate.Cap{MaxSendWR: uint32(o.sendWR), MaxRecvWR: uint32(o.recvWR), MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 512},
		SQSigAll: o.sigAll, Slab: e.slab, Counters: &e.ctr, Window: o.window, MaxRDAtomic: 16,
	}
	if e.qp, err = transport.New(e.cfg); err != nil {
		t.Fatal(err)
	}
	return e
}

// to moves the queue pair to a state by the usual way.
func (e *end) to(s qpstate.State, peer *end, o options) {
	e.t.Helper()
	mtu, sq, rq := o.mtu, o.psnA, o.psnB
	if e.gid == gid4(2) {
		mtu, sq, rq = o.peerMTU, o.psnB, o.psnA
	}
	a := qpstate.Attr{
		PortNum: 1, AccessFlags: o.access, PathMTU: mtu, DestQPN: peer.qpn, RQPSN: rq, SQPSN: sq,
		MaxRDAtomic: o.rd, MaxDestRDAtomic: o.destRD, MinRNRTimer: o.rnrTimer,
		Timeout: o.timeout, RetryCnt: o.retry, RNRRetry: o.rnrRetry, QKey: o.qkey,
		AH: qpstate.AHAttr{DGID: peer.gid, IsGlobal: true, PortNum: 1, HopLimit: 64},
	}
	path := &transport.Path{Src: e.gid, Dst: peer.gid, SrcPort: 0xC123, HopLimit: 64, Peers: o.peers[0]}
	if e.gid == gid4(2) {
		path.Peers = o.peers[1]
	}
	steps := []struct {
		s qpstate.State
		m qpstate.Mask
	}{
		{qpstate.Init, qpstate.MaskPKeyIndex | qpstate.MaskPort | qpstate.MaskAccessFlags},
		{qpstate.RTR, qpstate.MaskAV | qpstate.MaskPathMTU | qpstate.MaskDestQPN | qpstate.MaskRQPSN | qpstate.MaskMaxDestRDAtomic | qpstate.MaskMinRNRTimer},
		{qpstate.RTS, qpstate.MaskTimeout | qpstate.MaskRetryCnt | qpstate.MaskRNRRetry | qpstate.MaskSQPSN | qpstate.MaskMaxQPRDAtomic},
	}
	for i := range steps {
		m := &steps[i].m
		switch o.typ {
		case qpstate.RC, qpstate.GSI:
		case qpstate.UC:
			*m &^= qpstate.MaskMaxDestRDAtomic | qpstate.MaskMinRNRTimer | qpstate.MaskTimeout |
				qpstate.MaskRetryCnt | qpstate.MaskRNRRetry | qpstate.MaskMaxQPRDAtomic
		case qpstate.UD:
			*m &= qpstate.MaskPKeyIndex | qpstate.MaskPort | qpstate.MaskSQPSN
			if i == 0 {
				*m |= qpstate.MaskQKey
			}
		}
	}
	if o.typ == qpstate.UD {
		e.ahs[1] = path
	}
	for _, st := range steps {
		if e.qp.State() >= s {
			return
		}
		if e.qp.State() >= st.s {
			continue
		}
		a.State = st.s
		p := path
		if st.m&qpstate.MaskAV == 0 {
			p = nil
		}
		if err := e.qp.Modify(start, &a, st.m|qpstate.MaskState, p); err != nil {
			e.t.Fatalf("modify to %v: %v", st.s, err)
		}
	}
}

// connected makes two queue pairs in RTS that know each other.
func connected(t testing.TB, o options) (a, b *end) {
	t.Helper()
	o = o.withDefaults()
	a, b = newEnd(t, 0x11, 1, o), newEnd(t, 0x22, 2, o)
	a.to(qpstate.RTS, b, o)
	b.to(qpstate.RTS, a, o)
	return a, b
}

// sge is an element of the end's own memory.
func (e *end) sge(off, n int) wq.SGE {
	return wq.SGE{Addr: memBase + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}
}

// post posts a send request.
func (e *end) post(now time.Time, wr wq.SendWR) {
	e.t.Helper()
	if err := e.qp.PostSend(now, &wr); err != nil {
		e.t.Fatalf("post %d: %v", wr.WRID, err)
	}
}

// postRecv posts receives of n bytes at off.
func (e *end) postRecv(now time.Time, id uint64, sg ...wq.SGE) {
	e.t.Helper()
	if err := e.recv.Push(&wq.RecvWR{WRID: id, SGList: sg}); err != nil {
		e.t.Fatalf("post receive %d: %v", id, err)
	}
	e.qp.PostRecv(now)
}

// poll returns the next packet as a copy, nil when there is none. Its ICRC is
// checked.
func (e *end) poll(now time.Time) []byte {
	e.t.Helper()
	n, tx := e.qp.PollTransmit(now, e.buf[:])
	if n == 0 {
		return nil
	}
	var p bth.Packet
	if err := p.Parse(e.buf[:n]); err != nil {
		e.t.Fatalf("sent a packet that does not parse: %v", err)
	}
	h := bth.NetHeader{Src: tx.Path.Src, Dst: tx.Path.Dst, SrcPort: tx.Path.SrcPort, DstPort: 4791}
	if want := bth.ICRC(h.Seed(n), p.Covered()); p.ICRC() != want || tx.ICRC != want {
		e.t.Fatalf("%v: ICRC %#x, told %#x, want %#x", p.Opcode, p.ICRC(), tx.ICRC, want)
	}
	f := p.BTH().Fields()
	if !f.MigReq || f.PKey != 0xFFFF || f.FECN || f.BECN || f.Resv6 != 0 || f.Resv7 != 0 || f.TVer != 0 ||
		!bytes.Equal(p.PadBytes(), make([]byte, p.Pad)) || !p.Aligned() {
		e.t.Fatalf("header fields %+v, pad %x", f, p.PadBytes())
	}
	if tx.Opcode != p.Opcode || tx.PSN != p.BTH().PSN() {
		e.t.Fatalf("told %v %v, built %v %v", tx.Opcode, tx.PSN, p.Opcode, p.BTH().PSN())
	}
	return append([]byte(nil), e.buf[:n]...)
}

// pollAll returns all packets that may leave now.
func (e *end) pollAll(now time.Time) (out [][]byte) {
	e.t.Helper()
	for b := e.poll(now); b != nil; b = e.poll(now) {
		out = append(out, b)
		if len(out) > 1<<20 {
			e.t.Fatal("endless transmission")
		}
	}
	return out
}

// handle gives the end a packet from peer.
func (e *end) handle(now time.Time, b []byte, from bth.GID) transport.Verdict {
	e.t.Helper()
	p := &e.parsed
	p.Src, p.Dst, p.TTL = from, e.gid, 64
	if err := p.Parse(b); err != nil {
		e.t.Fatalf("parse: %v", err)
	}
	return e.qp.HandlePacket(now, p)
}

// exchange moves packets between the two without loss until both are silent.
func exchange(now time.Time, a, b *end) {
	n := 0
	a.t.Helper()
	for moved := true; moved; {
		moved = false
		for _, d := range [2][2]*end{{a, b}, {b, a}} {
			for _, pkt := range d[0].pollAll(now) {
				d[1].handle(now, pkt, d[0].gid)
				moved = true
				n++
			}
		}
		if n > 1<<20 {
			a.t.Fatal("packets without end")
		}
	}
}

// packetText writes a packet in one line, as the scenarios do.
func packetText(b []byte) string { return scenario.PacketText(b) }

func texts(pkts [][]byte) (out []string) {
	for _, b := range pkts {
		out = append(out, packetText(b))
	}
	return out
}

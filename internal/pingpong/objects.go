package pingpong

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"github.com/softroce/softroce/pkg/verbs"
)

// ErrTooLong is wrapped by the error of a message that no datagram takes.
var ErrTooLong = errors.New("the message is too long for a datagram")

// objects are what the program makes of its adapter.
type objects struct {
	cfg     *Config
	dev     *verbs.Device
	pd      *verbs.PD
	ch      *verbs.CompChannel // nil when polling
	cq      *verbs.CQ
	mr      *verbs.MR
	srq     *verbs.SRQ // nil but with SRQ
	lines   []line
	inline  bool
	head    int // bytes in front of a received message
	slots   int // places in mr for a received message, each stride bytes
	stride  int
	sendOff int // where in mr, after these, the message to send is
	last    int // slot of the message that came last
}

// line is one queue pair and its message's way.
type line struct {
	qp      *verbs.QP
	ah      *verbs.AH // UD
	us      Endpoint
	peer    Endpoint
	pending int // of sendID and recvID, what must come before the message goes again
	slot    int // where its message came to last
	echo    int // server: from where it was sent back last
}

// open makes everything, takes the queue pairs to INIT and posts the receives.
// What was made is to be closed also after an error.
func (o *objects) open() (err error) {
	c := o.cfg
	attr, err := o.dev.Query()
	if err != nil {
		return err
	}
	port, err := o.dev.QueryPort(1)
	if err != nil {
		return err
	}
	if err := o.fit(port.ActiveMTU); err != nil {
		return err
	}
	gid, err := o.dev.QueryGID(int(c.GIDIndex))
	if err != nil {
		return err
	}
	if err := o.openShared(); err != nil {
		return err
	}
	o.inline = c.Size <= int(attr.MaxInline)
	for range c.QPs {
		qp, err := o.openQP()
		if err != nil {
			return err
		}
		us := Endpoint{LID: port.LID, QPN: qp.Num(), PSN: verbs.PSN(rand.Uint32() & 0xFFFFFF), GID: gid}
		o.lines = append(o.lines, line{qp: qp, us: us})
		if err := o.toInit(qp); err != nil {
			return err
		}
	}
	o.prepare()
	if o.srq == nil {
		return o.post(0, c.RxDepth)
	}
	for i := range o.slots {
		if err := o.post(i, 1); err != nil {
			return err
		}
	}
	return nil
}

// fit sees that a datagram takes the message, whose MTU is the port's.
func (o *objects) fit(mtu verbs.MTU) error {
	if o.cfg.Service != UD {
		return nil
	}
	o.head, o.cfg.MTU = verbs.GRHSize, mtu
	if o.cfg.Size > mtu.Bytes() {
		return fmt.Errorf("pingpong: %w: %d bytes, and the port's MTU is %d (see -s)", ErrTooLong, o.cfg.Size, mtu.Bytes())
	}
	return nil
}

// place says where messages come to. One queue pair has one slot: its peer sends
// when the message before is back. With many and one receive queue, a message
// that is yet to be sent back must not be where another one comes to, so that
// each receive has a slot; there are fewer receives than asked for when all those
// would take much memory.
func (o *objects) place() {
	o.stride = max((o.head+o.cfg.Size+63)&^63, 64)
	o.slots = 1
	if o.cfg.Service == SRQ {
		o.slots = min(o.cfg.RxDepth, max(2*o.cfg.QPs, slotMemory/o.stride))
	}
	o.sendOff = o.slots * o.stride
}

// openShared makes what all queue pairs share.
func (o *objects) openShared() (err error) {
	c := o.cfg
	if o.pd, err = o.dev.AllocPD(); err != nil {
		return err
	}
	o.place()
	if o.mr, err = o.pd.AllocMR(max(o.sendOff+c.Size, 1), verbs.AccessLocalWrite); err != nil {
		return err
	}
	if c.Events {
		if o.ch, err = o.dev.CreateCompChannel(); err != nil {
			return err
		}
	}
	if o.cq, err = o.dev.CreateCQ(c.RxDepth+c.QPs, o.ch, 0); err != nil {
		return err
	}
	if c.Service == SRQ {
		o.srq, err = o.pd.CreateSRQ(verbs.SRQAttr{MaxWR: uint32(c.RxDepth), MaxSGE: 1})
	}
	return err
}

func (o *objects) openQP() (*verbs.QP, error) {
	init := verbs.QPInitAttr{
		Type: o.cfg.Service.qpType(), SendCQ: o.cq, RecvCQ: o.cq, SRQ: o.srq,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1},
	}
	if o.srq == nil {
		init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = uint32(o.cfg.RxDepth), 1
	}
	if o.inline {
		init.Cap.MaxInlineData = uint32(o.cfg.Size)
	}
	return o.pd.CreateQP(&init)
}

func (o *objects) toInit(qp *verbs.QP) error {
	if o.cfg.Service != UD {
		return qp.ToInit(0)
	}
	init := verbs.QPAttr{State: verbs.StateInit, PortNum: 1, QKey: qkey}
	return qp.Modify(&init, verbs.QPStateMask|verbs.QPPKeyIndexMask|verbs.QPPortMask|verbs.QPQKeyMask)
}

// connect makes each queue pair ready to talk with the peer's.
func (o *objects) connect(peers []Endpoint) error {
	for i := range o.lines {
		l := &o.lines[i]
		l.peer = peers[i]
		var err error
		if o.cfg.Service == UD {
			err = o.readyUD(l)
		} else {
			err = o.connectQP(l)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// connectQP takes a connected queue pair to RTS with the attributes of
// rdma-core's programs, but for the hop limit, 1 there.
func (o *objects) connectQP(l *line) error {
	rtr := verbs.QPAttr{
		State: verbs.StateRTR, PathMTU: o.cfg.MTU, DestQPN: l.peer.QPN, RQPSN: l.peer.PSN, MaxDestRDAtomic: 1, MinRNRTimer: 12,
		AH: o.path(l.peer),
	}
	toRTR := verbs.QPStateMask | verbs.QPAVMask | verbs.QPPathMTUMask | verbs.QPDestQPNMask | verbs.QPRQPSNMask
	rts := verbs.QPAttr{State: verbs.StateRTS, Timeout: 14, RetryCnt: 7, RNRRetry: 7, SQPSN: l.us.PSN, MaxRDAtomic: 1}
	toRTS := verbs.QPStateMask | verbs.QPSQPSNMask
	if o.cfg.Service.reliable() {
		toRTR |= verbs.QPMaxDestRDAtomicMask | verbs.QPMinRNRTimerMask
		toRTS |= verbs.QPTimeoutMask | verbs.QPRetryCntMask | verbs.QPRNRRetryMask | verbs.QPMaxQPRDAtomicMask
	}
	if err := l.qp.Modify(&rtr, toRTR); err != nil {
		return err
	}
	return l.qp.Modify(&rts, toRTS)
}

// readyUD takes a datagram queue pair to RTS and makes the handle to the peer.
func (o *objects) readyUD(l *line) (err error) {
	if err := l.qp.Modify(&verbs.QPAttr{State: verbs.StateRTR}, verbs.QPStateMask); err != nil {
		return err
	}
	rts := verbs.QPAttr{State: verbs.StateRTS, SQPSN: l.us.PSN}
	if err := l.qp.Modify(&rts, verbs.QPStateMask|verbs.QPSQPSNMask); err != nil {
		return err
	}
	path := o.path(l.peer)
	l.ah, err = o.pd.CreateAH(&path)
	return err
}

func (o *objects) path(peer Endpoint) verbs.AHAttr {
	return verbs.AHAttr{
		DGID: peer.GID, SGIDIndex: o.cfg.GIDIndex, HopLimit: 64, IsGlobal: true, SL: o.cfg.SL, DLID: peer.LID, PortNum: 1,
	}
}

// post posts n receives into a slot.
func (o *objects) post(slot, n int) error {
	wr := verbs.RecvWR{WRID: uint64(slot)<<slotShift | recvID, SGList: o.sges(slot*o.stride, o.head+o.cfg.Size)}
	post := o.lines[0].qp.PostRecv
	if o.srq != nil {
		post = o.srq.PostRecv
	}
	for range n {
		if _, err := post(wr); err != nil {
			return err
		}
	}
	return nil
}

func (o *objects) sges(off, size int) []verbs.SGE {
	if size == 0 {
		return nil
	}
	return []verbs.SGE{o.mr.SGE(off, size)}
}

// send posts the message on a line: the client's own, the server's echo of what
// it received.
func (o *objects) send(l *line) error {
	l.echo = l.slot // the next message may come before this one is acknowledged
	off := l.echo*o.stride + o.head
	if o.cfg.Host != "" {
		off = o.sendOff
	}
	wr := verbs.SendWR{WRID: sendID, Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: o.sges(off, o.cfg.Size)}
	if o.inline {
		wr.Flags |= verbs.SendInline
	}
	if l.ah != nil {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = l.ah.Handle(), l.peer.QPN, qkey
	}
	_, err := l.qp.PostSend(wr)
	return err
}

// line is the one of a queue pair; nil: of none.
func (o *objects) line(qpn verbs.QPN) *line {
	for i := range o.lines {
		if o.lines[i].us.QPN == qpn {
			return &o.lines[i]
		}
	}
	return nil
}

// Bytes of the message, as rdma-core's programs fill it: one byte everywhere, and
// with validation pageByte at the start of each page. That of ibv_srq_pingpong is
// all zero.
const (
	fillByte = 0x7B
	pageByte = 0
)

func (s Service) fill() byte {
	if s == SRQ {
		return 0
	}
	return fillByte
}

// prepare writes the message, and into the receive buffers what no message is.
func (o *objects) prepare() {
	fill := o.cfg.Service.fill()
	recv, msg := o.mr.Bytes()[:o.sendOff], o.message()
	for i := range recv {
		recv[i] = ^fill
	}
	for i := range msg {
		msg[i] = fill
	}
	if o.cfg.Check {
		for i := 0; i < len(msg); i += os.Getpagesize() {
			msg[i] = pageByte
		}
	}
}

// message is the message that a client sends, and that comes back.
func (o *objects) message() []byte { return o.mr.Bytes()[o.sendOff : o.sendOff+o.cfg.Size] }

// received is the message that came last.
func (o *objects) received() []byte {
	off := o.last*o.stride + o.head
	return o.mr.Bytes()[off : off+o.cfg.Size]
}

// badPages compares what was received last with the message and returns the
// numbers of the pages that differ.
func (o *objects) badPages() []int {
	var bad []int
	page := os.Getpagesize()
	recv, msg := o.received(), o.message()
	for i := 0; i < len(recv); i += page {
		end := min(i+page, len(recv))
		if string(recv[i:end]) != string(msg[i:end]) {
			bad = append(bad, i/page)
		}
	}
	return bad
}

// close gives everything back; the adapter does what it cannot.
func (o *objects) close() {
	for _, l := range o.lines {
		_ = l.qp.Destroy()
		if l.ah != nil {
			_ = l.ah.Destroy()
		}
	}
	if o.srq != nil {
		_ = o.srq.Destroy()
	}
	if o.cq != nil {
		_ = o.cq.Destroy()
	}
	if o.ch != nil {
		_ = o.ch.Destroy()
	}
	if o.mr != nil {
		_ = o.mr.Dereg()
	}
	if o.pd != nil {
		_ = o.pd.Dealloc()
	}
}

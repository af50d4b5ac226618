package pingpong

import (
	"math/rand/v2"
	"os"

	"github.com/softroce/softroce/pkg/verbs"
)

// objects are what the program makes of its adapter.
type objects struct {
	cfg     *Config
	dev     *verbs.Device
	pd      *verbs.PD
	ch      *verbs.CompChannel // nil when polling
	cq      *verbs.CQ
	mr      *verbs.MR
	qp      *verbs.QP
	us      Endpoint
	inline  bool
	sendOff int // where in mr the message to send is
}

// open makes everything, posts the receives and takes the queue pair to INIT.
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
	if o.pd, err = o.dev.AllocPD(); err != nil {
		return err
	}
	o.sendOff = (c.Size + 63) &^ 63
	if o.mr, err = o.pd.AllocMR(max(o.sendOff+c.Size, 1), verbs.AccessLocalWrite); err != nil {
		return err
	}
	if c.Events {
		if o.ch, err = o.dev.CreateCompChannel(); err != nil {
			return err
		}
	}
	if o.cq, err = o.dev.CreateCQ(c.RxDepth+1, o.ch, 0); err != nil {
		return err
	}
	o.inline = c.Size <= int(attr.MaxInline)
	qcap := verbs.QPCap{MaxSendWR: 1, MaxRecvWR: uint32(c.RxDepth), MaxSendSGE: 1, MaxRecvSGE: 1}
	if o.inline {
		qcap.MaxInlineData = uint32(c.Size)
	}
	if o.qp, err = o.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: o.cq, RecvCQ: o.cq, Cap: qcap}); err != nil {
		return err
	}
	if err := o.qp.ToInit(0); err != nil {
		return err
	}
	gid, err := o.dev.QueryGID(int(c.GIDIndex))
	if err != nil {
		return err
	}
	o.us = Endpoint{LID: port.LID, QPN: o.qp.Num(), PSN: verbs.PSN(rand.Uint32() & 0xFFFFFF), GID: gid}
	o.prepare()
	return o.post(c.RxDepth)
}

// connect takes the queue pair to RTS with the attributes of ibv_rc_pingpong,
// but for the hop limit, 1 there.
func (o *objects) connect(peer Endpoint) error {
	rtr := verbs.QPAttr{
		State: verbs.StateRTR, PathMTU: o.cfg.MTU, DestQPN: peer.QPN, RQPSN: peer.PSN, MaxDestRDAtomic: 1, MinRNRTimer: 12,
		AH: verbs.AHAttr{
			DGID: peer.GID, SGIDIndex: o.cfg.GIDIndex, HopLimit: 64, IsGlobal: true, SL: o.cfg.SL, DLID: peer.LID, PortNum: 1,
		},
	}
	err := o.qp.Modify(&rtr, verbs.QPStateMask|verbs.QPAVMask|verbs.QPPathMTUMask|verbs.QPDestQPNMask|verbs.QPRQPSNMask|
		verbs.QPMaxDestRDAtomicMask|verbs.QPMinRNRTimerMask)
	if err != nil {
		return err
	}
	rts := verbs.QPAttr{State: verbs.StateRTS, Timeout: 14, RetryCnt: 7, RNRRetry: 7, SQPSN: o.us.PSN, MaxRDAtomic: 1}
	return o.qp.Modify(&rts, verbs.QPStateMask|verbs.QPTimeoutMask|verbs.QPRetryCntMask|verbs.QPRNRRetryMask|
		verbs.QPSQPSNMask|verbs.QPMaxQPRDAtomicMask)
}

// post posts n receives.
func (o *objects) post(n int) error {
	wr := verbs.RecvWR{WRID: recvID, SGList: o.sges(0)}
	for range n {
		if _, err := o.qp.PostRecv(wr); err != nil {
			return err
		}
	}
	return nil
}

func (o *objects) sges(off int) []verbs.SGE {
	if o.cfg.Size == 0 {
		return nil
	}
	return []verbs.SGE{o.mr.SGE(off, o.cfg.Size)}
}

// send posts the message: the client's own, the server's echo of what it
// received.
func (o *objects) send() error {
	off := 0
	if o.cfg.Host != "" {
		off = o.sendOff
	}
	wr := verbs.SendWR{WRID: sendID, Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: o.sges(off)}
	if o.inline {
		wr.Flags |= verbs.SendInline
	}
	_, err := o.qp.PostSend(wr)
	return err
}

// Bytes of the message, as ibv_rc_pingpong fills it: fillByte everywhere, and
// with validation pageByte at the start of each page.
const (
	fillByte = 0x7B
	pageByte = 0
)

// prepare writes the message, and into the receive buffer what no message is.
func (o *objects) prepare() {
	recv, msg := o.mr.Bytes()[:o.cfg.Size], o.message()
	for i := range recv {
		recv[i] = ^byte(fillByte)
	}
	for i := range msg {
		msg[i] = fillByte
	}
	if o.cfg.Check {
		for i := 0; i < len(msg); i += os.Getpagesize() {
			msg[i] = pageByte
		}
	}
}

// message is the message that a client sends, and that comes back.
func (o *objects) message() []byte { return o.mr.Bytes()[o.sendOff : o.sendOff+o.cfg.Size] }

// badPages compares what was received last with the message and returns the
// numbers of the pages that differ.
func (o *objects) badPages() []int {
	var bad []int
	page := os.Getpagesize()
	recv, msg := o.mr.Bytes()[:o.cfg.Size], o.message()
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
	if o.qp != nil {
		_ = o.qp.Destroy()
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

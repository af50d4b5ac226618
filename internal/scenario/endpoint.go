package scenario

import (
	"fmt"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// What every scenario finds.
const (
	memBase  = 0x10000 // the region's first address
	memSize  = 1 << 20
	firstQPN = 0x11 // of the queue pair without a name; those with one count on
	peerQPN  = 0x22 // of its peer
	udpPort  = 0xC123
	queueLen = 64
	maxSGE   = 4
	inline   = 512

	allAccess = mrtable.AccessLocalWrite | mrtable.AccessRemoteWrite | mrtable.AccessRemoteRead | mrtable.AccessRemoteAtomic
)

var (
	start   = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	ownGID  = bth.GID{10: 0xFF, 11: 0xFF, 12: 127, 15: 1}
	peerGID = bth.GID{10: 0xFF, 11: 0xFF, 12: 127, 15: 2}
)

// completions keeps what a queue pair completes until it is told.
type completions struct {
	wcs       []cq.WC
	solicited []bool
}

// Complete implements transport.Sink.
func (c *completions) Complete(wc *cq.WC, solicited bool) {
	c.wcs = append(c.wcs, *wc)
	c.solicited = append(c.solicited, solicited)
}

func (c *completions) clear() { c.wcs, c.solicited = c.wcs[:0], c.solicited[:0] }

// endpoint is a queue pair under test.
type endpoint struct {
	name   string // "" of the first; output lines of the others begin with it
	typ    qpstate.Type
	qp     *transport.QP
	qpn    bth.QPN
	peer   bth.QPN
	recv   *wq.RecvQueue // its own, or the shared one
	sendCQ completions
	recvCQ completions
	state  qpstate.State
	attr   qpstate.Attr // what connect says
	buf    [transport.TransmitSpace]byte
}

// types are the words for the services.
var types = map[string]qpstate.Type{"rc": qpstate.RC, "uc": qpstate.UC, "ud": qpstate.UD}

// newEndpoint makes a queue pair as the words of a connect say, and moves it to
// the state that they name.
func (s *script) newEndpoint(name string, w *words) (*endpoint, error) {
	n := len(s.endpoints)
	e := &endpoint{name: name, qpn: bth.QPN(firstQPN + n), peer: bth.QPN(peerQPN + n), recv: wq.NewRecvQueue(queueLen)}
	var ok bool
	if e.typ, ok = types[w.text("type", "rc")]; !ok {
		return nil, fmt.Errorf("type=%s: want rc, uc or ud", w.value["type"])
	}
	if w.flag("srq") {
		e.recv = s.sharedQueue()
	}
	cfg := transport.Config{
		Type: e.typ, AHs: e, SRQ: e.recv == s.srq, QPN: e.qpn, PD: 1, Keys: s.keys, SendCQ: &e.sendCQ, RecvCQ: &e.recvCQ, Recv: e.recv,
		Cap:      qpstate.Cap{MaxSendWR: queueLen, MaxRecvWR: queueLen, MaxSendSGE: maxSGE, MaxRecvSGE: maxSGE, MaxInlineData: inline},
		SQSigAll: w.flag("sigall"), Window: int(w.num("window", 0)), Counters: &s.counters, MaxRDAtomic: 16,
	}
	mtu, ok := bth.MTUFromBytes(int(w.num("mtu", 1024)))
	if !ok {
		return nil, fmt.Errorf("mtu=%s: not a path MTU", w.value["mtu"])
	}
	e.attr = qpstate.Attr{
		PortNum: 1, PathMTU: mtu, DestQPN: e.peer, QKey: bth.QKey(w.num("qkey", 0x1234)),
		AccessFlags: uint32(w.num("access", uint64(allAccess))),
		SQPSN:       bth.PSN(w.num("sqpsn", 0x100)), RQPSN: bth.PSN(w.num("rqpsn", 0x200)),
		MaxRDAtomic: w.small("rd", 4), MaxDestRDAtomic: w.small("destrd", 4), MinRNRTimer: w.small("rnrtimer", 12),
		Timeout: w.small("timeout", 14), RetryCnt: w.small("retry", 7), RNRRetry: w.small("rnrretry", 7),
		AH: qpstate.AHAttr{DGID: peerGID, IsGlobal: true, PortNum: 1, HopLimit: 64},
	}
	to, ok := states[w.text("state", "rts")]
	if !ok {
		return nil, fmt.Errorf("state=%s: no such state", w.value["state"])
	}
	if err := w.done(); err != nil {
		return nil, err
	}
	var err error
	if e.qp, err = transport.New(cfg); err != nil {
		return nil, err
	}
	err = e.to(s.now, to)
	e.state = e.qp.State()
	return e, err
}

// step is a transition on the usual way and the attributes that it needs.
type step struct {
	to   qpstate.State
	mask qpstate.Mask
}

// ways are the usual ways from RESET to RTS.
var ways = map[qpstate.Type][]step{
	qpstate.RC: {
		{qpstate.Init, qpstate.MaskPKeyIndex | qpstate.MaskPort | qpstate.MaskAccessFlags},
		{qpstate.RTR, qpstate.MaskAV | qpstate.MaskPathMTU | qpstate.MaskDestQPN | qpstate.MaskRQPSN | qpstate.MaskMaxDestRDAtomic | qpstate.MaskMinRNRTimer},
		{qpstate.RTS, qpstate.MaskTimeout | qpstate.MaskRetryCnt | qpstate.MaskRNRRetry | qpstate.MaskSQPSN | qpstate.MaskMaxQPRDAtomic},
	},
	qpstate.UC: {
		{qpstate.Init, qpstate.MaskPKeyIndex | qpstate.MaskPort | qpstate.MaskAccessFlags},
		{qpstate.RTR, qpstate.MaskAV | qpstate.MaskPathMTU | qpstate.MaskDestQPN | qpstate.MaskRQPSN},
		{qpstate.RTS, qpstate.MaskSQPSN},
	},
	qpstate.UD: {
		{qpstate.Init, qpstate.MaskPKeyIndex | qpstate.MaskPort | qpstate.MaskQKey},
		{qpstate.RTR, 0},
		{qpstate.RTS, qpstate.MaskSQPSN},
	},
}

// to moves the queue pair to a state by the usual way.
func (e *endpoint) to(now time.Time, s qpstate.State) error {
	path := &transport.Path{Src: ownGID, Dst: peerGID, SrcPort: udpPort, HopLimit: 64}
	for _, st := range ways[e.typ] {
		if e.qp.State() >= s {
			return nil
		}
		a, p := e.attr, path
		a.State = st.to
		if st.mask&qpstate.MaskAV == 0 {
			p = nil
		}
		if err := e.qp.Modify(now, &a, st.mask|qpstate.MaskState, p); err != nil {
			return err
		}
	}
	return nil
}

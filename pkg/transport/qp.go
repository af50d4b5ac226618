package transport

import (
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/wq"
)

// A QP is one queue pair's protocol. Make it with New; it is used by one
// goroutine at a time.
type QP struct {
	cfg   Config
	state qpstate.State
	attr  qpstate.Attr
	path  Path
	mtu   uint32 // path MTU in bytes
	seeds seedCache
	peer  *peer // the windows to the peer; nil without a path
	line  place // where it waits for one of them
	sq    *wq.SendQueue
	msgs  *messageTable // opcodes of its service's messages
	req   requester
	rsp   responder
	wc    cq.WC           // scratch for completions
	value [atomicLen]byte // scratch for an atomic's answer
	grh   [grhLen]byte    // likewise for a datagram's network header

	answerNext bool // PollTransmit alternates between responses and requests
	last       sentLast
	ackPassed  bool // a request left before an acknowledgement that waits
	noted      uint32
	events     []Event
	stats      Stats
	history    *History // nil: nothing happened
}

// New makes a queue pair in RESET. Errors wrap ErrConfig.
func New(cfg Config) (*QP, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Slab == nil {
		cfg.Slab = wq.NewSlab(0)
	}
	if cfg.Counters == nil {
		cfg.Counters = new(Counters)
	}
	if cfg.MaxRDAtomic == 0 {
		cfg.MaxRDAtomic = defaultRDAtomic
	}
	if cfg.Window == 0 {
		cfg.Window = defaultWindow
	}
	q := &QP{cfg: cfg, sq: wq.NewSendQueue(cfg.Slab, int(cfg.Cap.MaxSendWR)), msgs: &messageOpcodes}
	if cfg.Type == qpstate.UC {
		q.msgs = &ucMessageOpcodes
	}
	q.rsp.recv.SGList = make([]wq.SGE, 0, cfg.Cap.MaxRecvSGE)
	q.becomeReset()
	return q, nil
}

// QPN is the queue pair's number.
func (q *QP) QPN() bth.QPN { return q.cfg.QPN }

// Type is the queue pair's type.
func (q *QP) Type() qpstate.Type { return q.cfg.Type }

// State is the queue pair's state.
func (q *QP) State() qpstate.State { return q.state }

// Stats is what the queue pair counted; the QP goes on counting in it.
func (q *QP) Stats() *Stats { return &q.stats }

// PostSend queues a copy of wr. Errors: ErrState; ErrFull, then nothing
// changed and the caller may try again once something completed; those of
// wq.Check, which tell of a request that no library lets through. In ERR the request completes with WR_FLUSH_ERR.
func (q *QP) PostSend(now time.Time, wr *wq.SendWR) error {
	if !q.state.AllowsPostSend() {
		return ErrState
	}
	c := &q.cfg.Cap
	if err := wq.Check(uint8(q.cfg.Type), wr, wq.Limits{MaxSGE: c.MaxSendSGE, MaxInline: c.MaxInlineData}); err != nil {
		return err
	}
	if q.state.Flushes() {
		q.completeSend(wr, cq.WRFlushErr)
		return nil
	}
	if err := q.sq.Push(wr); err != nil {
		return err
	}
	e := q.sq.At(q.sq.Len() - 1)
	q.measure(e)
	return nil
}

// measure notes the length of an entry and how many PSNs it takes.
func (q *QP) measure(e *wq.WQE) {
	switch {
	case isLocal(e.Opcode):
	case q.cfg.Type == qpstate.UD:
		e.User[userLength], e.User[userPackets] = e.Length(), 1
	default:
		e.User[userLength] = e.Length()
		e.User[userPackets] = uint64(q.packets(e.Length()))
	}
}

// SendsWaiting is the number of send requests that are not done with.
func (q *QP) SendsWaiting() int { return q.sq.Len() }

// PostRecv tells that Recv has something. It matters in ERR only, where posted
// receives complete with WR_FLUSH_ERR, so many in one call: see Flushing.
func (q *QP) PostRecv(now time.Time) {
	if q.state.FlushesRecv() && !q.cfg.SRQ {
		q.flushRecv()
	}
}

// HandlePacket takes a received packet whose ICRC was verified; p is not kept.
func (q *QP) HandlePacket(now time.Time, p *Packet) Verdict {
	n := uint64(len(p.Bytes()))
	c := q.cfg.Counters
	c.RcvdPkts++
	c.RcvdBytes += n
	q.stats.RcvdPkts++
	q.stats.RcvdBytes += n
	v := q.route(now, p)
	c.Verdicts[v]++
	if v > Duplicate {
		q.past().strange(now, v, p)
		if v == OutOfSequence || v == DropWaiting {
			q.stats.OutOfSequence++
		}
	}
	return v
}

// classes are the opcode classes of the types of queue pairs.
var classes = [...]bth.Class{qpstate.RC: bth.ClassRC, qpstate.UC: bth.ClassUC, qpstate.UD: bth.ClassUD}

// route applies what holds for every packet (transport acceptance, IBTA Vol 1
// §9.6), then hands requests to the service's responder and responses to the
// completer.
func (q *QP) route(now time.Time, p *Packet) Verdict {
	if p.Info == nil {
		return DropMalformed
	}
	if p.Info.Class != classes[q.cfg.Type] {
		return DropOpcodeClass
	}
	accepts := q.state.ReceivesRequests()
	if p.Info.Response {
		accepts = q.state.ProcessesResponses()
	}
	switch {
	case !accepts:
		return DropState
	case q.cfg.Type == qpstate.UD:
		return q.handleDatagram(p)
	case p.Src != q.path.Dst || p.Dst != q.path.Src:
		return DropAddress
	case !bth.DefaultPKey.Match(p.BTH().PKey()):
		return DropPKey
	}
	if q.state == qpstate.RTR && !q.rsp.heard {
		q.rsp.heard = true
		q.event(Event{Kind: CommEst})
	}
	switch {
	case q.cfg.Type == qpstate.UC:
		return q.handleUnacknowledged(p)
	case p.Info.Response:
		return q.handleResponse(now, p)
	}
	return q.handleRequest(now, p)
}

// nextRequest builds the next request packet of the queue pair's service.
func (q *QP) nextRequest(now time.Time, buf []byte, tx *Transmit) int {
	switch q.cfg.Type {
	case qpstate.UC:
		return q.pollUnacknowledged(buf, tx)
	case qpstate.UD:
		return q.pollDatagram(buf, tx)
	case qpstate.RC, qpstate.GSI:
	}
	return q.pollRequest(now, buf, tx)
}

// HandleTimeout does what is due at now; calling it early does no harm.
func (q *QP) HandleTimeout(now time.Time) {
	q.lookAtLine(now)
	q.expire(now)
}

// NextTimeout is when HandleTimeout wants to be called; zero: not at all.
func (q *QP) NextTimeout() time.Time {
	d := q.req.deadline()
	if u := q.line.until; !u.IsZero() && (d.IsZero() || u.Before(d)) {
		return u
	}
	return d
}

// PollTransmit builds the next packet in buf, a whole UDP payload with the ICRC
// for IP identification 0, and counts it as sent. n is its length, 0 when there
// is nothing to send until the next call of another method, unless LocalWaiting
// says otherwise. buf has at least TransmitSpace bytes, or nothing is built; it is
// not kept.
func (q *QP) PollTransmit(now time.Time, buf []byte) (n int, tx Transmit) {
	if len(buf) < TransmitSpace {
		return 0, tx
	}
	buf = buf[:TransmitSpace:TransmitSpace]
	// An acknowledgement goes first, but for a small message; a stream of READ
	// responses takes turns with own requests.
	answers := q.rsp.hasAnswers()
	first := q.answerNext
	if q.rsp.acknowledges() {
		first = q.ackPassed || !q.ackMayFollow()
	}
	if answers && first {
		n, tx = q.pollResponse(now, buf)
		answers = false
	}
	if n == 0 {
		n = q.nextRequest(now, buf, &tx)
	}
	if n == 0 && answers {
		n, tx = q.pollResponse(now, buf)
	}
	if n == 0 {
		return 0, tx
	}
	if tx.Path == nil {
		tx.Path = &q.path
	}
	q.answerNext = tx.Opcode.Info().Request
	q.last = sentLast{tx.PSN, tx.Opcode, tx.Resend}
	q.ackPassed = q.answerNext && q.rsp.acknowledges()
	q.cfg.Counters.SentPkts++
	q.cfg.Counters.SentBytes += uint64(n)
	q.stats.SentPkts++
	q.stats.SentBytes += uint64(n)
	return n, tx
}

// Fatal moves the queue pair to ERR after a fault that is not the peer's: its
// completion queue overflowed, its memory is gone (fault class G).
func (q *QP) Fatal(now time.Time) {
	switch q.state {
	case qpstate.Err:
		q.rsp.dropAnswers()
		return
	case qpstate.Reset:
		return // it has nothing to lose
	case qpstate.Init, qpstate.RTR, qpstate.RTS, qpstate.SQD, qpstate.SQE:
	}
	q.trouble(Trouble{Kind: TroubleFatal})
	q.becomeErr(false)
	q.event(Event{Kind: QPFatal})
}

// Close gives back what the queue pair holds of the slab, without completions.
// The queue pair is then in RESET.
func (q *QP) Close() { q.becomeReset() }

package verbs

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/devctl"
	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/wq"
)

// QPInitAttr says what queue pair to make (ibv_qp_init_attr).
type QPInitAttr struct {
	Type QPType
	// SendCQ and RecvCQ are required; they may be the same.
	SendCQ, RecvCQ *CQ
	// SRQ, unless nil, is where receives come from; those of Cap then mean
	// nothing, and PostRecv is refused.
	SRQ *SRQ
	// Cap are the sizes asked for; CreateQP returns at least these.
	Cap QPCap
	// SQSigAll makes every send request signaled.
	SQSigAll bool
	// SendOps are the operations that WRStart's batches will use
	// (ibv_qp_init_attr_ex.send_ops_flags). 0: not said, all are allowed.
	SendOps SendOps
}

// QP is a queue pair (ibv_qp).
type QP struct {
	dev    *Device
	pd     *PD
	handle uint32
	qpn    QPN
	typ    QPType
	cap    QPCap
	sigAll bool
	sendCQ *CQ
	recvCQ *CQ
	srq    *SRQ // nil: receives of its own
	ops    SendOps
	bell   *uapi.ProgramDoorbell
	index  uint32
	wake   *shm.Doorbell

	mu     sync.Mutex
	state  QPState
	closed bool
	sq     *uapi.SQProducer
	rq     *uapi.RQProducer // nil with an SRQ
	sent   outstanding
	recvs  outstanding
	inline []byte
	wr     SendWR    // the request that is being posted
	binds  []wq.Bind // of requests that are put and not published
	batch  Batch

	formerSend, formerRecv uint64 // completions before these are of a life before RESET

	asyncAcks devctl.Acks
}

// CreateQP makes a queue pair in the RESET state (ibv_create_qp). EINVAL: an
// attribute is over a limit, or an object is of another device; EOPNOTSUPP: a
// type that the adapter does not have, or operations that the type does not
// have; ENOMEM: a limit is reached.
func (p *PD) CreateQP(init *QPInitAttr) (*QP, error) {
	const op = "create QP"
	d := p.dev
	if init.SendCQ == nil || init.RecvCQ == nil || init.SendCQ.dev != d || init.RecvCQ.dev != d {
		return nil, invalid(op, "send_cq and recv_cq must be completion queues of this device")
	}
	if init.SRQ != nil && init.SRQ.pd.dev != d {
		return nil, invalid(op, "the shared receive queue is of another device")
	}
	if no := init.SendOps &^ sendOpsOf(init.Type); no != 0 {
		return nil, &Error{Op: op, Errno: unix.EOPNOTSUPP, Text: fmt.Sprintf("send operations %#x: a queue pair of type %v does not have them", uint64(no), init.Type)}
	}
	req := uapi.CreateQPRequest{
		PD: p.handle, Type: init.Type, SendCQ: init.SendCQ.handle, RecvCQ: init.RecvCQ.handle,
		Cap: init.Cap, SQSigAll: init.SQSigAll,
	}
	if init.SRQ != nil {
		req.SRQ, req.Cap.MaxRecvWR, req.Cap.MaxRecvSGE = init.SRQ.handle, 0, 0
	}
	var rep uapi.CreateQPReply
	d.ringMu.Lock()
	defer d.ringMu.Unlock()
	fds, err := d.ctl.call(op, uapi.OpCreateQP, &req, &rep, nil)
	if err != nil {
		return nil, err
	}
	q := &QP{
		dev: d, pd: p, handle: rep.Handle, qpn: rep.QPN, typ: init.Type, cap: rep.Cap, sigAll: init.SQSigAll,
		sendCQ: init.SendCQ, recvCQ: init.RecvCQ, srq: init.SRQ, ops: init.SendOps, index: rep.DoorbellIndex,
	}
	if q.srq != nil {
		q.cap.MaxRecvWR, q.cap.MaxRecvSGE = 0, 0
	}
	q.batch.q = q
	if err := q.attach(op, &rep, fds); err != nil {
		return nil, err
	}
	return q, nil
}

// attach maps the rings and makes the queue pair known.
func (q *QP) attach(op string, rep *uapi.CreateQPReply, fds []int) error {
	d := q.dev
	if int(rep.Worker) >= len(d.bells) {
		closeAll(fds)
		return &Error{Op: op, Errno: unix.EPROTO, Text: "the adapter named a worker that it does not have"}
	}
	q.bell, q.wake = d.bells[rep.Worker], d.wakes[rep.Worker]
	refs := []uapi.RingRef{rep.SQ, rep.RQ}
	if q.srq != nil {
		refs = refs[:1]
	}
	mem, err := d.ringMemory(op, fds, refs...)
	if err != nil {
		return err
	}
	if q.sq, err = uapi.NewSQProducer(mem[0], rep.SQ); err != nil {
		return invalid(op, "%v", err)
	}
	if q.srq == nil {
		if q.rq, err = uapi.NewRQProducer(mem[1], rep.RQ); err != nil {
			return invalid(op, "%v", err)
		}
	}
	q.sent.init(q.cap.MaxSendWR)
	q.recvs.init(q.cap.MaxRecvWR)
	q.inline = make([]byte, 0, q.cap.MaxInlineData)
	d.mu.Lock()
	d.qps[q.handle] = q
	d.mu.Unlock()
	for _, c := range []*CQ{q.sendCQ, q.recvCQ} {
		c.mu.Lock()
		c.qps[q.qpn] = q
		c.mu.Unlock()
	}
	return nil
}

// Num is the queue pair's number, which its peer must know.
func (q *QP) Num() QPN { return q.qpn }

// Type is the queue pair's type.
func (q *QP) Type() QPType { return q.typ }

// Cap are the sizes that were granted.
func (q *QP) Cap() QPCap { return q.cap }

// InitAttr is what the queue pair was made with, Cap as granted: the last
// argument of ibv_query_qp.
func (q *QP) InitAttr() QPInitAttr {
	return QPInitAttr{
		Type: q.typ, SendCQ: q.sendCQ, RecvCQ: q.recvCQ, SRQ: q.srq, Cap: q.cap, SQSigAll: q.sigAll, SendOps: q.ops,
	}
}

// State is the state as the library knows it, without asking the adapter: from
// Modify and Query, and from completions in error that were polled.
func (q *QP) State() QPState {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.state
}

// Modify sets the attributes that mask names and moves the queue pair to
// attr.State when mask has it (ibv_modify_qp). EINVAL names the attribute:
// missing, not allowed in this transition, or out of range; nothing is then
// changed.
func (q *QP) Modify(attr *QPAttr, mask QPAttrMask) error {
	const op = "modify QP"
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return invalid(op, "the queue pair is destroyed")
	}
	req := uapi.ModifyQPRequest{Handle: q.handle, Mask: mask, Attr: *attr}
	var rep uapi.ModifyQPReply
	if err := q.dev.ctl.do(op, uapi.OpModifyQP, &req, &rep); err != nil {
		return err
	}
	q.state = rep.State
	if q.state == StateReset {
		q.reborn()
	}
	return nil
}

// Query returns the attributes as they are (ibv_query_qp).
func (q *QP) Query() (QPAttr, error) {
	var rep uapi.QueryQPReply
	err := q.dev.ctl.do("query QP", uapi.OpQueryQP, &uapi.HandleRequest{Handle: q.handle}, &rep)
	if err == nil {
		q.mu.Lock()
		q.state = rep.Attr.State
		q.mu.Unlock()
	}
	return rep.Attr, err
}

// Destroy ends the queue pair (ibv_destroy_qp). Outstanding requests make no
// further completions; those already in a queue can still be polled. It waits
// until every asynchronous event of the queue pair that was returned is
// acknowledged and drops those not yet read. EBUSY: it is attached to a
// multicast group.
func (q *QP) Destroy() error {
	d := q.dev
	err := d.ctl.do("destroy QP", uapi.OpDestroyQP, &uapi.HandleRequest{Handle: q.handle}, nil)
	if err != nil && !d.gone.Load() {
		return err
	}
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	for _, c := range []*CQ{q.sendCQ, q.recvCQ} {
		c.mu.Lock()
		if c.qps[q.qpn] == q {
			delete(c.qps, q.qpn)
		}
		if c.last == q {
			c.last = nil
		}
		c.mu.Unlock()
	}
	d.mu.Lock()
	delete(d.qps, q.handle)
	d.mu.Unlock()
	q.asyncAcks.Wait(d.dying)
	return err
}

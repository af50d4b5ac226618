package verbs

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
)

// QPInitAttr says what queue pair to make (ibv_qp_init_attr).
type QPInitAttr struct {
	Type QPType
	// SendCQ and RecvCQ are required; they may be the same.
	SendCQ, RecvCQ *CQ
	// Cap are the sizes asked for; CreateQP returns at least these.
	Cap QPCap
	// SQSigAll makes every send request signaled.
	SQSigAll bool
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
	bell   *uapi.ProgramDoorbell
	index  uint32
	wake   *shm.Doorbell

	mu     sync.Mutex
	state  QPState
	closed bool
	sq     *uapi.SQProducer
	rq     *uapi.RQProducer
	sent   outstanding
	recvs  outstanding
	inline []byte

	formerSend, formerRecv uint64 // completions before these are of a life before RESET
}

// CreateQP makes a queue pair in the RESET state (ibv_create_qp). EINVAL: an
// attribute is over a limit, or an object is of another device; EOPNOTSUPP: a
// type that the adapter does not have; ENOMEM: a limit is reached.
func (p *PD) CreateQP(init *QPInitAttr) (*QP, error) {
	const op = "create QP"
	d := p.dev
	if init.SendCQ == nil || init.RecvCQ == nil || init.SendCQ.dev != d || init.RecvCQ.dev != d {
		return nil, invalid(op, "send_cq and recv_cq must be completion queues of this device")
	}
	req := uapi.CreateQPRequest{
		PD: p.handle, Type: init.Type, SendCQ: init.SendCQ.handle, RecvCQ: init.RecvCQ.handle,
		Cap: init.Cap, SQSigAll: init.SQSigAll,
	}
	var rep uapi.CreateQPReply
	fds, err := d.ctl.call(op, uapi.OpCreateQP, &req, &rep, nil)
	if err != nil {
		return nil, err
	}
	q := &QP{
		dev: d, pd: p, handle: rep.Handle, qpn: rep.QPN, typ: init.Type, cap: rep.Cap, sigAll: init.SQSigAll,
		sendCQ: init.SendCQ, recvCQ: init.RecvCQ, index: rep.DoorbellIndex,
	}
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
	mem, err := d.ringMemory(op, fds, rep.SQ, rep.RQ)
	if err != nil {
		return err
	}
	if q.sq, err = uapi.NewSQProducer(mem[0], rep.SQ); err != nil {
		return invalid(op, "%v", err)
	}
	if q.rq, err = uapi.NewRQProducer(mem[1], rep.RQ); err != nil {
		return invalid(op, "%v", err)
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
// further completions; those already in a queue can still be polled.
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
	return err
}

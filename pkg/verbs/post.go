package verbs

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/wq"
)

// PostSend posts requests to the send queue in order (ibv_post_send). It
// returns how many were queued; the one after them is the bad one. EINVAL:
// the request is malformed, or the state does not allow it; ENOMEM: the queue
// is full until completions are polled. Lists and inline data are copied; the
// memory that elements name belongs to the adapter until the completion.
func (q *QP) PostSend(wrs ...SendWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	var err error
	for ; n < len(wrs); n++ {
		if err = q.putSend(&wrs[n]); err != nil {
			break
		}
	}
	if n > 0 {
		q.publish()
	}
	return n, err
}

// publish shows what was put to the adapter.
func (q *QP) publish() {
	q.sq.Publish()
	q.ring()
	q.dev.busy()
	if len(q.binds) > 0 {
		q.dev.bound(q.binds)
		q.binds = q.binds[:0]
	}
}

// putSend puts one request into the ring, where publish shows it.
func (q *QP) putSend(wr *SendWR) error {
	const op = "post send"
	switch {
	case q.dev.gone.Load():
		return dead(op)
	case q.closed || !q.state.AllowsPostSend():
		return invalid(op, "the queue pair is in state %v", q.state)
	case q.sent.full():
		return &Error{Op: op, Errno: unix.ENOMEM, Text: "the send queue is full: poll its completions first"}
	}
	w := &q.wr
	*w = *wr
	err := q.check(w)
	if err == nil {
		err = q.sq.Put(w)
	}
	if err != nil {
		q.wr = SendWR{}
		return checkError(op, err)
	}
	q.sent.push(w.WRID, w.Opcode, q.sigAll || w.Flags&SendSignaled != 0)
	if w.Opcode == wq.BindMW || w.Opcode == wq.RegMR {
		q.binds = append(q.binds, w.Bind)
	}
	w.SGList, w.Inline = nil, nil // the caller's
	return nil
}

// check takes inline data together and looks at a request as a whole.
func (q *QP) check(w *SendWR) error {
	if w.Flags&SendInline != 0 && w.Inline == nil {
		data, err := q.gather(w.SGList)
		if err != nil {
			return err
		}
		w.Inline, w.SGList = data, nil
	}
	if q.typ == UD && w.AH == 0 {
		return invalid("post send", "the request has no address handle")
	}
	return wq.Check(uint8(q.typ), w, wq.Limits{MaxSGE: q.cap.MaxSendSGE, MaxInline: q.cap.MaxInlineData})
}

// gather copies the memory that elements name, for inline data.
func (q *QP) gather(list []SGE) ([]byte, error) {
	buf := q.inline[:0]
	for _, e := range list {
		b, ok := q.dev.bytesOf(e)
		if !ok {
			return nil, invalid("post send", "inline element %#x+%d is not in a region of key %#x", e.Addr, e.Length, uint32(e.LKey))
		}
		if len(buf)+len(b) > cap(buf) {
			return nil, invalid("post send", "inline data is longer than max_inline_data %d", q.cap.MaxInlineData)
		}
		buf = append(buf, b...)
	}
	return buf, nil
}

func checkError(op string, err error) error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return err
	}
	errno := unix.EINVAL
	if errors.Is(err, wq.ErrFull) || errors.Is(err, uapi.ErrRingFull) {
		errno = unix.ENOMEM
	}
	return &Error{Op: op, Errno: errno, Text: err.Error()}
}

// PostRecv posts receive requests in order (ibv_post_recv). It returns how
// many were queued. Errors as for PostSend; EINVAL also when the queue pair has
// a shared receive queue.
func (q *QP) PostRecv(wrs ...RecvWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	var err error
	for ; n < len(wrs); n++ {
		if err = q.putRecv(&wrs[n]); err != nil {
			break
		}
	}
	if n > 0 {
		q.rq.Publish()
		if q.state == StateErr || q.state == StateSQE {
			q.ring() // in SQE, since ERR may follow unseen
		}
	}
	return n, err
}

func (q *QP) putRecv(wr *RecvWR) error {
	const op = "post receive"
	switch {
	case q.dev.gone.Load():
		return dead(op)
	case q.closed || !q.state.AllowsPostRecv():
		return invalid(op, "the queue pair is in state %v", q.state)
	case q.srq != nil:
		return invalid(op, "the queue pair has a shared receive queue: post there")
	case len(wr.SGList) > int(q.cap.MaxRecvSGE):
		return invalid(op, "%d elements, max_recv_sge is %d", len(wr.SGList), q.cap.MaxRecvSGE)
	case q.recvs.full():
		return &Error{Op: op, Errno: unix.ENOMEM, Text: "the receive queue is full: poll its completions first"}
	}
	if err := q.rq.Put(wr); err != nil {
		return checkError(op, err)
	}
	q.recvs.push(wr.WRID, 0, true)
	return nil
}

// ring tells the worker that the queue pair has something, and wakes it when
// it sleeps.
func (q *QP) ring() {
	if q.bell.Set(q.index) {
		q.wake.Ring()
	}
}

// retire frees the entries that a polled completion stands for. An error on
// the queue pair is how the library learns that it is in ERR. at is how
// many completions were polled from its queue before it.
func (q *QP) retire(wc *WC, at uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	recv := wc.Opcode.IsRecv()
	if q.ofFormerLife(recv, at) {
		return
	}
	if recv {
		q.recvs.pop() // nothing with a shared receive queue, which frees its own
	} else {
		q.sent.retire(wc.WRID, wc.Status != cq.Success)
	}
	if wc.Status == cq.Success {
		return
	}
	// The request that takes a datagram queue pair's send queue to SQE fails by
	// itself; a flush that comes first is of ERR.
	if recv || wc.Status == cq.WRFlushErr && q.state != StateSQE {
		q.enter(StateErr)
	} else {
		q.enter(q.typ.SendErrorState())
	}
}

// failed notes that the queue pair is in ERR or SQE.
func (q *QP) failed(state QPState) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.enter(state)
}

// enter notes a state that the queue pair took by itself, with the lock held.
func (q *QP) enter(state QPState) {
	if q.closed || q.state == StateErr || q.state == StateReset || q.state == state {
		return
	}
	q.state = state
	if q.recvs.n() > 0 && !q.dev.gone.Load() {
		q.ring() // receives posted before the library knew
	}
}

// reborn forgets what was posted when the queue pair entered RESET. Completions
// that its former life left in the queues stay there and stand for nothing any
// more: the adapter has put all of them there by now.
func (q *QP) reborn() {
	q.sent.clear()
	q.recvs.clear()
	q.formerSend, q.formerRecv = q.sendCQ.produced(), q.recvCQ.produced()
}

// ofFormerLife says whether completion number at was made before the last
// RESET.
func (q *QP) ofFormerLife(recv bool, at uint64) bool {
	if recv {
		return at < q.formerRecv
	}
	return at < q.formerSend
}

// flushDead completes what is outstanding on c as flushed, for a dead adapter.
func (q *QP) flushDead(c *CQ, wcs []WC) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	if q.sendCQ == c {
		for ; n < len(wcs) && q.sent.n() > 0; n++ {
			r := q.sent.pop()
			wcs[n] = WC{WRID: r.wrid, Status: cq.WRFlushErr, Opcode: wcOpcode(r.op), QPN: q.qpn}
		}
	}
	if q.recvCQ == c {
		for ; n < len(wcs) && q.recvs.n() > 0; n++ {
			r := q.recvs.pop()
			wcs[n] = WC{WRID: r.wrid, Status: cq.WRFlushErr, Opcode: cq.Recv, QPN: q.qpn}
		}
	}
	return n
}

// wcOpcode is the completion's opcode for a request's.
func wcOpcode(op WROpcode) WCOpcode {
	switch op {
	case wq.RDMAWrite, wq.RDMAWriteWithImm:
		return cq.RDMAWrite
	case wq.RDMARead:
		return cq.RDMARead
	case wq.AtomicCmpAndSwp:
		return cq.CompSwap
	case wq.AtomicFetchAndAdd:
		return cq.FetchAdd
	case wq.LocalInv:
		return cq.LocalInv
	case wq.BindMW:
		return cq.BindMW
	case wq.RegMR:
		return cq.RegMR
	case wq.Send, wq.SendWithImm, wq.SendWithInv:
		return cq.Send
	default:
		return cq.Send
	}
}

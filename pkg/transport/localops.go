package transport

import (
	"errors"

	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/wq"
)

// Requests that make no packet: they change a key of this adapter, and take no
// PSN (IBTA Vol 1 §10.8.3). Each is carried out once, when those before it have
// begun and before those behind it do, and completes in its turn. When a
// connection goes back to send again, it walks over those that are done.

// localOp is what the engine knows of such an operation.
type localOp struct {
	last bool // waits until everything before it is done
	do   func(*QP, *wq.WQE) cq.Status
}

// localOps is their table by [wq.Opcode]. An invalidation waits for what may still
// need the key, to be sent again with it for one (the local invalidate fence of
// IBTA Vol 1 §10.8.3); the others open something new.
var localOps = [...]localOp{
	wq.BindMW:   {do: (*QP).bindWindow},
	wq.LocalInv: {do: (*QP).invalidateKey, last: true},
	wq.RegMR:    {do: (*QP).registerPages},
}

// localTexts say what went wrong with one.
var localTexts = [...]string{
	wq.BindMW:   "a memory window could not be bound: look at its new key, and at the key, the range and the rights of the region",
	wq.LocalInv: "a key could not be invalidated: only that of a bound window of type 2 can be, or of a fast region with memory and without bound windows",
	wq.RegMR:    "a fast registration failed: look at its key, at the shape of its pages, and at the regions that they lie in",
}

// isLocal says whether an operation makes no packet.
func isLocal(op wq.Opcode) bool { return int(op) < len(localOps) && localOps[op].do != nil }

// localReady says whether entry cur is a local operation whose turn it is.
func (q *QP) localReady() bool {
	r := &q.req
	if r.cur >= q.sq.Len() || r.localErr != 0 || !q.state.SendsRequests() {
		return false
	}
	e := q.sq.At(r.cur)
	switch {
	case !isLocal(e.Opcode):
		return false
	case e.User[userDone] != 0:
		return true
	}
	return q.state.StartsRequests() && (!localOps[e.Opcode].last || r.cur == 0) &&
		(e.Flags&wq.SendFence == 0 || r.reads.sent == 0)
}

// localBatch is how many local operations one call carries out: a program may post
// many thousands, and none has a packet that the caller counts. Our own tuning.
const localBatch = 64

// LocalWaiting says that local operations are left whose turn it is: PollTransmit
// is to be called again, also when it gave nothing.
func (q *QP) LocalWaiting() bool { return q.cfg.Type != qpstate.UD && q.localReady() }

// passLocal carries out the local operations from entry cur on whose turn it is,
// so many at most, and walks over those that were.
func (q *QP) passLocal() {
	r := &q.req
	for left := localBatch; q.localReady(); {
		e := q.sq.At(r.cur)
		if e.User[userDone] == 0 {
			if left--; left < 0 {
				return
			}
			if s := localOps[e.Opcode].do(q, e); s != cq.Success {
				r.localErr = s
				q.past().because(WhyBind)
				q.settleLocal()
				return
			}
			e.User[userDone] = 1
			if q.cfg.Stage != nil {
				q.cfg.Stage.Forget() // it goes by keys
			}
		}
		r.cur++
		q.completeLocal()
	}
}

// completeLocal completes the local operations at the queue's front that are
// carried out.
func (q *QP) completeLocal() {
	for q.sq.Len() > 0 && q.sq.At(0).User[userDone] != 0 {
		q.popHead(cq.Success)
	}
}

// bindWindow binds a memory window.
func (q *QP) bindWindow(e *wq.WQE) cq.Status {
	b := &e.Bind
	err := q.cfg.Keys.Bind(uint32(q.cfg.QPN), q.cfg.PD, mrtable.BindArgs{
		RKey: b.RKey, MR: b.MR, Addr: b.Addr, Length: b.Length, Access: b.Access,
	})
	if err != nil {
		return cq.MWBindErr
	}
	return cq.Success
}

// invalidateKey closes the key of a window of type 2 or of a fast region.
func (q *QP) invalidateKey(e *wq.WQE) cq.Status {
	if q.cfg.Keys.InvalidateLocal(e.InvalidateRKey, q.cfg.PD) != nil {
		return cq.LocQPOpErr
	}
	return cq.Success
}

// registerPages gives a fast region its pages.
func (q *QP) registerPages(e *wq.WQE) cq.Status {
	pages := make([]mrtable.Page, len(e.SGList))
	for i := range e.SGList {
		s := &e.SGList[i]
		pages[i] = mrtable.Page{LKey: s.LKey, Addr: s.Addr, Length: uint64(s.Length)}
	}
	b := &e.Bind
	switch err := q.cfg.Keys.FastRegister(q.cfg.PD, b.RKey, b.Addr, b.Access, pages); {
	case err == nil:
		return cq.Success
	case errors.Is(err, mrtable.ErrPageMemory):
		return cq.LocProtErr
	}
	return cq.LocQPOpErr
}

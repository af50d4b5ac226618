package transport

import (
	"fmt"
	"strings"
)

// Inner writes all that decides what the queue pair does next, for a comparison
// of two that were treated alike.
func (q *QP) Inner() string {
	var b strings.Builder
	r, w := &q.rsp, &q.rsp.replays
	fmt.Fprintf(&b, "%v next=%v stats=%v req=%v line=%v,%v,%v\n", q.state, q.answerNext, q.stats, q.req, q.line.on != nil, q.line.need, q.line.until)
	fmt.Fprintf(&b, "rsp=%v,%v,%v,%v,%v,%v,%v,%v,%v", r.expected, r.newest, r.msn, r.heard, r.op, r.rkey, r.va, r.left, r.total)
	fmt.Fprintf(&b, ",%v,%v,%v,%v,%v,%v,%v,%v\n", r.room, r.hasRecv, r.flushing, r.answers, r.oosPSN, r.gapTold, r.rnrTold, r.rnrUntil)
	for i := range w.len {
		fmt.Fprintf(&b, "replay %v\n", *w.at(i))
	}
	if q.peer != nil {
		for _, f := range q.peer.flows {
			first := f.first != nil
			f.waiters = waiters{}
			fmt.Fprintf(&b, "flow %v %v\n", first, f)
		}
	}
	return b.String() + fmt.Sprintf("%v", *q.cfg.Counters)
}

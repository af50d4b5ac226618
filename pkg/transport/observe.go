package transport

import "github.com/softroce/softroce/pkg/bth"

// RequestAt names, for people who look at packets, the request that has a PSN of
// this queue pair's requests: its WRID and its operation. ok is false when no
// request in the send queue has it: not posted yet, or done.
func (q *QP) RequestAt(psn bth.PSN) (wrid uint64, op string, ok bool) {
	first := q.req.headPSN
	for i := range q.sq.Len() {
		e := q.sq.At(i)
		n := packetsOf(e)
		if isLocal(e.Opcode) {
			n = 0
		}
		if d := psn.Sub(first); d < 0 {
			break
		} else if uint32(d) < n {
			return e.WRID, e.Opcode.String(), true
		}
		first = first.Add(n)
	}
	return 0, "", false
}

// LastReceive is the WRID of the receive that was taken last, for people who look
// at packets. It means nothing before a packet was accepted that took one.
func (q *QP) LastReceive() (wrid uint64) { return q.rsp.recv.WRID }

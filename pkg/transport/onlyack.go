package transport

// OnlyAck says that all that the queue pair has to send is an acknowledgement
// of success: it may wait a moment, for more to acknowledge or for something of
// its own to leave with (IBTA Vol 1 §9.7.5.1.2 lets a responder coalesce).
func (q *QP) OnlyAck() bool {
	r := &q.rsp
	if !r.answers.ack || r.answers.nak != 0 || r.replays.waiting > 0 {
		return false
	}
	return !q.maySend()
}

// smallMessage is a message that an acknowledgement may let go first, in bytes:
// a program waits for it, and for the acknowledgement nobody does. Our own
// tuning.
const smallMessage = 256

// ackMayFollow says that an acknowledgement of success may leave behind the
// next request, a small message.
func (q *QP) ackMayFollow() bool {
	r := &q.rsp
	if r.answers.nak != 0 || r.replays.waiting > 0 {
		return false
	}
	var p plan
	return q.planNext(&p) && p.off == 0 && packetsOf(p.e) == 1 && p.bytes <= smallMessage
}

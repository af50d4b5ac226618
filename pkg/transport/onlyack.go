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

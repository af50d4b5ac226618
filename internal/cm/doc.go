// Package cm is the InfiniBand connection manager as a machine like a queue
// pair: it takes in management datagrams, calls and the time, and is asked for
// the datagrams to send, the next deadline and the events (IBTA Vol 1 §12,
// Annex A11 for the private data of IP addresses).
//
// It owns the layout of every connection manager message, the state machines
// of both sides, retransmission, duplicates and time-wait, the communication
// ids, and the table of who listens on which service id.
//
// It refuses sockets, clocks, goroutines and dice: a random start value is in
// [Config], and equal inputs give equal outputs, to the byte. It knows nothing
// of queue pairs beyond the numbers that travel in messages; [Machine.QPAttr]
// says what a connection's queue pair is to be modified with.
//
// A [Machine] is an adapter's. Its tables are bounded, and nothing that a peer
// sends makes them grow beyond [Limits] or makes the machine panic. It is not
// safe for concurrent use: the worker that owns QP 1 calls it.
//
// The order of the events is librdmacm's. A connection on the active side:
//
//	Connect → ConnectResponse → QPAttr(RTR), QPAttr(RTS), Establish → …
//	        → Disconnected → Disconnect (when the peer began) → TimewaitExit → Destroy
//
// and on the passive side:
//
//	Listen → ConnectRequest → QPAttr(RTR), QPAttr(RTS), Accept → Established → …
//
// A datagram "connection" (UD) asks for the peer's queue pair and queue key:
// Connect → Established, and ConnectRequest → Accept. An id lives until
// [Machine.Destroy], whatever became of its connection.
package cm

// Package rdmanet is net.Conn and net.Listener over RDMA: byte streams over
// reliable connections, made by address through package rdmacm. Programs that take
// a net.Listener or a dial function, net/http among them, run over it unchanged:
//
//	l, err := rdmanet.Listen(dev, ":8080")
//	err = http.Serve(l, handler)
//
//	d := &rdmanet.Dialer{Device: dev}
//	client := &http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
//
// Deadlines, half close ([Conn.CloseWrite]) and errors are as those of package
// net. A device must not be closed while its connections are used, since their
// memory goes with it. Data is not encrypted: crypto/tls works over a Conn as over
// any other. A connection takes a completion channel of the adapter's, a dialed one
// an event channel, too, and six megabytes of registered memory unless [Config]
// says otherwise: the adapter's limits for a program (1,024 channels of either kind
// by default) bound how many there are at once.
//
// io.Copy to and from a connection, and what is built on it, such as files that
// net/http serves, goes by [Conn.ReadFrom] and [Conn.WriteTo] without a copy between
// the program's buffer and registered memory.
//
// A peer's host or adapter that vanishes in silence ends a connection with ETIMEDOUT:
// a writer's in seconds, by its adapter; a reader's by a keep-alive, which asks the
// peer's adapter for a sign of life when a Read has waited for 15 seconds without one
// ([Config.KeepAlive]). A peer whose adapter lives and whose program does nothing is
// for deadlines to end (http.Server's IdleTimeout and its like).
//
// # The protocol
//
// Each end has a ring of memory into which the peer writes. A hello, the private
// data of the request and of its answer, tells where it is, how long it is, and how
// many messages may come before any is granted; see hello.go. From then on every
// message is a RDMA WRITE with immediate data, in which are a kind, a number of
// receives that are granted, and a number of bytes:
//
//   - data: so many bytes were written into the ring, behind those before, by this
//     message or by a RDMA WRITE without immediate data before it; they do not go
//     around the ring's end
//   - update: nothing was written; the program has read so many bytes, whose space
//     is free again
//   - end: no more data follows
//   - close: nothing follows; its sender has taken in so many bytes. It grants
//     nothing
//
// A message takes one receive of the peer's, without memory of its own. Each end
// posts them again at once and grants them with the next message that it sends.
// Who has three left sends no more data, so that there is one for each of end, close
// and an update; the end leaves one, which goes to an update that grants, whereby
// two ends that are out of receives do not wait for each other, or to the close.
// Nothing is sent that the peer has no room for, so a program that does not read
// stops its peer, and nobody else.
//
// An end waits until the peer's adapter acknowledges its close. An orderly one is
// acknowledged by the peer's own close, too, should the peer be gone before its
// adapter's acknowledgement comes: it tells whether all was taken in. An end that
// has the peer's close waits a second at most for its own to arrive. A connection
// that breaks without the peer's close, or with one that misses something, is an
// error of who closes it.
//
// It is not the protocol of rsockets: docs/adr/0011 says why,
// 0012 why it ends as it does, and 0015 what it holds back and lends for speed.
package rdmanet

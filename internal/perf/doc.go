// Package perf measures the bandwidth and the latency of the verbs between two
// programs, as perftest's ib_write_bw, ib_read_lat and so on do, with their
// sizes, defaults and table. It is what `softroce perf` runs. It refuses to
// know any packet, and does not speak to perftest: its exchange over TCP is
// its own.
//
// # The exchange
//
// Messages are JSON objects, one a line, of at most 256 KiB, over TCP port
// 18515. The client decides what is measured; the server must have been
// started for the same operation.
//
//	client                          server
//	hello: parameters, endpoint
//	                                welcome: endpoint
//	for each size
//	  start: number of the size
//	                                ready
//	  (it measures)                 (it answers, or lies still)
//	  done: result, counts
//	                                checked
//	bye
//
// With Config.CM there is no TCP: the exchange goes over a connection of package
// rdmanet to that port of the connection manager's. The welcome has another such
// port, to which the client connects the queue pairs one after the other.
//
// Either side says error, with a text, where it cannot go on. A connection
// that ends in between is the death of the peer.
package perf

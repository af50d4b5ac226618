// Package transport is the protocol of one queue pair, as a pure machine
// (IBTA Vol 1 §9.7 reliable service, §9.8 unreliable services, Annex A17): calls,
// packets and the time go in; packets, memory accesses, completions, events and the next deadline come
// out. It owns PSNs, acknowledgements, retries, the replay of READs and atomics,
// the window, and the order in which things complete.
//
// It refuses sockets, clocks, goroutines, locks, dice and logs. Outputs are
// polled: [QP.PollTransmit], [QP.PollEvent], [QP.NextTimeout]; completions go to
// the [Sink] given at creation. The same inputs give the same outputs, byte for
// byte. Nothing from the wire or a program makes it panic, and it keeps no
// reference to a packet or a buffer after a call.
//
// No sent packet is stored: a packet is built, the first time and each further
// time, from its work request and its PSN. Nothing is allocated per packet or
// per work request in steady state; only a bind and a fast registration make
// something new.
//
// Files: qp.go routes; requester.go sends requests and completer.go takes what
// comes back; retransmit.go owns timers and retries, window.go how much is in
// flight to a peer, peers.go whose turn it is there; responder.go checks and
// executes requests; read.go and atomic.go have what is special to them;
// localops.go has requests that make no packet; nak.go answers; build.go makes
// bytes; runs.go sends and takes rows of Middle packets at once, with the same
// effect as one by one; uc.go and ud.go are the unreliable services; modify.go
// changes the state; errors.go maps faults to NAK codes and completion statuses.
//
// A QP is used by one goroutine at a time.
package transport

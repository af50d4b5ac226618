// Package trace tells from the packets of a capture what happened on each
// connection: requests, acknowledgements, losses, packets sent again, waits and
// stalls, without knowing how the queue pairs were set up. It refuses files,
// sockets and clocks.
package trace

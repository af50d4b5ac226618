// Package trace tells from the packets of a capture what happened on each
// connection: requests, acknowledgements, losses, packets sent again, RNR waits,
// timeouts, stalls. It needs no word of how the queue pairs were set up, takes
// captures that begin in the middle, and writes what it found as text or as one
// HTML page that works without a network.
//
// What it says is drawn from packets alone: where a packet was lost can only be
// said by what came after it. It refuses files, sockets, clocks, and any rule of
// the adapter's: it is a reader of the wire.
package trace

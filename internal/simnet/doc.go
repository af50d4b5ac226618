// Package simnet is a bad network for tests, on virtual time and from a seed: it
// loses, doubles, reorders, delays and corrupts datagrams. The same seed and the
// same calls give the same network; a failing seed reproduces.
//
// It carries bytes between numbered hosts and knows nothing of what is in them.
// It refuses real clocks, real sockets and goroutines: whoever drives it asks
// Next for the time of the next delivery and moves the clock with Advance.
package simnet

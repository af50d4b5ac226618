// Package soak is a random workload over the protocol engine, with an oracle that
// knows what must come of it. A world is made of a seed: two to sixteen adapters
// on a simulated network, queue pairs between them that use every verb, and all
// that can go wrong: packets are lost, doubled, held back and damaged, links are
// slow, buffers small, adapters cut off or restarted, requests bad, receives
// late, queue pairs drained and moved to ERR by their program.
//
// The oracle compares every byte of memory with a model, expects each completion
// exactly once, in order and with the right status, and asks at the end whether
// anything is stuck or was not given back. Of messages that a dead connection
// left behind it accepts what can be: the first part new, the rest old.
//
// A world is one goroutine's, on virtual time, and comes out the same for the same
// [Config]. The package refuses clocks and sockets.
package soak

// Package mrtable says whether a key grants an access to a range of memory,
// and gives the segment to touch. It owns keys, protection domain checks,
// rights and bounds (IBTA Vol 1 §10.6 memory management).
//
// It refuses NAK codes (pkg/transport maps its errors), mmap and system calls
// (a region's bytes are behind [Memory]).
//
// Look-ups take no lock and allocate nothing: they read fixed slots whose
// state-and-generation word is atomic, and may run on any number of
// goroutines while others register, mark and free. A life ends in two steps:
// [Table.Mark] makes every later look-up fail; [Table.Free], called when no
// worker can still hold a segment of the region, makes the slot usable again.
package mrtable

// Package mrtable says whether a key grants an access to a range of memory,
// and gives the segment to touch. It owns keys, protection domain checks,
// rights and bounds (IBTA Vol 1 §10.6 memory management).
//
// It refuses NAK codes (pkg/transport maps its errors), mmap and system calls
// (a region's bytes are behind [Memory]).
//
// Look-ups take no lock and allocate nothing: what a key grants is one pointer in
// a fixed slot, changed by compare-and-swap, to something that never changes. They
// may run on any number of goroutines while others register, bind, invalidate,
// mark and free. A life ends in two steps: [Table.Mark] makes every later look-up
// fail; [Table.Free], called when no worker can still hold a segment of the region,
// makes the slot usable again.
//
// Files: table.go has slots and the life of regions, key.go their keys, lookup.go
// the checks, grant.go what they check; window.go binds memory windows, fastreg.go
// registers lists of pages, whose memory is in pagelist.go; invalidate.go ends
// both; segment.go and memory.go reach the bytes.
package mrtable

//go:build race

package adapter_test

// allocsPerWait is what a wait for an event may allocate: under the race detector
// less is inlined, and the record's bytes go to the heap.
const allocsPerWait = 1

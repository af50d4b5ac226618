//go:build !race

package adapter_test

// allocsPerWait is what a wait for an event may allocate.
const allocsPerWait = 0

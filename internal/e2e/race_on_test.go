//go:build race

package e2e

import "testing"

// needsSharedMemory skips a test whose programs are this test binary: built
// with the race detector it keeps rings and regions in its own heap, where no
// other process sees them.
func needsSharedMemory(t *testing.T) {
	t.Helper()
	t.Skip("race build: rings and regions lie in this process's heap, the daemon cannot see them; a run without -race has this test")
}

//go:build !race

package e2e

import "testing"

// needsSharedMemory skips a test when two processes cannot share memory; here
// they can.
func needsSharedMemory(t *testing.T) { t.Helper() }

//go:build gc && linux && !purego && !race && !msan && !asan

package bth

import (
	"encoding/binary"
	"os"
	"testing"
)

// TestHWCap compares what the runtime keeps with the auxiliary vector itself.
func TestHWCap(t *testing.T) {
	const atHWCap = 16
	aux, err := os.ReadFile("/proc/self/auxv")
	if err != nil {
		t.Skipf("cannot read the auxiliary vector: %v", err)
	}
	for ; len(aux) >= 16; aux = aux[16:] {
		if binary.LittleEndian.Uint64(aux) != atHWCap {
			continue
		}
		want := binary.LittleEndian.Uint64(aux[8:])
		if got := uint64(hwcap()); got != want {
			t.Errorf("hwcap %#x, want %#x", got, want)
		}
		if found := len(findCRC()) == 1; found != (want>>7&1 == 1) {
			t.Errorf("found the CRC32 instructions: %v, AT_HWCAP is %#x", found, want)
		}
		return
	}
	t.Fatal("no AT_HWCAP in the auxiliary vector")
}

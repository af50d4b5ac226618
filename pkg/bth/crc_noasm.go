//go:build !gc || purego || race || msan || asan || !(amd64 || (arm64 && linux))

package bth

// What there is without assembly: on other architectures, with the build tag
// purego, and under the race detector and its like, which do not see what
// assembly reads and writes.

// crcShort is the least number of bytes for updateStd, which has a bound of its
// own.
const crcShort = 16

// crcNames are the names of the ways.
var crcNames = [...]string{crcStd: CRCStd, crcWords: CRCWords}

func findCRC() []crcKind { return nil }

// crcUpdate and crcCopy are not called.
func crcUpdate(state uint32, b []byte) uint32 { return updateShort(state, b) }

func crcCopy(uint32, []byte, []byte) (crc uint32, ok bool) { return 0, false }

//go:build gc && linux && !purego && !race && !msan && !asan

package bth

// The assembly is left out of builds for the race detector and its like, which
// would not see what it reads and writes.

const armCRC32 = crcAssembly

// crcNames are the names of the ways.
var crcNames = [...]string{crcStd: CRCStd, crcWords: CRCWords, armCRC32: "arm64-crc32"}

// crcShort is the least number of bytes that the assembly is called for. It
// takes any number.
const crcShort = 8

//go:noescape
func crcARM64(state uint32, p *byte, n int) uint32

//go:noescape
func copyARM64(state uint32, dst, src *byte, n int) (crc uint32, ok bool)

// crcUpdate continues the register over b, at least crcShort bytes.
func crcUpdate(state uint32, b []byte) uint32 { return crcARM64(state, &b[0], len(b)) }

// crcCopy copies src to dst, equally long and at least crcShort bytes, and
// continues the register over the copy. Where the end of src would be
// overwritten before it is read, it does nothing and ok is false.
func crcCopy(state uint32, dst, src []byte) (crc uint32, ok bool) {
	return copyARM64(state, &dst[0], &src[0], len(src))
}

// hwcapCRC32 is Linux's bit for the CRC32 instructions in AT_HWCAP.
const hwcapCRC32 = 1 << 7

// hwcap returns AT_HWCAP of the auxiliary vector, as the Go runtime keeps it
// for such readers (go.dev/issue/67401).
func hwcap() uint

// findCRC returns the assembly that the CPU allows.
func findCRC() []crcKind {
	if hwcap()&hwcapCRC32 == 0 {
		return nil
	}
	return []crcKind{armCRC32}
}

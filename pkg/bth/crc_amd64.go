//go:build gc && !purego && !race && !msan && !asan

package bth

// The assembly is left out of builds for the race detector and its like, which
// would not see what it reads and writes.

const (
	pclmul = crcAssembly + iota
	avx2
	avx512
)

// crcNames are the names of the ways.
var crcNames = [...]string{crcStd: CRCStd, crcWords: CRCWords, pclmul: "pclmul", avx2: "avx2", avx512: "avx512"}

// crcShort is the least number of bytes that the assembly takes.
const crcShort = 16

// crcConst are the factors of the assembly. They are bit-reflected: bit 63 of a
// number is x^0. A product of two such, read as 128 bits, has a factor x too
// many, which the factors make up for. Modulo the polynomial,
//
//	a pair for D bits   x^(D+32)·x^31, x^(D-32)·x^31
//	                    for the first and the last eight bytes of 16
//	reduction           x^96·x^31, the quotient of x^96 by the polynomial and x,
//	                    the polynomial itself times x^31
//
// where x^n stands for its remainder of degree below 32. A test computes them.
var crcConst = [...]uint64{
	0x11542778a, 0x1322d1430, // 2048
	0x1821d8bc0, 0x12e958ac4, // 1536
	0x1e88ef372, 0x14a7fe880, // 1024
	0x0df068dc2, 0x18cb44e58, // 768
	0x154442bd4, 0x1c6e41596, // 512
	0x03db1ecdc, 0x174359406, // 384
	0x0f1da05aa, 0x15a546366, // 256
	0x1751997d0, 0x0ccaa009e, // 128
	0, 0, // the last 16 bytes of 64 stay where they are
	0x0ccaa009e, 0xb4e5b025f7011641,
	0x1db710641, 0,
}

//go:noescape
func crcPCLMUL(state uint32, p *byte, n int) uint32

//go:noescape
func copyPCLMUL(state uint32, dst, src *byte, n int) (crc uint32, ok bool)

//go:noescape
func crcAVX2(state uint32, p *byte, n int) uint32

//go:noescape
func copyAVX2(state uint32, dst, src *byte, n int) (crc uint32, ok bool)

//go:noescape
func crcAVX512(state uint32, p *byte, n int) uint32

//go:noescape
func copyAVX512(state uint32, dst, src *byte, n int) (crc uint32, ok bool)

// widthFor returns the way for n bytes: what wider registers save, they lose
// again at the end of a short buffer. (The limits are our own measure; the
// assembly takes no less than 128 and 256.)
func widthFor(n int) crcKind {
	switch {
	case n < 128:
		return pclmul
	case n < 512:
		return min(crcInUse, avx2)
	}
	return crcInUse
}

// crcUpdate continues the register over b, at least crcShort bytes.
func crcUpdate(state uint32, b []byte) uint32 {
	switch widthFor(len(b)) {
	case avx512:
		return crcAVX512(state, &b[0], len(b))
	case avx2:
		return crcAVX2(state, &b[0], len(b))
	case crcStd, crcWords, pclmul:
	}
	return crcPCLMUL(state, &b[0], len(b))
}

// crcCopy copies src to dst, equally long and at least crcShort bytes, and
// continues the register over the copy. Where the end of src would be
// overwritten before it is read, it does nothing and ok is false.
func crcCopy(state uint32, dst, src []byte) (crc uint32, ok bool) {
	switch widthFor(len(src)) {
	case avx512:
		return copyAVX512(state, &dst[0], &src[0], len(src))
	case avx2:
		return copyAVX2(state, &dst[0], &src[0], len(src))
	case crcStd, crcWords, pclmul:
	}
	return copyPCLMUL(state, &dst[0], &src[0], len(src))
}

// Bits that CPUID and XGETBV report.
const (
	ecxPCLMULQDQ  = 1 << 1  // leaf 1
	ecxSSSE3      = 1 << 9  // leaf 1
	ecxSSE41      = 1 << 19 // leaf 1
	ecxOSXSAVE    = 1 << 27 // leaf 1
	ebxAVX2       = 1 << 5  // leaf 7
	ebxAVX512F    = 1 << 16 // leaf 7
	ebxAVX512VL   = 1 << 31 // leaf 7
	ecxVPCLMULQDQ = 1 << 10 // leaf 7

	xcrYMM = 1<<1 | 1<<2                 // the kernel keeps the YMM registers
	xcrZMM = xcrYMM | 1<<5 | 1<<6 | 1<<7 // and the ZMM and mask registers
)

func cpuid(leaf, sub uint32) (a, b, c uint32)

func xgetbv() uint32

// findCRC returns the assembly that the CPU and the kernel allow, best first.
func findCRC() []crcKind {
	last, _, _ := cpuid(0, 0)
	_, _, c1 := cpuid(1, 0)
	var b7, c7, xcr uint32
	if last >= 7 {
		_, b7, c7 = cpuid(7, 0)
	}
	if c1&ecxOSXSAVE != 0 {
		xcr = xgetbv()
	}
	return allowedCRC(c1, b7, c7, xcr)
}

// allowedCRC is findCRC for the registers that CPUID and XGETBV gave.
func allowedCRC(c1, b7, c7, xcr uint32) (found []crcKind) {
	const (
		sse  = ecxPCLMULQDQ | ecxSSSE3 | ecxSSE41
		wide = ebxAVX512F | ebxAVX512VL
	)
	if c1&sse != sse {
		return nil
	}
	if b7&ebxAVX2 != 0 && c7&ecxVPCLMULQDQ != 0 && xcr&xcrYMM == xcrYMM {
		if b7&wide == wide && xcr&xcrZMM == xcrZMM {
			found = append(found, avx512)
		}
		found = append(found, avx2)
	}
	return append(found, pclmul)
}

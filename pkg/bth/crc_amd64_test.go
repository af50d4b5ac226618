//go:build gc && !purego && !race && !msan && !asan

package bth

import (
	"math/bits"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestCRCConstants computes the assembly's factors.
func TestCRCConstants(t *testing.T) {
	// raised is the remainder of x^n, times x^31, in 64 reflected bits.
	raised := func(n uint32) uint64 { return uint64(powerOfX(n)) << 1 }
	var want []uint64
	for _, d := range []uint32{2048, 1536, 1024, 768, 512, 384, 256, 128} {
		want = append(want, raised(d+32), raised(d-32))
	}
	polynomial := uint64(bits.Reverse32(crcPolynomial)) | 1<<32
	want = append(want, 0, 0, raised(96), bits.Reverse64(quotientOfX96(polynomial)), bits.Reverse64(polynomial<<31), 0)
	for i, w := range want {
		if crcConst[i] != w {
			t.Errorf("crcConst[%d] is %#x, want %#x", i, crcConst[i], w)
		}
	}
	if len(want) != len(crcConst) {
		t.Errorf("%d constants, want %d", len(crcConst), len(want))
	}
}

// quotientOfX96 divides x^96 by a polynomial of degree 32, and that by x. Bit n
// is x^n.
func quotientOfX96(polynomial uint64) (q uint64) {
	rest := uint64(1) << 32 // what is left of x^96, from the highest power down
	for range 64 {
		q <<= 1
		if rest>>32 != 0 {
			q |= 1
			rest ^= polynomial
		}
		rest <<= 1
	}
	return q
}

func TestAllowedCRC(t *testing.T) {
	const (
		sse   = ecxPCLMULQDQ | ecxSSSE3 | ecxSSE41
		avxB  = ebxAVX2
		zmmB  = ebxAVX2 | ebxAVX512F | ebxAVX512VL
		vpclC = ecxVPCLMULQDQ
	)
	for _, c := range []struct {
		name            string
		c1, b7, c7, xcr uint32
		want            []crcKind
	}{
		{"none", 0, 0, 0, 0, nil},
		{"no carry-less product", ecxSSSE3 | ecxSSE41, zmmB, vpclC, xcrZMM, nil},
		{"no byte shuffle", ecxPCLMULQDQ | ecxSSE41, zmmB, vpclC, xcrZMM, nil},
		{"no insertion", ecxPCLMULQDQ | ecxSSSE3, zmmB, vpclC, xcrZMM, nil},
		{"16 bytes", sse, 0, 0, 0, []crcKind{pclmul}},
		{"wide registers, narrow product", sse, zmmB, 0, xcrZMM, []crcKind{pclmul}},
		{"wide product, no AVX2", sse, 0, vpclC, xcrYMM, []crcKind{pclmul}},
		{"32 bytes", sse, avxB, vpclC, xcrYMM, []crcKind{avx2, pclmul}},
		{"32 bytes, kernel keeps none", sse, avxB, vpclC, 3, []crcKind{pclmul}},
		{"64 bytes", sse, zmmB, vpclC, xcrZMM, []crcKind{avx512, avx2, pclmul}},
		{"64 bytes, no VL", sse, zmmB &^ ebxAVX512VL, vpclC, xcrZMM, []crcKind{avx2, pclmul}},
		{"64 bytes, kernel keeps 32", sse, zmmB, vpclC, xcrYMM, []crcKind{avx2, pclmul}},
		{"64 bytes, kernel keeps no masks", sse, zmmB, vpclC, xcrZMM &^ (1 << 5), []crcKind{avx2, pclmul}},
		{"64 bytes, kernel keeps none", sse, zmmB, vpclC, 0, []crcKind{pclmul}},
	} {
		if got := allowedCRC(c.c1, c.b7, c.c7, c.xcr); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestFindCRC compares what was found with what the kernel says of the CPU.
func TestFindCRC(t *testing.T) {
	text, err := os.ReadFile("/proc/cpuinfo")
	_, flags, ok := strings.Cut(string(text), "\nflags")
	if !ok {
		t.Skipf("/proc/cpuinfo has no flags here (%v)", err)
	}
	flags, _, _ = strings.Cut(flags, "\n")
	has := func(names ...string) bool {
		for _, n := range names {
			if !slices.Contains(strings.Fields(flags), n) {
				return false
			}
		}
		return true
	}
	var want []crcKind
	if has("pclmulqdq", "ssse3", "sse4_1") {
		if has("avx2", "vpclmulqdq") {
			if has("avx512f", "avx512vl") {
				want = append(want, avx512)
			}
			want = append(want, avx2)
		}
		want = append(want, pclmul)
	}
	if got := findCRC(); !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
}

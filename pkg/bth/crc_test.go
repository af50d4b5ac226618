package bth

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
)

// bitwiseCRC continues the register over b, a bit at a time.
func bitwiseCRC(state uint32, b []byte) uint32 {
	for _, c := range b {
		state ^= uint32(c)
		for range 8 {
			state = state>>1 ^ crcPolynomial&-(state&1)
		}
	}
	return state
}

// randomBytes returns n bytes made from a seed.
func randomBytes(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// useCRC chooses a way to compute the CRC for the rest of a test.
func useCRC(tb testing.TB, name string) {
	tb.Helper()
	before := CRCPath()
	if err := SetCRC(name); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = SetCRC(before) })
}

// forEachCRC runs f once for each way to compute the CRC that there is here.
func forEachCRC(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	for _, name := range CRCPaths() {
		t.Run(name, func(t *testing.T) {
			useCRC(t, name)
			f(t)
		})
	}
}

func TestTableCRC(t *testing.T) {
	b := randomBytes(1, 300)
	for n := range b {
		for _, state := range []uint32{0, 0xFFFFFFFF, 0xDEBB20E3} {
			if got, want := updateShort(state, b[:n]), bitwiseCRC(state, b[:n]); got != want {
				t.Fatalf("%d bytes from %#08x: %#08x, want %#08x", n, state, got, want)
			}
		}
	}
	if got := FinishICRC(UpdateCRC(0xFFFFFFFF, []byte("123456789"))); got != 0xCBF43926 {
		t.Errorf("CRC-32 of the digits: %#08x, want 0xCBF43926", got)
	}
}

// TestCRC: every way gives what the table gives, whatever the length and the
// alignment, and changes nothing but what it is to change.
func TestCRC(t *testing.T) {
	forEachCRC(t, func(t *testing.T) {
		for n := range 1200 {
			checkCRC(t, uint64(n), n, n%64, (n/3)%64, uint32(n)*0x9E3779B9)
		}
		for _, n := range []int{2047, 2048, 2049, 4096, 4108, 8999, 9000, 65535} {
			for off := range 64 {
				checkCRC(t, uint64(n), n, off, 63-off, uint32(off)<<26)
			}
		}
	})
}

// checkCRC compares the way in use with the table on n random bytes that stand
// srcOff bytes into one buffer and are copied dstOff bytes into another.
func checkCRC(t *testing.T, seed uint64, n, srcOff, dstOff int, state uint32) {
	t.Helper()
	const guard = 64
	all := randomBytes(seed, srcOff+n+guard)
	src, dst := bytes.Clone(all), randomBytes(^seed, dstOff+n+guard)
	dstWant := bytes.Clone(dst)
	copy(dstWant[dstOff:], all[srcOff:srcOff+n])
	want := updateShort(state, all[srcOff:srcOff+n])

	if got := UpdateCRC(state, src[srcOff:srcOff+n]); got != want {
		t.Fatalf("%s: UpdateCRC of %d bytes at %d from %#08x: %#08x, want %#08x", CRCPath(), n, srcOff, state, got, want)
	}
	if got := updateHeader(state, src[srcOff:srcOff+n]); got != want {
		t.Fatalf("%s: updateHeader of %d bytes at %d from %#08x: %#08x, want %#08x", CRCPath(), n, srcOff, state, got, want)
	}
	// What of the two is longer does not count.
	got := CopyICRC(state, dst[dstOff:dstOff+n], src[srcOff:])
	if got != want {
		t.Fatalf("%s: CopyICRC of %d bytes from %d to %d, register %#08x: %#08x, want %#08x", CRCPath(), n, srcOff, dstOff, state, got, want)
	}
	if !bytes.Equal(dst, dstWant) {
		t.Fatalf("%s: CopyICRC of %d bytes from %d to %d stored\n% x, want\n% x", CRCPath(), n, srcOff, dstOff, dst, dstWant)
	}
	if !bytes.Equal(src, all) {
		t.Fatalf("%s: %d bytes at %d: the source changed", CRCPath(), n, srcOff)
	}
}

// TestCopyOverlapping: as with copy, the two may overlap.
func TestCopyOverlapping(t *testing.T) {
	forEachCRC(t, func(t *testing.T) {
		for _, n := range []int{15, 16, 31, 40, 127, 200, 700, 2000} {
			for _, shift := range []int{1, 7, 16, 33, 64, 200, 256, 300} {
				for _, forward := range []bool{true, false} {
					b := randomBytes(uint64(n), n+shift)
					want := bytes.Clone(b)
					from, to := 0, shift
					if !forward {
						from, to = shift, 0
					}
					crc := updateShort(7, b[from:from+n])
					copy(want[to:to+n], want[from:from+n])
					if got := CopyICRC(7, b[to:to+n], b[from:from+n]); got != crc || !bytes.Equal(b, want) {
						t.Fatalf("%d bytes from %d to %d of one buffer: %#08x, want %#08x; same bytes: %v", n, from, to, got, crc, bytes.Equal(b, want))
					}
				}
			}
		}
		b := randomBytes(3, 999)
		if got, want := CopyICRC(7, b, b), updateShort(7, b); got != want {
			t.Errorf("onto itself: %#08x, want %#08x", got, want)
		}
	})
}

func TestSetCRC(t *testing.T) {
	paths := CRCPaths()
	if n := len(paths); n < 2 || paths[n-2] != "hash/crc32" || paths[n-1] != "words" {
		t.Fatalf("ways %q, want hash/crc32 and words last", paths)
	}
	if got := CRCPath(); got != paths[0] {
		t.Errorf("in use %q, want the best, %q", got, paths[0])
	}
	t.Logf("this CPU, this build: %q", paths)
	before := CRCPath()
	for _, name := range []string{"", "crc32", "AVX2", "arm65-crc32"} {
		if err := SetCRC(name); !errors.Is(err, ErrCRC) {
			t.Errorf("SetCRC(%q): %v, want ErrCRC", name, err)
		}
		if got := CRCPath(); got != before {
			t.Errorf("after SetCRC(%q): %q in use, want %q", name, got, before)
		}
	}
	for _, name := range paths {
		useCRC(t, name)
		if got := CRCPath(); got != name {
			t.Errorf("after SetCRC(%q): %q in use", name, got)
		}
	}
	if paths[0] = "x"; CRCPaths()[0] == "x" {
		t.Error("CRCPaths gave away its own slice")
	}
}

// TestCRCNoAllocation: whichever way is in use, nothing allocates.
func TestCRCNoAllocation(t *testing.T) {
	forEachCRC(t, func(t *testing.T) {
		src, dst := make([]byte, 4096), make([]byte, 4096)
		for _, n := range []int{4, 20, 100, 300, 4096} {
			for name, f := range map[string]func(){
				"UpdateCRC": func() { sink = UpdateCRC(sink, src[:n]) },
				"CopyICRC":  func() { sink = CopyICRC(sink, dst[:n], src[:n]) },
				"ICRC":      func() { sink = ICRC(sink, src[:n+BTHLen-4]) },
				"HeaderState of a local array": func() {
					var hdr [64]byte
					hdr[5] = byte(n)
					sink = HeaderState(sink, hdr[:min(n+BTHLen-4, 64)])
				},
				"CopyICRC from a local array": func() {
					var local [512]byte
					local[5] = byte(n)
					sink = CopyICRC(sink, dst[:n], local[:])
				},
			} {
				if name == "ICRC" && n > 4000 {
					continue
				}
				if got := testing.AllocsPerRun(100, f); got != 0 {
					t.Errorf("%s, %d bytes: %v allocations a run", name, n, got)
				}
			}
		}
	})
}

// TestWordsPolynomial: what the shifts of words rely on, and that the ways that
// are there on every machine cannot be told from each other by a single bit,
// wherever it stands.
func TestWordsPolynomial(t *testing.T) {
	if sum := powerOfX(300) ^ powerOfX(155) ^ powerOfX(117) ^ powerOfX(89) ^ powerOfX(0); sum != 0 {
		t.Errorf("x^300 + x^155 + x^117 + x^89 + 1 leaves %#08x, want 0", sum)
	}
	b := make([]byte, 200)
	for bit := range 8 * len(b) {
		b[bit/8] = 1 << (bit % 8)
		if got, want := updateWords(0, b), updateShort(0, b); got != want {
			t.Fatalf("bit %d of %d bytes: %#08x, want %#08x", bit, len(b), got, want)
		}
		b[bit/8] = 0
	}
}

// FuzzCRC: every way gives what the table gives, in one piece and in two.
func FuzzCRC(f *testing.F) {
	for _, n := range []uint16{0, 1, 15, 16, 17, 31, 63, 64, 65, 127, 128, 255, 256, 511, 512, 767, 1024, 1040, 4096, 9000} {
		f.Add(uint64(n), n, uint8(n), uint8(n/5), uint32(n)*0x01234567, n/3)
	}
	f.Fuzz(func(t *testing.T, seed uint64, n uint16, srcOff, dstOff uint8, state uint32, cut uint16) {
		n %= 9001
		for _, name := range CRCPaths() {
			useCRC(t, name)
			checkCRC(t, seed, int(n), int(srcOff%64), int(dstOff%64), state)
			b, dst := randomBytes(seed, int(n)), make([]byte, n)
			at := int(cut) % (int(n) + 1)
			want := updateShort(state, b)
			if got := UpdateCRC(UpdateCRC(state, b[:at]), b[at:]); got != want {
				t.Fatalf("%s: %d and %d bytes from %#08x: %#08x, want %#08x", name, at, int(n)-at, state, got, want)
			}
			if got := CopyICRC(CopyICRC(state, dst[:at], b), dst[at:], b[at:]); got != want || !bytes.Equal(dst, b) {
				t.Fatalf("%s: copies of %d and %d bytes from %#08x: %#08x, want %#08x", name, at, int(n)-at, state, got, want)
			}
		}
	})
}

// TestStateByParts: BeginState and WordState together do what HeaderState does.
func TestStateByParts(t *testing.T) {
	for i := range uint32(1000) {
		h := BTHFields{Opcode: RCWriteMiddle, FECN: i&1 != 0, PKey: DefaultPKey, DestQP: QPN(i * 77), PSN: PSN(i*12345) & PSNMask}
		b := h.Append(nil)
		if got, want := WordState(BeginState(i, b), binary.LittleEndian.Uint32(b[8:])), HeaderState(i, b); got != want {
			t.Fatalf("%x: %#x, want %#x", b, got, want)
		}
	}
}

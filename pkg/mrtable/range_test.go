package mrtable

import (
	"errors"
	"math/big"
	"testing"
)

func num(v uint64) *big.Int { return new(big.Int).SetUint64(v) }

// bigInside says whether [off, off+n) lies in [base, base+length), without
// wrapping anything.
func bigInside(off, n, base, length uint64) bool {
	end := new(big.Int).Add(num(off), num(n))
	limit := new(big.Int).Add(num(base), num(length))
	return num(off).Cmp(num(base)) >= 0 && end.Cmp(limit) <= 0
}

// checkRange registers [iova, iova+length), looks [va, va+n) up, and accesses
// [off, off+m) of what it got.
func checkRange(t *testing.T, iova, length, va, n, off, m uint64, zeroBased bool) {
	tab := New(Config{MaxRegions: 1})
	mem := &probe{t: t, length: length}
	access, base := allAccess, iova
	if zeroBased {
		access, base = access|AccessZeroBased, 0
	}
	r, err := tab.Register(testPD, mem, iova, length, access, 0)
	fits := new(big.Int).Add(num(base), num(length)).IsUint64()
	if fits != (err == nil) {
		t.Fatalf("Register(%#x, %#x): %v, but fits is %v", base, length, err, fits)
	}
	if err != nil {
		return
	}
	if r.Addr() != base || r.Length() != length {
		t.Fatalf("region is [%#x, +%#x), want [%#x, +%#x)", r.Addr(), r.Length(), base, length)
	}
	seg, err := tab.Remote(r.RKey(), testPD, testQPN, va, n, AccessRemoteWrite)
	want := n == 0 || bigInside(va, n, base, length)
	if want != (err == nil) {
		t.Fatalf("Remote(%#x, %#x) in [%#x, +%#x): %v, want granted %v", va, n, base, length, err, want)
	}
	if _, lerr := tab.Local(r.LKey(), testPD, va, n, 0); !errors.Is(lerr, err) {
		t.Fatalf("Local(%#x, %#x): %v, Remote: %v", va, n, lerr, err)
	}
	if err != nil {
		seg = Segment{}
		n = 0
	}
	checkSegment(t, seg, n, off, m)
}

// checkSegment tries every access to [off, off+m) of a segment of n bytes; the
// probe behind it fails the test when one reaches outside the region.
func checkSegment(t *testing.T, seg Segment, n, off, m uint64) {
	part := seg.Slice(off, m)
	if bigInside(off, m, 0, n) {
		if part.Len() != m {
			t.Fatalf("Slice(%#x, %#x) of %#x: length %#x", off, m, n, part.Len())
		}
	} else if part != (Segment{}) {
		t.Fatalf("Slice(%#x, %#x) of %#x is not empty: %+v", off, m, n, part)
	}
	seg.Bytes(off, m)
	buf := make([]byte, m%64)
	fits := bigInside(off, uint64(len(buf)), 0, n)
	for name, err := range map[string]error{
		"ReadAt":        seg.ReadAt(buf, off),
		"WriteAt":       seg.WriteAt(buf, off),
		"WriteTailLast": seg.WriteTailLast(buf, off),
	} {
		if fits != (err == nil) {
			t.Fatalf("%s(%d bytes, %#x) of %#x: %v, want granted %v", name, len(buf), off, n, err, fits)
		}
	}
	_, cerr := seg.CompareSwap(off, 1, 2)
	_, ferr := seg.FetchAdd(off, 1)
	if cell := bigInside(off, 8, 0, n); cell == errors.Is(cerr, ErrBounds) || cell == errors.Is(ferr, ErrBounds) {
		t.Fatalf("atomics at %#x of %#x: %v, %v", off, n, cerr, ferr)
	}
}

package mrtable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"
)

const pageLen = 4096

// pagesOf lists pages of the bed's region by their numbers.
func (b *bed) pagesOf(numbers ...int) []Page {
	l := make([]Page, len(numbers))
	for i, n := range numbers {
		l[i] = Page{b.r.LKey(), winBase + uint64(n)*pageLen, pageLen}
	}
	return l
}

func (b *bed) fast() *Region {
	b.t.Helper()
	r, err := b.tab.AllocRegion(testPD, 4, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// TestFastRegisterRules: each rule of fast registration. A refused one changes
// nothing.
func TestFastRegisterRules(t *testing.T) {
	type args struct {
		pd     PD
		key    RKey
		iova   uint64
		access Access
		pages  []Page
	}
	for _, tt := range []struct {
		name string
		edit func(*bed, *args)
		want error
	}{
		{"as it should be", func(*bed, *args) {}, nil},
		{"the key that it has", func(_ *bed, a *args) { a.key = a.key&^0xFF | (a.key-1)&0xFF }, nil},
		{"another domain", func(_ *bed, a *args) { a.pd++ }, ErrPD},
		{"no such key", func(_ *bed, a *args) { a.key ^= 0x100000 }, ErrKey},
		{"a plain region's key", func(b *bed, a *args) { a.key = b.r.RKey() }, ErrKey},
		{"a window's key", func(b *bed, a *args) { a.key = b.window(WindowType2).RKey() }, ErrKey},
		{"remote write without local write", func(_ *bed, a *args) { a.access = AccessRemoteWrite }, ErrAccessFlags},
		{"no pages", func(_ *bed, a *args) { a.pages = nil }, ErrPages},
		{"more pages than allocated", func(b *bed, a *args) { a.pages = b.pagesOf(0, 1, 2, 3, 0) }, ErrPages},
		{"pages of different lengths", func(_ *bed, a *args) { a.pages[1].Length *= 2 }, ErrPages},
		{"pages of 2048 bytes", func(_ *bed, a *args) { a.pages[0].Length, a.pages[1].Length = 2048, 2048 }, ErrPages},
		{"pages of 6000 bytes", func(_ *bed, a *args) { a.pages[0].Length, a.pages[1].Length = 6000, 6000 }, ErrPages},
		{"the range wraps", func(_ *bed, a *args) { a.iova = math.MaxUint64 - 2*pageLen + 1 }, ErrLength},
		{"zero-based: the iova does not count", func(_ *bed, a *args) {
			a.iova, a.access = math.MaxUint64, a.access|AccessZeroBased
		}, nil},
		{"a page of no region", func(_ *bed, a *args) { a.pages[1].LKey ^= 1 }, ErrPageMemory},
		{"a page outside its region", func(_ *bed, a *args) { a.pages[1].Addr = winBase + winLen - 1 }, ErrPageMemory},
		{"a page of another domain's region", func(b *bed, a *args) {
			a.pages[0].LKey = mustRegister(b.t, b.tab, testPD+1, b.mem, winBase, winLen, allAccess).LKey()
		}, ErrPageMemory},
		{"writable, of a region that is not", func(b *bed, a *args) {
			a.pages[0].LKey = mustRegister(b.t, b.tab, testPD, b.mem, winBase, winLen, 0).LKey()
		}, ErrPageMemory},
		{"read only, of a region that is", func(b *bed, a *args) {
			a.pages[0].LKey, a.access = mustRegister(b.t, b.tab, testPD, b.mem, winBase, winLen, 0).LKey(), AccessRemoteRead
		}, nil},
		{"a page of a fast region", func(b *bed, a *args) {
			f := b.fast()
			if err := b.tab.FastRegister(testPD, f.RKey(), winBase, allAccess, b.pagesOf(0)); err != nil {
				b.t.Fatal(err)
			}
			a.pages[0].LKey, a.pages[0].Addr = f.LKey(), winBase
		}, ErrPageMemory},
	} {
		b := newBed(t, allAccess)
		f := b.fast()
		before := f.RKey()
		a := args{testPD, nextRKey(before), 0x7000000, allAccess, b.pagesOf(3, 1)}
		tt.edit(b, &a)
		err := b.tab.FastRegister(a.pd, a.key, a.iova, a.access, a.pages)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
		if err != nil && (f.RKey() != before || f.Length() != 0) {
			t.Errorf("%s: a refused registration changed the region", tt.name)
		}
		if err == nil {
			wantErr(t, tt.name, b.look(f.RKey(), testQPN, f.Addr()), nil)
			wantErr(t, tt.name+", again", b.tab.FastRegister(a.pd, nextRKey(a.key), a.iova, a.access, a.pages), ErrInUse)
		}
	}
}

// TestFastRegionMemory: the pages lie one behind the other, whatever their order
// and neighbourhood, and every access reaches the right bytes.
func TestFastRegionMemory(t *testing.T) {
	for _, order := range [][]int{{0}, {0, 1, 2}, {2, 0}, {3, 2, 1, 0}, {0, 1, 3, 2}, {1, 1}} {
		b := newBed(t, allAccess)
		for i := range b.mem {
			b.mem[i] = byte(i*13 + i>>8)
		}
		const iova = 0x7000010
		f := b.fast()
		wantErr(t, "before", b.look(f.RKey(), testQPN, iova), ErrKey)
		if err := b.tab.FastRegister(testPD, nextRKey(f.RKey()), iova, allAccess, b.pagesOf(order...)); err != nil {
			t.Fatal(err)
		}
		n := len(order) * pageLen
		var model []byte
		for _, p := range order {
			model = append(model, b.mem[p*pageLen:][:pageLen]...)
		}
		seg, err := b.tab.Remote(f.RKey(), testPD, testQPN, iova, uint64(n), AccessRemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.tab.Local(f.LKey(), testPD, iova, uint64(n)+1, 0)
		wantErr(t, "one byte too long", err, ErrBounds)
		for _, at := range [][2]int{{0, n}, {1, 5}, {n - 1, 1}, {pageLen - 3, min(6, n-pageLen+3)}, {100, n - 100}} {
			got := make([]byte, at[1])
			if err := seg.ReadAt(got, uint64(at[0])); err != nil || !bytes.Equal(got, model[at[0]:][:at[1]]) {
				t.Errorf("pages %v, read %v: %v", order, at, err)
			}
			if d := seg.Bytes(uint64(at[0]), uint64(at[1])); d != nil && !bytes.Equal(d, got) {
				t.Errorf("pages %v, bytes %v differ from what was read", order, at)
			}
		}
		if seg.Bytes(8, 16) == nil {
			t.Errorf("pages %v: a range inside a page is not mapped", order)
		}
		checkFastWrites(t, b, seg, order, n)
	}
}

// checkFastWrites writes through the region and looks at the pages.
func checkFastWrites(t *testing.T, b *bed, seg Segment, order []int, n int) {
	t.Helper()
	src := pattern(n)
	if err := seg.WriteAt(src, 0); err != nil {
		t.Fatal(err)
	}
	last := make(map[int]int)
	for i, p := range order {
		last[p] = i
	}
	for p, i := range last {
		if !bytes.Equal(b.mem[p*pageLen:][:pageLen], src[i*pageLen:][:pageLen]) {
			t.Errorf("pages %v: page %d does not have what was written", order, p)
		}
	}
	off := uint64(n - 8)
	cell := b.mem[order[len(order)-1]*pageLen+pageLen-8:]
	was := binary.NativeEndian.Uint64(cell)
	if old, err := seg.FetchAdd(off, 5); err != nil || old != was || binary.NativeEndian.Uint64(cell) != was+5 {
		t.Errorf("pages %v: FetchAdd: %#x, %v", order, old, err)
	}
	if old, err := seg.CompareSwap(off, was+5, 1); err != nil || old != was+5 || binary.NativeEndian.Uint64(cell) != 1 {
		t.Errorf("pages %v: CompareSwap: %#x, %v", order, old, err)
	}
}

// TestPageListBounds: the list itself refuses what lies outside it, and an atomic
// over the edge of two pieces.
func TestPageListBounds(t *testing.T) {
	l := &pageList{length: 2 * pageLen}
	l.add(HeapMemory(make([]byte, pageLen)), 0, pageLen, false)
	l.add(HeapMemory(make([]byte, pageLen)), 0, pageLen, false)
	buf := make([]byte, 16)
	wantErr(t, "read", l.ReadAt(buf, 2*pageLen-15), ErrBounds)
	wantErr(t, "write", l.WriteAt(buf, math.MaxUint64), ErrBounds)
	_, err := l.FetchAdd(2*pageLen-7, 1)
	wantErr(t, "fetch-add", err, ErrBounds)
	_, err = l.CompareSwap(pageLen-4, 0, 1)
	wantErr(t, "compare-swap over the edge", err, ErrAlign)
	_, err = l.FetchAdd(pageLen-1, 1)
	wantErr(t, "fetch-add over the edge", err, ErrAlign)
	for _, r := range [][2]uint64{{0, 0}, {pageLen - 1, 2}, {2 * pageLen, 1}, {1, math.MaxUint64}} {
		if l.Bytes(r[0], r[1]) != nil {
			t.Errorf("Bytes(%#x, %#x) gave something", r[0], r[1])
		}
	}
}

// TestFastRegionLife: registered, invalidated, registered again under another
// key; marked in either state; gone with the memory of its pages.
func TestFastRegionLife(t *testing.T) {
	b := newBed(t, bindAccess)
	for _, n := range []uint32{0, MaxPages + 1} {
		_, err := b.tab.AllocRegion(testPD, n, 0)
		wantErr(t, "a list of no or too many pages", err, ErrPages)
	}
	f := b.fast()
	if f.Memory() != nil || f.Length() != 0 || f.PD() != testPD {
		t.Errorf("new region: %+v", f)
	}
	reg := func(access Access) RKey {
		t.Helper()
		if err := b.tab.FastRegister(testPD, nextRKey(f.RKey()), 0x7000000, access, b.pagesOf(2, 0)); err != nil {
			t.Fatal(err)
		}
		return f.RKey()
	}
	first := reg(allAccess)
	if f.Addr() != 0x7000000 || f.Length() != 2*pageLen || f.Access() != allAccess || uint32(f.LKey()) != uint32(f.RKey()) {
		t.Errorf("registered: [%#x, +%#x), access %#x", f.Addr(), f.Length(), f.Access())
	}
	wantErr(t, "invalidate", b.tab.InvalidateLocal(first, testPD), nil)
	wantErr(t, "invalidated", b.look(first, testQPN, 0x7000000), ErrKey)
	second := reg(bindAccess)
	wantErr(t, "the first key", b.look(first, testQPN, 0x7000000), ErrKey)
	wantErr(t, "the second key", b.look(second, testQPN, 0x7000000), nil)

	w := b.window(WindowType2)
	a := BindArgs{nextRKey(w.RKey()), f.LKey(), 0x7000000 + pageLen, 64, AccessRemoteRead}
	wantErr(t, "bind a window to it", b.tab.Bind(testQPN, testPD, a), nil)
	wantErr(t, "MEM-10: invalidate with a bound window", b.tab.InvalidateLocal(second, testPD), ErrBound)
	wantErr(t, "mark with a bound window", b.tab.Mark(f), ErrBound)
	wantErr(t, "the window", b.look(w.RKey(), testQPN, 0x7000000+pageLen), nil)

	// The source's end needs no leave of those who use it as pages.
	src := b.r
	wantErr(t, "mark the source", b.tab.Mark(src), nil)
	wantErr(t, "without its pages", b.look(second, testQPN, 0x7000000), ErrKey)
	wantErr(t, "a window on it", b.look(w.RKey(), testQPN, 0x7000000+pageLen), ErrKey)
	wantErr(t, "invalidate the window all the same", b.tab.InvalidateLocal(w.RKey(), testPD), nil)
	wantErr(t, "mark the window", b.tab.MarkWindow(w), nil)
	wantErr(t, "mark the region", b.tab.Mark(f), nil)
	wantErr(t, "register a marked region", b.tab.FastRegister(testPD, nextRKey(second), 0, 0, b.pagesOf(0)), ErrKey)
	b.tab.Free(f)
	wantErr(t, "mark a fast region that has no memory", b.tab.Mark(b.fast()), nil)
}

package mrtable

import (
	"errors"
	"math"
	"testing"
)

const (
	winBase, winLen = 0x10000, 0x4000 // of the region that windows open
	bindAccess      = allAccess | AccessMWBind
)

// bed is a table with a region that windows can be bound to.
type bed struct {
	t   *testing.T
	tab *Table
	mem HeapMemory
	r   *Region
}

func newBed(t *testing.T, access Access) *bed {
	b := &bed{t: t, tab: New(Config{MaxRegions: 32, Secret: 77}), mem: make(HeapMemory, winLen)}
	b.r = mustRegister(t, b.tab, testPD, b.mem, winBase, winLen, access)
	return b
}

func (b *bed) window(typ WindowType) *Window {
	b.t.Helper()
	w, err := b.tab.AllocWindow(testPD, typ, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	return w
}

// args binds the window to 0x100 bytes in the middle, under the next key.
func (b *bed) args(w *Window) BindArgs {
	return BindArgs{nextRKey(w.RKey()), b.r.LKey(), winBase + 0x1000, 0x100, AccessRemoteWrite | AccessRemoteRead}
}

// nextRKey is the key with the next low byte, as ibv_inc_rkey makes it.
func nextRKey(k RKey) RKey { return k&^0xFF | (k+1)&0xFF }

func (b *bed) bind(w *Window) {
	b.t.Helper()
	if err := b.tab.Bind(testQPN, testPD, b.args(w)); err != nil {
		b.t.Fatalf("Bind: %v", err)
	}
}

// look asks for one byte under a key.
func (b *bed) look(k RKey, qpn uint32, va uint64) error {
	_, err := b.tab.Remote(k, testPD, qpn, va, 1, AccessRemoteRead)
	return err
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// TestBindRules: each rule of a bind (IBTA Vol 1 C10-72 to C10-75, o10-37) for
// both types. A refused bind changes nothing.
func TestBindRules(t *testing.T) {
	none := func(*bed, *Window, *BindArgs) {}
	for _, tt := range []struct {
		name   string
		access Access // of the region
		pd     PD
		edit   func(*bed, *Window, *BindArgs)
		want   [2]error // type 1, type 2
	}{
		{"as it should be", bindAccess, testPD, none, [2]error{}},
		{"the whole region", bindAccess, testPD, func(_ *bed, _ *Window, a *BindArgs) { a.Addr, a.Length = winBase, winLen }, [2]error{}},
		{"no right at all", bindAccess, testPD, func(_ *bed, _ *Window, a *BindArgs) { a.Access = 0 }, [2]error{}},
		{"C10-72: a queue pair of another domain", bindAccess, testPD + 1, none, [2]error{ErrPD, ErrPD}},
		{"C10-72: a region of another domain", bindAccess, testPD, func(b *bed, _ *Window, a *BindArgs) {
			a.MR = mustRegister(b.t, b.tab, testPD+1, b.mem, winBase, winLen, bindAccess).LKey()
		}, [2]error{ErrPD, ErrPD}},
		{"MEM-05: C10-73: no bind right", allAccess, testPD, none, [2]error{ErrAccess, ErrAccess}},
		{"MEM-06: C10-74: remote write on a region without local write", AccessMWBind | AccessRemoteRead, testPD, none, [2]error{ErrAccess, ErrAccess}},
		{"C10-74: remote atomic on a region without local write", AccessMWBind, testPD, func(_ *bed, _ *Window, a *BindArgs) { a.Access = AccessRemoteAtomic }, [2]error{ErrAccess, ErrAccess}},
		{"remote read on a region without remote read", AccessMWBind, testPD, func(_ *bed, _ *Window, a *BindArgs) { a.Access = AccessRemoteRead }, [2]error{}},
		{"MEM-07: C10-75: one byte before", bindAccess, testPD, func(_ *bed, _ *Window, a *BindArgs) { a.Addr = winBase - 1 }, [2]error{ErrBounds, ErrBounds}},
		{"C10-75: one byte behind", bindAccess, testPD, func(_ *bed, _ *Window, a *BindArgs) { a.Addr, a.Length = winBase+1, winLen }, [2]error{ErrBounds, ErrBounds}},
		{"F5: the range wraps", bindAccess, testPD, func(_ *bed, _ *Window, a *BindArgs) { a.Addr, a.Length = 0xFFFFFFFFFFFFFC00, 0x400 }, [2]error{ErrBounds, ErrBounds}},
		{"F5: the length wraps into the region", bindAccess, testPD, func(_ *bed, _ *Window, a *BindArgs) { a.Length = math.MaxUint64 }, [2]error{ErrBounds, ErrBounds}},
		{"length 0", bindAccess, testPD, func(_ *bed, _ *Window, a *BindArgs) { a.Length = 0 }, [2]error{nil, ErrBounds}},
		{"the same key again", bindAccess, testPD, func(_ *bed, w *Window, a *BindArgs) { a.RKey = w.RKey() }, [2]error{ErrKey, ErrKey}},
		{"another window's key", bindAccess, testPD, func(_ *bed, _ *Window, a *BindArgs) { a.RKey ^= 0x40000 }, [2]error{ErrKey, ErrKey}},
		{"a region's key", bindAccess, testPD, func(b *bed, _ *Window, a *BindArgs) { a.RKey = nextRKey(b.r.RKey()) }, [2]error{ErrKey, ErrKey}},
		{"no such region", bindAccess, testPD, func(_ *bed, _ *Window, a *BindArgs) { a.MR ^= 1 }, [2]error{ErrKey, ErrKey}},
		{"a window as the region", bindAccess, testPD, func(b *bed, _ *Window, a *BindArgs) {
			other := b.window(WindowType1)
			b.bind(other)
			a.MR = LKey(other.RKey())
		}, [2]error{ErrKey, ErrKey}},
		{"zero-based", bindAccess, testPD, func(_ *bed, _ *Window, a *BindArgs) { a.Access |= AccessZeroBased }, [2]error{ErrAccessFlags, nil}},
		{"a zero-based region", bindAccess | AccessZeroBased, testPD, func(_ *bed, _ *Window, a *BindArgs) { a.Addr = 0 }, [2]error{ErrAccess, ErrAccess}},
		{"the bind right on a window", bindAccess, testPD, func(_ *bed, _ *Window, a *BindArgs) { a.Access |= AccessMWBind }, [2]error{ErrAccessFlags, ErrAccessFlags}},
		{"an unknown right", bindAccess, testPD, func(_ *bed, _ *Window, a *BindArgs) { a.Access |= 1 << 15 }, [2]error{ErrAccessFlags, ErrAccessFlags}},
	} {
		for i, typ := range []WindowType{WindowType1, WindowType2} {
			b := newBed(t, tt.access)
			w := b.window(typ)
			a := b.args(w)
			tt.edit(b, w, &a)
			key := w.RKey()
			err := b.tab.Bind(testQPN, tt.pd, a)
			if !errors.Is(err, tt.want[i]) {
				t.Errorf("%s, type %d: %v, want %v", tt.name, typ, err, tt.want[i])
			}
			if err != nil && (w.RKey() != key || w.Length() != 0) {
				t.Errorf("%s, type %d: a refused bind changed the window", tt.name, typ)
			}
			if err == nil && (w.RKey() != a.RKey || w.Length() != a.Length) {
				t.Errorf("%s, type %d: key %#x, length %#x after the bind", tt.name, typ, w.RKey(), w.Length())
			}
			if err == nil && a.Length > 0 && a.Access&AccessRemoteRead != 0 {
				wantErr(t, tt.name, b.look(w.RKey(), testQPN, w.Addr()), nil)
			}
		}
	}
}

// TestWindowOpensItsRange: the window's own range and rights count, not the
// region's (MEM-01 to MEM-03), and the segment is the region's memory.
func TestWindowOpensItsRange(t *testing.T) {
	for _, typ := range []WindowType{WindowType1, WindowType2} {
		for _, zero := range []bool{false, true} {
			if zero && typ == WindowType1 {
				continue
			}
			b := newBed(t, bindAccess)
			w := b.window(typ)
			a := b.args(w)
			base := a.Addr
			if zero {
				a.Access |= AccessZeroBased
				base = 0
			}
			wantErr(t, "before the bind", b.look(w.RKey(), testQPN, base), ErrKey)
			wantErr(t, "bind", b.tab.Bind(testQPN, testPD, a), nil)
			if w.Addr() != base || w.Length() != 0x100 || w.Access() != a.Access || w.Type() != typ || w.PD() != testPD {
				t.Errorf("window is [%#x, +%#x), access %#x", w.Addr(), w.Length(), w.Access())
			}
			for _, c := range []struct {
				what string
				pd   PD
				va   uint64
				n    uint64
				need Access
				want error
			}{
				{"all of it", testPD, base, 0x100, AccessRemoteWrite, nil},
				{"one byte before", testPD, base - 1, 1, AccessRemoteWrite, ErrBounds},
				{"one byte behind", testPD, base + 0x100, 1, AccessRemoteWrite, ErrBounds},
				{"one byte too long", testPD, base, 0x101, AccessRemoteRead, ErrBounds},
				{"length 0", testPD, 5, 0, AccessRemoteWrite, nil},
				{"a right that only the region has", testPD, base, 8, AccessRemoteAtomic, ErrAccess},
				{"another domain", testPD + 1, base, 8, AccessRemoteRead, ErrPD},
			} {
				_, err := b.tab.Remote(w.RKey(), c.pd, testQPN, c.va, c.n, c.need)
				wantErr(t, c.what, err, c.want)
			}
			seg, err := b.tab.Remote(w.RKey(), testPD, testQPN, base+4, 8, AccessRemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			if err := seg.WriteAt([]byte{0xAB}, 0); err != nil || b.mem[0x1004] != 0xAB {
				t.Errorf("wrote through the window: %v, memory has %#x", err, b.mem[0x1004])
			}
			_, err = b.tab.Local(LKey(w.RKey()), testPD, base, 8, 0)
			wantErr(t, "as a local key", err, ErrKey)
		}
	}
}

// TestWindowTypes: type 1 is bound anew at any time, is for every queue pair of
// its domain and is unbound by length 0; type 2 is bound once, for one queue
// pair (MEM-04, MEM-08).
func TestWindowTypes(t *testing.T) {
	b := newBed(t, bindAccess)
	one, two := b.window(WindowType1), b.window(WindowType2)
	b.bind(one)
	b.bind(two)
	wantErr(t, "type 1, another queue pair", b.look(one.RKey(), testQPN+1, winBase+0x1000), nil)
	wantErr(t, "type 2, another queue pair", b.look(two.RKey(), testQPN+1, winBase+0x1000), ErrQP)
	wantErr(t, "type 2, queue pair 0", b.look(two.RKey(), 0, winBase+0x1000), ErrQP)

	wantErr(t, "type 2 bound again", b.tab.Bind(testQPN, testPD, b.args(two)), ErrInUse)
	old := one.RKey()
	b.bind(one)
	wantErr(t, "type 1, the old key", b.look(old, testQPN, winBase+0x1000), ErrKey)
	wantErr(t, "type 1, the new key", b.look(one.RKey(), testQPN, winBase+0x1000), nil)
	if one.RKey()>>8 != old>>8 {
		t.Errorf("the key went from %#x to %#x", old, one.RKey())
	}
	a := b.args(one)
	a.Length = 0
	wantErr(t, "unbind", b.tab.Bind(testQPN, testPD, a), nil)
	wantErr(t, "unbound", b.look(one.RKey(), testQPN, winBase+0x1000), ErrKey)
	wantErr(t, "two is bound still", b.tab.Mark(b.r), ErrBound)
	wantErr(t, "invalidate", b.tab.InvalidateLocal(two.RKey(), testPD), nil)
	wantErr(t, "mark", b.tab.Mark(b.r), nil)
}

// TestBoundRegionStays: while a window is bound to a region it cannot be marked
// (MEM-11), and whatever ends the binding lets it go.
func TestBoundRegionStays(t *testing.T) {
	for _, tt := range []struct {
		name string
		typ  WindowType
		end  func(*bed, *Window) error
	}{
		{"unbind", WindowType1, func(b *bed, w *Window) error {
			return b.tab.Bind(testQPN, testPD, BindArgs{RKey: nextRKey(w.RKey())})
		}},
		{"bind to another region", WindowType1, func(b *bed, w *Window) error {
			a := b.args(w)
			a.MR = mustRegister(b.t, b.tab, testPD, b.mem, winBase, winLen, bindAccess).LKey()
			return b.tab.Bind(testQPN, testPD, a)
		}},
		{"local invalidate", WindowType2, func(b *bed, w *Window) error { return b.tab.InvalidateLocal(w.RKey(), testPD) }},
		{"remote invalidate", WindowType2, func(b *bed, w *Window) error { return b.tab.InvalidateRemote(w.RKey(), testPD, testQPN) }},
		{"the end of a window of type 1", WindowType1, func(b *bed, w *Window) error { return b.tab.MarkWindow(w) }},
		{"the end of a window of type 2", WindowType2, func(b *bed, w *Window) error { return b.tab.MarkWindow(w) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t, bindAccess)
			w := b.window(tt.typ)
			b.bind(w)
			if tt.typ == WindowType1 {
				b.bind(w) // to the same region again: counted once
			}
			bad := b.args(w)
			bad.Addr = 0
			if b.tab.Bind(testQPN, testPD, bad) == nil {
				t.Error("bound to nothing")
			}
			wantErr(t, "mark", b.tab.Mark(b.r), ErrBound)
			wantErr(t, "a refused mark changes nothing", b.look(w.RKey(), testQPN, winBase+0x1000), nil)
			wantErr(t, "and the region is whole", b.look(b.r.RKey(), testQPN, winBase), nil)
			wantErr(t, tt.name, tt.end(b, w), nil)
			wantErr(t, "mark after that", b.tab.Mark(b.r), nil)
			b.tab.Free(b.r)
		})
	}
}

// TestWindowLife walks a window through its life, and its slot through two.
func TestWindowLife(t *testing.T) {
	tab := New(Config{MaxRegions: 2, Secret: 5})
	mem := HeapMemory(make([]byte, winLen))
	b := &bed{t: t, tab: tab, mem: mem, r: mustRegister(t, tab, testPD, mem, winBase, winLen, bindAccess)}
	_, err := tab.AllocWindow(testPD, 3, 0)
	wantErr(t, "type 3", err, ErrWindowType)
	_, err = tab.AllocWindow(0, WindowType1, 0)
	wantErr(t, "domain 0", err, ErrPDZero)
	w := b.window(WindowType2)
	_, err = tab.AllocWindow(testPD, WindowType1, 0)
	wantErr(t, "a third holder in a table of two", err, ErrFull)
	if tab.Len() != 2 {
		t.Errorf("Len() = %d", tab.Len())
	}
	b.bind(w)
	key := w.RKey()
	tab.FreeWindow(w)
	wantErr(t, "freed without a mark", b.look(key, testQPN, winBase+0x1000), nil)
	wantErr(t, "mark", tab.MarkWindow(w), nil)
	wantErr(t, "marked", b.look(key, testQPN, winBase+0x1000), ErrKey)
	wantErr(t, "mark again", tab.MarkWindow(w), ErrNotRegistered)
	wantErr(t, "bind a marked window", tab.Bind(testQPN, testPD, b.args(w)), ErrKey)
	wantErr(t, "invalidate a marked window", tab.InvalidateLocal(key, testPD), ErrKey)
	tab.FreeWindow(w)
	tab.FreeWindow(w)
	if tab.Len() != 1 {
		t.Errorf("Len() after two frees = %d", tab.Len())
	}
	next := b.window(WindowType1)
	wantErr(t, "the old handle", tab.MarkWindow(w), ErrNotRegistered)
	wantErr(t, "the old key", tab.Bind(testQPN, testPD, b.args(w)), ErrKey)
	b.bind(next)
	wantErr(t, "the next holder", b.look(next.RKey(), testQPN, winBase+0x1000), nil)
	wantErr(t, "nil", tab.MarkWindow(nil), ErrNotRegistered)
	tab.FreeWindow(nil)
	if w.RKey()>>8 != key>>8 || w.Length() != 0 {
		t.Errorf("the old handle tells of the next holder: key %#x, length %#x", w.RKey(), w.Length())
	}
}

// TestNoBindToWhatEnds: a bind that found the region, and comes to it when its end
// has begun, is refused.
func TestNoBindToWhatEnds(t *testing.T) {
	b := newBed(t, bindAccess)
	w := b.window(WindowType1)
	g := b.r.h.now()
	for range 2 {
		if !g.end() {
			t.Error("a region without windows cannot end")
		}
	}
	wantErr(t, "bind", b.tab.Bind(testQPN, testPD, b.args(w)), ErrBound)
	if n := g.users.Load(); n != over {
		t.Errorf("users %d after a refused bind", n)
	}
	wantErr(t, "the window", b.look(w.RKey(), testQPN, winBase+0x1000), ErrKey)
}

// TestWindowNeedsItsRegion: should a region ever go while a window is bound to
// it, the window opens nothing.
func TestWindowNeedsItsRegion(t *testing.T) {
	b := newBed(t, bindAccess)
	w := b.window(WindowType1)
	b.bind(w)
	b.r.h.s.grant.Store(nil)
	wantErr(t, "look-up", b.look(w.RKey(), testQPN, winBase+0x1000), ErrKey)
}

package mrtable

import "testing"

// TestNoAllocation: look-ups, refused or granted, and accesses allocate
// nothing.
func TestNoAllocation(t *testing.T) {
	tab := New(Config{MaxRegions: 16, Secret: 1})
	r := mustRegister(t, tab, testPD, HeapMemory(make([]byte, 4096)), 0x1000, 4096, allAccess)
	buf := pattern(256)
	b := newBed(t, bindAccess)
	w := b.window(WindowType2)
	b.bind(w)
	fast := registered(b)
	var sink error
	for _, tt := range []struct {
		name string
		do   func()
	}{
		{"remote look-up and tail-last write", func() {
			seg, _ := tab.Remote(r.RKey(), testPD, testQPN, 0x1004, 4000, AccessRemoteWrite)
			sink = seg.WriteTailLast(buf, 3)
		}},
		{"local look-up, read and write", func() {
			seg, _ := tab.Local(r.LKey(), testPD, 0x1000, 4096, AccessLocalWrite)
			sink = seg.ReadAt(buf, 9)
			sink = seg.Slice(8, 1024).WriteAt(buf, 0)
			buf[0] += seg.Bytes(0, 16)[3]
		}},
		{"atomics", func() {
			seg, _ := tab.Remote(r.RKey(), testPD, testQPN, 0x1000, 8, AccessRemoteAtomic)
			_, sink = seg.FetchAdd(0, 1)
			_, sink = seg.CompareSwap(0, 1, 2)
		}},
		{"window and fast region", func() {
			seg, _ := b.tab.Remote(w.RKey(), testPD, testQPN, winBase+0x1000, 0x100, AccessRemoteWrite)
			sink = seg.WriteTailLast(buf, 0)
			seg, _ = b.tab.Remote(fast, testPD, testQPN, 0x7000000, 2*pageLen, AccessRemoteWrite)
			sink = seg.WriteAt(buf, pageLen-100)
			sink = seg.ReadAt(buf, pageLen-100)
			_, sink = seg.FetchAdd(8, 1)
			_, sink = b.tab.Remote(w.RKey(), testPD, testQPN+1, winBase+0x1000, 1, AccessRemoteWrite)
		}},
		{"refusals", func() {
			_, sink = tab.Remote(r.RKey()^1, testPD, testQPN, 0x1000, 8, AccessRemoteAtomic)
			_, sink = tab.Remote(r.RKey(), testPD+1, testQPN, 0x1000, 8, AccessRemoteAtomic)
			_, sink = tab.Remote(r.RKey(), testPD, testQPN, 0x1000, 8, AccessMWBind|AccessRemoteRead)
			_, sink = tab.Remote(r.RKey(), testPD, testQPN, 0, 8, AccessRemoteRead)
			_, sink = Segment{}.FetchAdd(0, 1)
		}},
	} {
		if n := testing.AllocsPerRun(100, tt.do); n != 0 {
			t.Errorf("%s: %v allocations", tt.name, n)
		}
	}
	_ = sink
}

func BenchmarkRemote(b *testing.B) {
	tab := New(Config{Secret: 1})
	r := mustRegister(b, tab, testPD, HeapMemory(make([]byte, 4096)), 0x1000, 4096, allAccess)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tab.Remote(r.RKey(), testPD, testQPN, 0x1000, 4096, AccessRemoteWrite); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRemoteWindow(b *testing.B) {
	tab := New(Config{Secret: 1})
	r := mustRegister(b, tab, testPD, HeapMemory(make([]byte, 4096)), 0x1000, 4096, bindAccess)
	w, err := tab.AllocWindow(testPD, WindowType2, 0)
	if err != nil {
		b.Fatal(err)
	}
	if err := tab.Bind(testQPN, testPD, BindArgs{nextRKey(w.RKey()), r.LKey(), 0x1000, 4096, AccessRemoteWrite}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tab.Remote(w.RKey(), testPD, testQPN, 0x1000, 4096, AccessRemoteWrite); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRegisterFree(b *testing.B) {
	tab := New(Config{Secret: 1})
	mem := HeapMemory(make([]byte, 4096))
	b.ReportAllocs()
	for b.Loop() {
		r, err := tab.Register(testPD, mem, 0, 4096, 0, 7)
		if err != nil {
			b.Fatal(err)
		}
		if err := tab.Mark(r); err != nil {
			b.Fatal(err)
		}
		tab.Free(r)
	}
}

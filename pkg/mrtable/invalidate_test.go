package mrtable

import "testing"

// TestInvalidate: what a request or a peer may invalidate, and what not.
func TestInvalidate(t *testing.T) {
	for _, tt := range []struct {
		name          string
		make          func(*bed) RKey
		pd            PD
		qpn           uint32
		local, remote error
	}{
		{"MEM-09, SND-17: a window of type 2", bound(WindowType2), testPD, testQPN, nil, nil},
		{"a window bound to another queue pair", bound(WindowType2), testPD, testQPN + 1, nil, ErrQP},
		{"a window of another domain", bound(WindowType2), testPD + 1, testQPN, ErrPD, ErrPD},
		{"a window of type 1", bound(WindowType1), testPD, testQPN, ErrInvalidate, ErrInvalidate},
		{"a window that is not bound", func(b *bed) RKey { return b.window(WindowType2).RKey() }, testPD, testQPN, ErrKey, ErrKey},
		{"a window's old key", func(b *bed) RKey { return bound(WindowType2)(b) ^ 1 }, testPD, testQPN, ErrKey, ErrKey},
		{"a fast region", registered, testPD, testQPN + 5, nil, nil},
		{"a fast region of another domain", registered, testPD + 1, testQPN, ErrPD, ErrPD},
		{"a fast region without memory", func(b *bed) RKey { return b.fast().RKey() }, testPD, testQPN, ErrKey, ErrKey},
		{"SND-19: a plain region", func(b *bed) RKey { return b.r.RKey() }, testPD, testQPN, ErrInvalidate, ErrInvalidate},
		{"SND-18: no key", func(*bed) RKey { return 0xABCDEF01 }, testPD, testQPN, ErrKey, ErrKey},
		{"key 0", func(*bed) RKey { return 0 }, testPD, testQPN, ErrKey, ErrKey},
	} {
		for i, want := range []error{tt.local, tt.remote} {
			b := newBed(t, bindAccess)
			key := tt.make(b)
			alive := func() bool { return b.tab.find(uint32(key)) != nil }
			before := alive()
			var err error
			if i == 0 {
				err = b.tab.InvalidateLocal(key, tt.pd)
			} else {
				err = b.tab.InvalidateRemote(key, tt.pd, tt.qpn)
			}
			wantErr(t, tt.name, err, want)
			if want == nil && alive() || want != nil && alive() != before {
				t.Errorf("%s: the key grants something: %v, before %v", tt.name, alive(), before)
			}
			if want == nil {
				wantErr(t, tt.name+", again", b.tab.InvalidateLocal(key, tt.pd), ErrKey)
			}
		}
	}
}

func bound(typ WindowType) func(*bed) RKey {
	return func(b *bed) RKey {
		w := b.window(typ)
		b.bind(w)
		return w.RKey()
	}
}

func registered(b *bed) RKey {
	f := b.fast()
	if err := b.tab.FastRegister(testPD, nextRKey(f.RKey()), 0x7000000, allAccess, b.pagesOf(1, 2)); err != nil {
		b.t.Fatal(err)
	}
	return f.RKey()
}

// TestBoundAgain: an invalidated window is bound again, under another key than
// the last.
func TestBoundAgain(t *testing.T) {
	b := newBed(t, bindAccess)
	w := b.window(WindowType2)
	for i := range 300 {
		a := b.args(w)
		if i%2 == 1 {
			a.RKey = w.RKey()
			wantErr(t, "the last key", b.tab.Bind(testQPN, testPD, a), ErrKey)
			a = b.args(w)
		}
		wantErr(t, "bind", b.tab.Bind(testQPN+uint32(i), testPD, a), nil)
		wantErr(t, "bound", b.look(w.RKey(), testQPN+uint32(i), winBase+0x1000), nil)
		wantErr(t, "invalidate", b.tab.InvalidateRemote(w.RKey(), testPD, testQPN+uint32(i)), nil)
	}
	wantErr(t, "mark", b.tab.Mark(b.r), nil)
}

// TestWholeAddressSpace: a region over all addresses but the last grants what
// does not reach behind it; no sum wraps (F5).
func TestWholeAddressSpace(t *testing.T) {
	tab := New(Config{MaxRegions: 4})
	mem := &probe{t: t, length: WholeLength}
	r := mustRegister(t, tab, testPD, mem, 0, WholeLength, bindAccess)
	for _, tt := range []struct {
		va, n uint64
		want  error
	}{
		{0, 1, nil},
		{0, WholeLength, nil},
		{0x7FFF_FFFF_F000, 0x1000, nil},
		{WholeLength - 8, 8, nil},
		{WholeLength, 1, ErrBounds},
		{WholeLength - 7, 8, ErrBounds},
		{0xFFFFFFFFFFFFFC00, 0x400, ErrBounds},
		{0xFFFFFFFFFFFFFC00, 0x800, ErrBounds},
		{1, WholeLength, ErrBounds},
	} {
		seg, err := tab.Remote(r.RKey(), testPD, testQPN, tt.va, tt.n, AccessRemoteWrite)
		wantErr(t, "remote", err, tt.want)
		_, err = tab.Local(r.LKey(), testPD, tt.va, tt.n, AccessLocalWrite)
		wantErr(t, "local", err, tt.want)
		if tt.want == nil {
			wantErr(t, "access", seg.WriteAt(make([]byte, 1), tt.n-1), nil)
		}
		w, werr := tab.AllocWindow(testPD, WindowType1, 0)
		if werr != nil {
			t.Fatal(werr)
		}
		wantErr(t, "bind", tab.Bind(testQPN, testPD, BindArgs{nextRKey(w.RKey()), r.LKey(), tt.va, tt.n, AccessRemoteWrite}), tt.want)
		wantErr(t, "mark", tab.MarkWindow(w), nil)
		tab.FreeWindow(w)
	}
}

package mrtable

import (
	"errors"
	"math"
	"testing"
)

func TestRegister(t *testing.T) {
	mem := HeapMemory(make([]byte, 64))
	tests := []struct {
		name    string
		pd      PD
		mem     Memory
		iova    uint64
		length  uint64
		access  Access
		wantErr error
	}{
		{"plain", 1, mem, 0x1000, 64, AccessLocalWrite, nil},
		{"length 0", 1, mem, 0x1000, 0, 0, nil},
		{"address 0", 1, mem, 0, 64, 0, nil},
		{"ends one byte below 2^64", 1, mem, math.MaxUint64 - 64, 64, 0, nil},
		{"ends at 2^64", 1, mem, 0xFFFFFFFFFFFFFC00, 0x400, 0, ErrLength},
		{"wraps past 2^64", 1, mem, 0xFFFFFFFFFFFFFC00, 0x401, 0, ErrLength},
		{"wraps to just below its start", 1, mem, 0x1000, math.MaxUint64, 0, ErrLength},
		{"zero-based: the iova does not count", 1, mem, 0xFFFFFFFFFFFFFC00, 0x401, AccessZeroBased, nil},
		{"domain 0", 0, mem, 0x1000, 64, 0, ErrPDZero},
		{"no memory", 1, nil, 0x1000, 64, 0, ErrNoMemory},
		{"bad access", 1, mem, 0x1000, 64, AccessRemoteWrite, ErrAccessFlags},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tab := New(Config{MaxRegions: 4})
			r, err := tab.Register(tt.pd, tt.mem, tt.iova, tt.length, tt.access, 0)
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("got %v, want %v", err, tt.wantErr)
			}
			wantLen := 1
			if err != nil {
				wantLen = 0
			}
			if tab.Len() != wantLen {
				t.Errorf("Len() = %d, want %d", tab.Len(), wantLen)
			}
			if err != nil {
				return
			}
			if r.PD() != tt.pd || r.Length() != tt.length || r.Access() != tt.access || uint32(r.LKey()) != uint32(r.RKey()) || r.Memory() == nil {
				t.Errorf("region is %+v", r)
			}
		})
	}
}

// TestAccessCheck goes through all 1,024 sets of the ten lowest bits and some
// of the upper ones.
func TestAccessCheck(t *testing.T) {
	const known = 0xFF // bits 0 to 7
	for a := Access(0); a < 1<<10; a++ {
		ok := a&^known == 0 && (a&(2|8) == 0 || a&1 != 0)
		if err := a.Check(); ok != (err == nil) || err != nil && !errors.Is(err, ErrAccessFlags) {
			t.Errorf("Access(%#x).Check() = %v, want ok %v", uint32(a), err, ok)
		}
	}
	for bit := 10; bit < 32; bit++ {
		ok := bit >= 20 && bit <= 29 // the optional range
		if err := Access(1 << bit).Check(); ok != (err == nil) {
			t.Errorf("bit %d: %v, want ok %v", bit, err, ok)
		}
	}
}

// TestLifeAndDeath walks a region through register, mark, free and reuse.
func TestLifeAndDeath(t *testing.T) {
	tab := New(Config{MaxRegions: 1, Secret: 5})
	mem := HeapMemory(make([]byte, 64))
	r := mustRegister(t, tab, testPD, mem, 0x1000, 64, AccessLocalWrite)
	look := func(r *Region) error {
		_, err := tab.Local(r.LKey(), testPD, 0x1000, 1, 0)
		return err
	}
	wantErr := func(what string, got, want error) {
		t.Helper()
		if !errors.Is(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	wantErr("alive", look(r), nil)
	_, err := tab.Register(testPD, mem, 0, 64, 0, 0)
	wantErr("second region in a table of one", err, ErrFull)
	tab.Free(r)
	wantErr("freed without a mark: still alive", look(r), nil)
	wantErr("mark", tab.Mark(r), nil)
	wantErr("marked", look(r), ErrKey)
	wantErr("mark again", tab.Mark(r), ErrNotRegistered)
	_, err = tab.Register(testPD, mem, 0, 64, 0, 0)
	wantErr("a marked slot is not free", err, ErrFull)
	tab.Free(r)
	tab.Free(r)
	if tab.Len() != 0 {
		t.Errorf("Len() after two frees = %d, want 0", tab.Len())
	}
	wantErr("freed", look(r), ErrKey)
	wantErr("mark after free", tab.Mark(r), ErrNotRegistered)
	r2 := mustRegister(t, tab, testPD, mem, 0x1000, 64, AccessLocalWrite)
	wantErr("the slot's next holder", look(r2), nil)
	wantErr("the old key", look(r), ErrKey)
	wantErr("the old handle", tab.Mark(r), ErrNotRegistered)
	tab.Free(r)
	wantErr("the next holder is not harmed", look(r2), nil)
	wantErr("nil handle", tab.Mark(nil), ErrNotRegistered)
	tab.Free(nil)
}

// TestForeignHandle: a handle of a bigger table harms nothing.
func TestForeignHandle(t *testing.T) {
	big, small := New(Config{MaxRegions: 8}), New(Config{MaxRegions: 1})
	mem := HeapMemory(make([]byte, 8))
	var last *Region
	for range 8 {
		last = mustRegister(t, big, 1, mem, 0, 8, 0)
	}
	if err := small.Mark(last); !errors.Is(err, ErrNotRegistered) {
		t.Errorf("Mark: %v", err)
	}
	small.Free(last)
	if small.Len() != 0 {
		t.Errorf("Len() = %d, want 0", small.Len())
	}
}

func TestConfigSizes(t *testing.T) {
	for _, tt := range []struct {
		name      string
		max, want int
	}{
		{"default", 0, 65536},
		{"negative", -1, 65536},
		{"one", 1, 1},
		{"not a power of two", 1000, 1000},
		{"over the limit", 1 << 30, 1 << 22},
	} {
		if got := New(Config{MaxRegions: tt.max}).Cap(); got != tt.want {
			t.Errorf("%s: Cap() = %d, want %d", tt.name, got, tt.want)
		}
	}
}

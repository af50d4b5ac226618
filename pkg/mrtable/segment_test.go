package mrtable

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
)

// segmentOf is the whole of mem, seen at iova.
func segmentOf(t *testing.T, mem Memory, iova, length uint64) Segment {
	t.Helper()
	tab := New(Config{MaxRegions: 1})
	r := mustRegister(t, tab, testPD, mem, iova, length, allAccess)
	seg, err := tab.Remote(r.RKey(), testPD, testQPN, iova, length, AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	return seg
}

// TestWriteTailLast: the order of a message's last bytes.
func TestWriteTailLast(t *testing.T) {
	tests := []struct {
		name string
		iova uint64
		off  uint64
		n    int
		want []write
	}{
		{"nothing", 0x1000, 3, 0, nil},
		{"one byte", 0x1000, 0, 1, []write{{0, 1}}},
		{"one byte at an odd address", 0x1000, 7, 1, []write{{7, 1}}},
		{"eight bytes, aligned", 0x1000, 8, 8, []write{{8, 8}}},
		{"4096 bytes, aligned", 0x1000, 0, 4096, []write{{0, 4088}, {4088, 8}}},
		{"start unaligned, end aligned", 0x1000, 5, 11, []write{{5, 3}, {8, 8}}},
		{"end on 4", 0x1000, 0, 12, []write{{0, 8}, {8, 4}}},
		{"end on 2", 0x1000, 0, 10, []write{{0, 8}, {8, 2}}},
		{"end odd", 0x1000, 0, 9, []write{{0, 8}, {8, 1}}},
		{"shorter than the unit that ends there", 0x1000, 5, 3, []write{{5, 1}, {6, 2}}},
		{"the address counts, not the offset", 0x1004, 0, 12, []write{{0, 4}, {4, 8}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			mem := &probe{t: t, length: 8192}
			seg := segmentOf(t, mem, tt.iova, 8192)
			if err := seg.WriteTailLast(pattern(tt.n), tt.off); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(mem.writes, tt.want) {
				t.Errorf("%d bytes at %d: writes %v, want %v", tt.n, tt.off, mem.writes, tt.want)
			}
		})
	}
}

// TestWriteTailLastBytes: whatever the split, every byte and no other lands.
func TestWriteTailLastBytes(t *testing.T) {
	for n := range 40 {
		for off := range 17 {
			mem := HeapMemory(make([]byte, 64))
			seg := segmentOf(t, mem, 0x2000, 64)
			src := pattern(n)
			if err := seg.WriteTailLast(src, uint64(off)); err != nil {
				t.Fatal(err)
			}
			want := make([]byte, 64)
			copy(want[off:], src)
			wantBytes(t, "memory", mem, want)
		}
	}
}

// failing is a Memory whose n-th write fails.
type failing struct {
	probe
	failAt int
}

var errGone = errors.New("process is gone")

func (f *failing) WriteAt(src []byte, off uint64) error {
	if len(f.writes) == f.failAt {
		return errGone
	}
	return f.probe.WriteAt(src, off)
}

// TestAccessFails: an access may fail in the middle; the memory's own error
// comes back, and the tail is not written when the head was not.
func TestAccessFails(t *testing.T) {
	for failAt := range 2 {
		mem := &failing{probe: probe{t: t, length: 4096}, failAt: failAt}
		seg := segmentOf(t, mem, 0, 4096)
		if err := seg.WriteTailLast(pattern(100), 0); !errors.Is(err, errGone) {
			t.Errorf("write %d fails: got %v, want %v", failAt, err, errGone)
		}
		if len(mem.writes) != failAt {
			t.Errorf("write %d fails: %d writes went through", failAt, len(mem.writes))
		}
	}
}

func TestAtomics(t *testing.T) {
	tests := []struct {
		name    string
		iova    uint64
		off     uint64
		wantErr error
	}{
		{"first cell", 0x1000, 0, nil},
		{"last cell", 0x1000, 24, nil},
		{"half outside", 0x1000, 28, ErrBounds},
		{"outside", 0x1000, 32, ErrBounds},
		{"offset wraps", 0x1000, 0xFFFFFFFFFFFFFFF8, ErrBounds},
		{"misaligned", 0x1000, 4, ErrAlign},
		{"aligned by the address, not by the offset", 0x1004, 4, nil},
		{"misaligned by the address", 0x1004, 8, ErrAlign},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			mem := HeapMemory(make([]byte, 32))
			seg := segmentOf(t, mem, tt.iova, 32)
			if tt.wantErr == nil {
				binary.NativeEndian.PutUint64(mem[tt.off:], 41)
			}
			before := slices.Clone(mem)
			old, err := seg.FetchAdd(tt.off, 1)
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("FetchAdd: error %v, want %v", err, tt.wantErr)
			}
			if _, err := seg.CompareSwap(tt.off, 0, 1); !errors.Is(err, tt.wantErr) {
				t.Fatalf("CompareSwap: error %v, want %v", err, tt.wantErr)
			}
			if tt.wantErr != nil {
				wantBytes(t, "memory after a refusal", mem, before)
				return
			}
			if got := binary.NativeEndian.Uint64(mem[tt.off:]); old != 41 || got != 42 {
				t.Errorf("FetchAdd(1) on 41: old %d, now %d", old, got)
			}
			if old, err := seg.CompareSwap(tt.off, 42, 7); err != nil || old != 42 {
				t.Errorf("CompareSwap that hits: old %d, %v", old, err)
			}
			if got := binary.NativeEndian.Uint64(mem[tt.off:]); got != 7 {
				t.Errorf("after CompareSwap(42, 7): %d", got)
			}
		})
	}
}

func TestSegmentWindows(t *testing.T) {
	mem := HeapMemory(pattern(64))
	seg := segmentOf(t, mem, 0x1000, 64)
	part := seg.Slice(8, 16).Slice(4, 8)
	got := make([]byte, 8)
	if err := part.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	wantBytes(t, "slice of a slice", got, mem[12:20])
	wantBytes(t, "Bytes", part.Bytes(2, 3), mem[14:17])
	if b := part.Bytes(2, 3); cap(b) != 3 {
		t.Errorf("Bytes(2, 3) can grow to %d bytes", cap(b))
	}
	for name, err := range map[string]error{
		"read behind":  part.ReadAt(got, 1),
		"write behind": part.WriteAt(got, 1),
		"tail behind":  part.WriteTailLast(got, 1),
		"empty read":   Segment{}.ReadAt(got[:1], 0),
		"empty write":  Segment{}.WriteAt(got[:1], 0),
	} {
		if !errors.Is(err, ErrBounds) {
			t.Errorf("%s: %v, want %v", name, err, ErrBounds)
		}
	}
	if b := part.Bytes(1, 8); b != nil {
		t.Errorf("Bytes reaches outside: %x", b)
	}
	if err := (Segment{}).WriteTailLast(nil, 0); err != nil {
		t.Errorf("nothing written to the empty segment: %v", err)
	}
}

// TestHeapMemoryBounds: HeapMemory refuses what lies outside it, for a region
// may be registered longer than its memory.
func TestHeapMemoryBounds(t *testing.T) {
	mem := HeapMemory(make([]byte, 16))
	seg := segmentOf(t, mem, 0, 1<<40)
	buf := make([]byte, 8)
	_, cerr := seg.CompareSwap(16, 0, 1)
	_, ferr := seg.FetchAdd(1<<39, 1)
	for name, err := range map[string]error{
		"read": seg.ReadAt(buf, 9), "write": seg.WriteAt(buf, 1<<33), "compare-swap": cerr, "fetch-add": ferr,
	} {
		if !errors.Is(err, ErrBounds) {
			t.Errorf("%s: %v, want %v", name, err, ErrBounds)
		}
	}
	if b := seg.Bytes(10, 7); b != nil {
		t.Errorf("Bytes reaches outside: %x", b)
	}
}

package transport

import (
	"bytes"
	"errors"
	"testing"

	"github.com/softroce/softroce/pkg/mrtable"
)

// farMemory is memory that is not mapped: it counts the reads, and those that
// reach beyond its end fail.
type farMemory struct {
	mrtable.HeapMemory
	reads *int
	end   uint64
}

var errGone = errors.New("gone")

func (f farMemory) Bytes(uint64, uint64) []byte { return nil }

func (f farMemory) ReadAt(dst []byte, off uint64) error {
	*f.reads++
	if off+uint64(len(dst)) > f.end {
		return errGone
	}
	return f.HeapMemory.ReadAt(dst, off)
}

// far registers n bytes of far memory, of which only the first end can be read.
func far(t *testing.T, n int, end uint64) (seg func(va, n uint64) mrtable.Segment, data []byte, reads *int) {
	t.Helper()
	keys := mrtable.New(mrtable.Config{})
	data = make([]byte, n)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	reads = new(int)
	r, err := keys.Register(1, farMemory{data, reads, end}, 0, uint64(n), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return func(va, n uint64) mrtable.Segment {
		s, err := keys.Local(r.LKey(), 1, va, n, 0)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}, data, reads
}

// A run of packets costs one read for each 64 KiB, and none is repeated once the
// stage was told to forget.
func TestStageReadsRuns(t *testing.T) {
	const n, mtu = 150_000, 4096
	seg, data, reads := far(t, n, n)
	var s Stage
	all := seg(0, n)
	got := make([]byte, 0, n)
	for off := uint64(0); off < n; off += mtu {
		b := make([]byte, min(mtu, n-off))
		if err := s.read(5, off, &all, off, b); err != nil {
			t.Fatal(err)
		}
		got = append(got, b...)
	}
	if !bytes.Equal(got, data) || *reads != 3 {
		t.Errorf("right data %v, %d reads; want true, 3", bytes.Equal(got, data), *reads)
	}
	last := make([]byte, 100)
	data[n-1]++
	_ = s.read(5, n-100, &all, n-100, last)
	if *reads != 3 || last[99] == data[n-1] {
		t.Errorf("%d reads for what was read ahead; want 3", *reads)
	}
	s.Forget()
	if err := s.read(5, n-100, &all, n-100, last); err != nil || last[99] != data[n-1] {
		t.Errorf("after Forget: %v, last byte %#x, want %#x", err, last[99], data[n-1])
	}
}

// Another key's memory is not taken for what was read ahead, and memory whose
// end is gone gives what is still there.
func TestStageBounds(t *testing.T) {
	const n = 64 << 10
	seg, data, _ := far(t, n, 8192)
	var s Stage
	all := seg(0, n)
	b := make([]byte, 4096)
	if err := s.read(5, 4096, &all, 4096, b); err != nil || !bytes.Equal(b, data[4096:8192]) {
		t.Errorf("before the end of what is there: %v", err)
	}
	if err := s.read(5, 8192, &all, 8192, b); !errors.Is(err, errGone) {
		t.Errorf("behind it: %v, want %v", err, errGone)
	}
	seg, _, reads := far(t, n, n)
	all = seg(0, n)
	_ = s.read(5, 0, &all, 0, b)
	_ = s.read(6, 0, &all, 0, b)
	if *reads != 2 {
		t.Errorf("%d reads for two keys, want 2", *reads)
	}
	if err := s.read(6, n-2048, &all, n-2048, b[:2048]); err != nil || *reads != 2 {
		t.Errorf("%v, %d reads for the end of what was read ahead; want 2", err, *reads)
	}
}

package wq

import (
	"errors"
	"reflect"
	"testing"
)

// TestRecordSizes: what an entry counts against the limit is not less than
// what it takes.
func TestRecordSizes(t *testing.T) {
	if n := reflect.TypeFor[WQE]().Size(); n > wqeBytes {
		t.Errorf("a WQE takes %d bytes, counts %d", n, wqeBytes)
	}
	if n := reflect.TypeFor[SGE]().Size(); n != sgeBytes {
		t.Errorf("an SGE takes %d bytes, counts %d", n, sgeBytes)
	}
}

func TestSlabClasses(t *testing.T) {
	for _, tt := range []struct {
		name     string
		n        int
		wantHeld int
	}{
		{"none", 0, 0}, {"one", 1, 64}, {"64", 64, 64}, {"65", 65, 128}, {"4096", 4096, 4096}, {"4097", 4097, 8192},
	} {
		s := NewSlab(1 << 20)
		b, err := s.Bytes(tt.n)
		if err != nil || len(b) != tt.n || s.Held() != tt.wantHeld || s.InUse() != tt.wantHeld {
			t.Errorf("%s: %d bytes, error %v, held %d, in use %d, want held %d", tt.name, len(b), err, s.Held(), s.InUse(), tt.wantHeld)
		}
		s.FreeBytes(b)
		if s.InUse() != 0 || s.Held() != tt.wantHeld {
			t.Errorf("%s freed: held %d, in use %d", tt.name, s.Held(), s.InUse())
		}
		if c, err := s.Bytes(tt.n); err != nil || s.Held() != tt.wantHeld || tt.n > 0 && &c[0] != &b[0] {
			t.Errorf("%s again: error %v, held %d: the block was not used again", tt.name, err, s.Held())
		}
	}
	s := NewSlab(1 << 20)
	l, err := s.SGEs(5)
	if err != nil || len(l) != 5 || s.InUse() != 8*sgeBytes {
		t.Errorf("5 SGEs: %d, error %v, in use %d", len(l), err, s.InUse())
	}
	s.FreeSGEs(l)
	if s.InUse() != 0 {
		t.Errorf("in use %d after all was freed", s.InUse())
	}
}

func TestSlabLimit(t *testing.T) {
	s := NewSlab(1000)
	b, err := s.Bytes(512)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Bytes(512); !errors.Is(err, ErrSlab) || !errors.Is(err, ErrFull) {
		t.Errorf("over the limit: %v, want %v, an %v", err, ErrSlab, ErrFull)
	}
	if _, err := s.SGEs(16); err != nil {
		t.Errorf("768 of 1000: %v", err)
	}
	if _, err := s.Bytes(1 << 40); !errors.Is(err, ErrSlab) {
		t.Errorf("no size class: %v", err)
	}
	s.FreeBytes(b)
	if _, err := s.SGEs(32); err != nil {
		t.Errorf("free blocks of another size kept a block of 512 out: %v", err)
	}
	if s.Held() > 1000 || s.Held() != s.InUse() {
		t.Errorf("held %d, in use %d, limit 1000", s.Held(), s.InUse())
	}
}

type record struct{ a uint64 }

func TestPool(t *testing.T) {
	s := NewSlab(100)
	p := PoolOf[record](s, 40)
	if PoolOf[record](s, 40) != p {
		t.Error("two pools of one type in one slab")
	}
	r1, err1 := p.Take()
	r2, err2 := p.Take()
	if err1 != nil || err2 != nil || r1 == r2 {
		t.Fatalf("take: %v, %v", err1, err2)
	}
	if _, err := p.Take(); !errors.Is(err, ErrSlab) {
		t.Errorf("third record of 40 in 100: %v", err)
	}
	r1.a = 7
	p.Give(r1)
	r3, err := p.Take()
	if err != nil || r3 != r1 || *r3 != (record{}) {
		t.Errorf("taken again: %v %+v, want the same record, zeroed", err, r3)
	}
	p.Give(r2)
	p.Give(r3)
	if s.InUse() != 0 {
		t.Errorf("in use %d after all was given back", s.InUse())
	}
	if b, err := s.Bytes(64); err != nil || len(b) != 64 {
		t.Errorf("the pool's free records kept a block of bytes out: %v", err)
	}
}

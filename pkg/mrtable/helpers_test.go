package mrtable

import (
	"bytes"
	"testing"
)

// write is one call of WriteAt.
type write struct {
	off uint64
	n   int
}

// probe is a Memory of a given length that holds no bytes: it notes what is
// asked of it and fails the test when that reaches outside.
type probe struct {
	t      testing.TB
	length uint64
	writes []write
	calls  int
}

func (p *probe) check(off, n uint64) {
	p.t.Helper()
	p.calls++
	if end := off + n; end < off || end > p.length {
		p.t.Fatalf("memory of %d bytes was asked for [%#x, +%#x)", p.length, off, n)
	}
}

func (p *probe) ReadAt(dst []byte, off uint64) error {
	p.check(off, uint64(len(dst)))
	return nil
}

func (p *probe) WriteAt(src []byte, off uint64) error {
	p.check(off, uint64(len(src)))
	p.writes = append(p.writes, write{off, len(src)})
	return nil
}

func (p *probe) CompareSwap(off, _, _ uint64) (uint64, error) {
	p.check(off, 8)
	return 0, nil
}

func (p *probe) FetchAdd(off, _ uint64) (uint64, error) {
	p.check(off, 8)
	return 0, nil
}

func (p *probe) Bytes(off, n uint64) []byte {
	p.check(off, n)
	return nil
}

func mustRegister(t testing.TB, tab *Table, pd PD, mem Memory, iova, length uint64, access Access) *Region {
	t.Helper()
	r, err := tab.Register(pd, mem, iova, length, access, 0)
	if err != nil {
		t.Fatalf("Register(pd %d, %#x, %#x, %#x): %v", pd, iova, length, access, err)
	}
	return r
}

// pattern is n bytes that differ from their neighbours and from 0.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i%251) + 1
	}
	return b
}

func wantBytes(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got %x, want %x", what, got, want)
	}
}

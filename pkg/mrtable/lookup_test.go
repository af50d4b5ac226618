package mrtable

import (
	"errors"
	"math"
	"testing"
)

const (
	testPD    PD     = 7
	testQPN   uint32 = 0x11
	allAccess        = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic
)

func TestLookUp(t *testing.T) {
	const base, length = 0x10000, 0x1000
	tests := []struct {
		name    string
		access  Access
		remote  bool
		badKey  uint32 // is XORed into the key
		pd      PD
		va, n   uint64
		need    Access
		wantErr error
		wantOff uint64
	}{
		{name: "whole region", access: allAccess, remote: true, pd: testPD, va: base, n: length, need: AccessRemoteWrite},
		{name: "first byte", access: allAccess, remote: true, pd: testPD, va: base, n: 1, need: AccessRemoteRead},
		{name: "last byte", access: allAccess, remote: true, pd: testPD, va: base + length - 1, n: 1, need: AccessRemoteRead, wantOff: length - 1},
		{name: "one byte before", access: allAccess, remote: true, pd: testPD, va: base - 1, n: 1, need: AccessRemoteRead, wantErr: ErrBounds},
		{name: "one byte behind", access: allAccess, remote: true, pd: testPD, va: base + length, n: 1, need: AccessRemoteRead, wantErr: ErrBounds},
		{name: "one byte too long", access: allAccess, remote: true, pd: testPD, va: base, n: length + 1, need: AccessRemoteRead, wantErr: ErrBounds},
		{name: "starts before, ends inside", access: allAccess, remote: true, pd: testPD, va: base - 8, n: 16, need: AccessRemoteRead, wantErr: ErrBounds},
		{name: "length wraps back into the region", access: allAccess, remote: true, pd: testPD, va: base + 8, n: math.MaxUint64, need: AccessRemoteRead, wantErr: ErrBounds},
		{name: "F5: address plus length wraps to 0", access: allAccess, remote: true, pd: testPD, va: 0xFFFFFFFFFFFFFC00, n: 0x400, need: AccessRemoteRead, wantErr: ErrBounds},
		{name: "F5: address plus length wraps past 0", access: allAccess, remote: true, pd: testPD, va: 0xFFFFFFFFFFFFFC00, n: base + 0x800, need: AccessRemoteRead, wantErr: ErrBounds},
		{name: "F5: address itself far outside", access: allAccess, remote: true, pd: testPD, va: 0xFFFFFFFFFFFFFC00, n: 1, need: AccessRemoteWrite, wantErr: ErrBounds},

		{name: "key with another variant byte", access: allAccess, remote: true, badKey: 1, pd: testPD, va: base, n: 1, need: AccessRemoteRead, wantErr: ErrKey},
		{name: "key of no slot", access: allAccess, remote: true, badKey: 0xABCDEF00, pd: testPD, va: base, n: 1, need: AccessRemoteRead, wantErr: ErrKey},
		{name: "key complemented", access: allAccess, remote: true, badKey: math.MaxUint32, pd: testPD, va: base, n: 1, need: AccessRemoteRead, wantErr: ErrKey},
		{name: "another domain", access: allAccess, remote: true, pd: testPD + 1, va: base, n: 1, need: AccessRemoteRead, wantErr: ErrPD},
		{name: "domain 0", access: allAccess, remote: true, pd: 0, va: base, n: 1, need: AccessRemoteRead, wantErr: ErrPD},

		{name: "no remote write", access: AccessLocalWrite | AccessRemoteRead, remote: true, pd: testPD, va: base, n: 1, need: AccessRemoteWrite, wantErr: ErrAccess},
		{name: "no remote read", access: AccessLocalWrite | AccessRemoteWrite, remote: true, pd: testPD, va: base, n: 1, need: AccessRemoteRead, wantErr: ErrAccess},
		{name: "no remote atomic", access: AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead, remote: true, pd: testPD, va: base, n: 8, need: AccessRemoteAtomic, wantErr: ErrAccess},
		{name: "no remote right at all", access: AccessLocalWrite, remote: true, pd: testPD, va: base, n: 1, need: AccessRemoteRead, wantErr: ErrAccess},
		{name: "remote look-up without a right", access: allAccess, remote: true, pd: testPD, va: base, n: 1, need: 0, wantErr: ErrAccess},
		{name: "remote look-up for local write", access: allAccess, remote: true, pd: testPD, va: base, n: 1, need: AccessLocalWrite, wantErr: ErrAccess},

		{name: "F9: C9-88: remote length 0, nonsense key, domain and address", remote: true, badKey: 0x1234, pd: 99, va: math.MaxUint64, n: 0, need: AccessRemoteWrite},
		{name: "local length 0, nonsense key", badKey: 0x1234, pd: 99, va: 1, n: 0, need: AccessLocalWrite},

		{name: "local read needs no right", access: 0, pd: testPD, va: base + 16, n: 32, wantOff: 16},
		{name: "local write", access: AccessLocalWrite, pd: testPD, va: base, n: length, need: AccessLocalWrite},
		{name: "local write without the right", access: AccessRemoteRead, pd: testPD, va: base, n: 1, need: AccessLocalWrite, wantErr: ErrAccess},
		{name: "local, another domain", access: AccessLocalWrite, pd: testPD + 1, va: base, n: 1, wantErr: ErrPD},
		{name: "local, outside", access: AccessLocalWrite, pd: testPD, va: base + length - 1, n: 2, wantErr: ErrBounds},
		{name: "local, wrong key", access: AccessLocalWrite, badKey: 0x80, pd: testPD, va: base, n: 1, wantErr: ErrKey},

		{name: "order: key before domain", access: allAccess, remote: true, badKey: 1, pd: 0, va: 0, n: 1, need: AccessRemoteRead, wantErr: ErrKey},
		{name: "order: domain before right", access: 0, remote: true, pd: 1, va: 0, n: 1, need: AccessRemoteRead, wantErr: ErrPD},
		{name: "order: right before bounds", access: 0, remote: true, pd: testPD, va: 0, n: 1, need: AccessRemoteRead, wantErr: ErrAccess},

		{name: "zero-based: offset 0", access: allAccess | AccessZeroBased, remote: true, pd: testPD, va: 0, n: length, need: AccessRemoteWrite},
		{name: "zero-based: last byte", access: allAccess | AccessZeroBased, remote: true, pd: testPD, va: length - 1, n: 1, need: AccessRemoteWrite, wantOff: length - 1},
		{name: "zero-based: the iova is no address", access: allAccess | AccessZeroBased, remote: true, pd: testPD, va: base, n: 1, need: AccessRemoteWrite, wantErr: ErrBounds},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tab := New(Config{MaxRegions: 100, Secret: 42})
			mem := HeapMemory(make([]byte, length))
			r := mustRegister(t, tab, testPD, mem, base, length, tt.access)
			var (
				seg Segment
				err error
			)
			if tt.remote {
				seg, err = tab.Remote(r.RKey()^RKey(tt.badKey), tt.pd, testQPN, tt.va, tt.n, tt.need)
			} else {
				seg, err = tab.Local(r.LKey()^LKey(tt.badKey), tt.pd, tt.va, tt.n, tt.need)
			}
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("[%#x, +%#x) need %#x of access %#x: got error %v, want %v", tt.va, tt.n, tt.need, tt.access, err, tt.wantErr)
			}
			if err != nil {
				if seg != (Segment{}) {
					t.Errorf("a refused look-up gave the segment %+v", seg)
				}
				return
			}
			if seg.Len() != tt.n {
				t.Errorf("Len() = %d, want %d", seg.Len(), tt.n)
			}
			if tt.n == 0 {
				return
			}
			mark := []byte{0xA5}
			if err := seg.WriteAt(mark, tt.n-1); err != nil {
				t.Fatal(err)
			}
			if got := mem[tt.wantOff+tt.n-1]; got != 0xA5 {
				t.Errorf("the segment's last byte is not the memory's byte %d", tt.wantOff+tt.n-1)
			}
		})
	}
}

// FuzzRange holds the range arithmetic of Register and the look-ups against
// numbers without a width.
func FuzzRange(f *testing.F) {
	f.Add(uint64(0x10000), uint64(0x1000), uint64(0x10000), uint64(0x1000), uint64(1), uint64(2), false)
	f.Add(uint64(0x10000), uint64(0x1000), uint64(0xFFFFFFFFFFFFFC00), uint64(0x400), uint64(0), uint64(0x400), false)
	f.Add(uint64(0xFFFFFFFFFFFFFC00), uint64(0x400), uint64(0xFFFFFFFFFFFFFC00), uint64(0x400), uint64(0x3FF), uint64(2), false)
	f.Add(uint64(0xFFFFFFFFFFFFFC00), uint64(0x3FF), uint64(0xFFFFFFFFFFFFFFFE), uint64(1), uint64(0), uint64(1), false)
	f.Add(uint64(0), uint64(math.MaxUint64), uint64(1), uint64(math.MaxUint64-1), uint64(math.MaxUint64), uint64(math.MaxUint64), false)
	f.Add(uint64(0x10000), uint64(math.MaxUint64), uint64(0), uint64(math.MaxUint64), uint64(math.MaxUint64-7), uint64(8), true)
	f.Add(uint64(8), uint64(0), uint64(8), uint64(0), uint64(0), uint64(0), false)
	f.Add(uint64(8), uint64(0), uint64(8), uint64(1), uint64(0), uint64(0), true)
	f.Fuzz(checkRange)
}

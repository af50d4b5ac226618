package adapter_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

// everyVerb does each operation once from a to b and looks at both sides.
func everyVerb(t *testing.T, a, b *program) {
	t.Helper()
	const n = 9001
	src, dst := a.mr.Bytes(), b.mr.Bytes()
	for i, op := range []verbs.WROpcode{verbs.WRSend, verbs.WRSendWithImm, verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm, verbs.WRRDMARead} {
		fill(src, i)
		fill(dst, 100+i)
		wr := a.write(b, 5, 11, n)
		wr.Opcode, wr.WRID = op, uint64(i)
		want := bytes.Clone(src[5 : 5+n])
		wantWC := map[verbs.WROpcode]verbs.WCOpcode{
			verbs.WRSend: verbs.WCSend, verbs.WRSendWithImm: verbs.WCSend, verbs.WRRDMAWrite: verbs.WCRDMAWrite,
			verbs.WRRDMAWriteWithImm: verbs.WCRDMAWrite, verbs.WRRDMARead: verbs.WCRDMARead,
		}[op]
		imm := op == verbs.WRSendWithImm || op == verbs.WRRDMAWriteWithImm
		if imm {
			wr.ImmData = 0xA1B2C3D4
		}
		recv := imm || op == verbs.WRSend
		if recv {
			b.recv(uint64(50+i), 11, n)
		}
		if op == verbs.WRRDMARead {
			want = bytes.Clone(dst[11 : 11+n])
		}
		if wc := a.do(wr); wc.Opcode != wantWC {
			t.Errorf("%v completes as %v, want %v", op, wc.Opcode, wantWC)
		}
		if recv {
			wc := b.status(uint64(50+i), verbs.WCSuccess)
			if wc.ByteLen != n || imm != (wc.Flags&verbs.WCWithImm != 0) || imm && wc.ImmData != wr.ImmData {
				t.Errorf("%v is received as %+v", op, wc)
			}
		}
		got := dst[11 : 11+n]
		if op == verbs.WRRDMARead {
			got = src[5 : 5+n]
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%v: the data differ", op)
		}
	}
	cell := b.mr.Bytes()[4096:4104]
	binary.NativeEndian.PutUint64(cell, 41)
	atomic := a.write(b, 8192, 4096, 8)
	atomic.Opcode, atomic.CompareAdd = verbs.WRAtomicFetchAdd, 1
	for i, want := range []uint64{41, 42, 99, 99} { // what the operation finds
		if i == 1 {
			atomic.Opcode, atomic.CompareAdd, atomic.Swap = verbs.WRAtomicCmpAndSwp, 42, 99
		}
		if i == 3 {
			atomic.Swap = 1 // compare fails again
		}
		if wc := a.do(atomic); wc.ByteLen != 8 {
			t.Errorf("atomic %d: byte_len %d", i, wc.ByteLen)
		}
		if got := binary.NativeEndian.Uint64(a.mr.Bytes()[8192:]); got != want {
			t.Errorf("atomic %d found %d, want %d", i, got, want)
		}
	}
	if got := binary.NativeEndian.Uint64(cell); got != 99 {
		t.Errorf("the cell is %d, want 99", got)
	}
	inline(t, a, b)
	a.none()
	b.none()
}

// inline sends data that is overwritten as soon as it is posted.
func inline(t *testing.T, a, b *program) {
	t.Helper()
	fill(a.mr.Bytes()[:100], 7)
	want := bytes.Clone(a.mr.Bytes()[:100])
	b.recv(1, 0, 200)
	wr := verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendInline | verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(0, 60), a.mr.SGE(60, 40)}}
	a.post(wr)
	clear(a.mr.Bytes()[:100])
	a.status(0, verbs.WCSuccess)
	if wc := b.status(1, verbs.WCSuccess); wc.ByteLen != 100 || !bytes.Equal(b.mr.Bytes()[:100], want) {
		t.Errorf("inline data arrive as % x, byte_len %d", b.mr.Bytes()[:wc.ByteLen], wc.ByteLen)
	}
}

// Every verb with each kind of memory on either side, one and two workers, on
// two adapters and on one.
func TestEveryVerb(t *testing.T) {
	for _, workers := range []int{1, 2} {
		for _, kind := range []string{"shared to shared", "foreign to shared", "shared to foreign", "foreign to foreign"} {
			t.Run(fmt.Sprint(workers, " workers, ", kind), func(t *testing.T) {
				change := func(c *adapter.Config) { c.Workers = workers }
				x, y := start(t, change), start(t, change)
				a := x.open(t, shape{foreign: kind[:7] == "foreign"})
				b := y.open(t, shape{foreign: kind[len(kind)-7:] == "foreign"})
				connect(a, b, verbs.RCConfig{})
				everyVerb(t, a, b)
				everyVerb(t, b, a)
				c, d := x.open(t, shape{}), x.open(t, shape{foreign: true})
				connect(c, d, verbs.RCConfig{})
				everyVerb(t, c, d)
			})
		}
	}
}

// Messages of no byte, with and without elements, need no key and no memory
// (field case F9), and complete on both sides.
func TestZeroLength(t *testing.T) {
	a, b := pair(t, shape{}, verbs.RCConfig{}, nil)
	fill(b.mr.Bytes(), 1)
	want := bytes.Clone(b.mr.Bytes())
	for i, list := range [][]verbs.SGE{nil, {}, {a.mr.SGE(0, 0)}, {a.mr.SGE(9, 0), a.mr.SGE(0, 0)}, {{Addr: 1, LKey: 0xBAD}}} {
		for _, op := range []verbs.WROpcode{verbs.WRSend, verbs.WRSendWithImm, verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm, verbs.WRRDMARead} {
			wr := verbs.SendWR{WRID: uint64(i), Opcode: op, SGList: list, RemoteAddr: 0xDEAD0001, RKey: 0xBAD, ImmData: 5}
			recv := op != verbs.WRRDMAWrite && op != verbs.WRRDMARead
			if recv {
				b.recv(uint64(i), 0, i%2*8)
			}
			a.do(wr)
			if recv {
				if wc := b.status(uint64(i), verbs.WCSuccess); wc.ByteLen != 0 {
					t.Errorf("%v of no byte is received with byte_len %d", op, wc.ByteLen)
				}
			}
		}
	}
	a.do(verbs.SendWR{Opcode: verbs.WRRDMAWrite, Flags: verbs.SendInline})
	if !bytes.Equal(b.mr.Bytes(), want) {
		t.Error("a message of no byte wrote something")
	}
	alive(a, b)
}

// A program and both adapters share one processor: a poll that finds nothing
// lets the adapter run.
func TestGOMAXPROCS1(t *testing.T) {
	old := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(old) })
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			a, b := pair(t, shape{}, verbs.RCConfig{}, func(c *adapter.Config) { c.Workers = workers })
			send := func(from, to *program, i int) {
				t.Helper()
				to.recv(uint64(i), 0, 8)
				binary.NativeEndian.PutUint64(from.mr.Bytes()[64:], uint64(i))
				from.do(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{from.mr.SGE(64, 8)}})
				to.status(uint64(i), verbs.WCSuccess)
				if got := binary.NativeEndian.Uint64(to.mr.Bytes()); got != uint64(i) {
					t.Fatalf("message %d arrives as %d", i, got)
				}
			}
			for i := range 300 {
				send(a, b, i)
				send(b, a, i)
			}
			everyVerb(t, a, b)
		})
	}
}

// Limits of memory and keys that a program meets at once or in a completion.
func TestRightsOfMemory(t *testing.T) {
	x, y := start(t, nil), start(t, nil)
	for _, c := range []struct {
		name   string
		access verbs.Access // of the target region
		op     verbs.WROpcode
		want   verbs.WCStatus
	}{
		{"WRITE without remote write", verbs.AccessLocalWrite | verbs.AccessRemoteRead, verbs.WRRDMAWrite, verbs.WCRemAccessErr},
		{"READ without remote read", verbs.AccessLocalWrite | verbs.AccessRemoteWrite, verbs.WRRDMARead, verbs.WCRemAccessErr},
		{"atomic without remote atomic", verbs.AccessLocalWrite | verbs.AccessRemoteWrite, verbs.WRAtomicFetchAdd, verbs.WCRemAccessErr},
		{"READ with remote read alone", verbs.AccessRemoteRead, verbs.WRRDMARead, verbs.WCSuccess},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := x.open(t, shape{}), y.open(t, shape{access: c.access})
			connect(a, b, verbs.RCConfig{})
			wr := a.write(b, 0, 0, 8)
			wr.Opcode, wr.Flags, wr.WRID = c.op, verbs.SendSignaled, 3
			a.post(wr)
			a.status(3, c.want)
		})
	}
	p := x.open(t, shape{})
	if _, err := p.pd.AllocMR(4096, verbs.AccessRemoteWrite); !errors.Is(err, unix.EINVAL) {
		t.Errorf("remote write without local write: %v, want EINVAL", err)
	}
	if _, err := p.pd.RegMR(nil, allAccess); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a region of no byte: %v, want EINVAL", err)
	}
	// Another domain's key is no key.
	a, b := x.open(t, shape{}), y.open(t, shape{})
	other := y.openOn(t, b.dev, shape{})
	connect(a, b, verbs.RCConfig{})
	wr := a.write(other, 0, 0, 8)
	wr.WRID = 5
	a.post(wr)
	a.status(5, verbs.WCRemAccessErr)
}

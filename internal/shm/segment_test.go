package shm

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func create(t *testing.T, size int) *Segment {
	t.Helper()
	s, err := Create("test", size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
	return s
}

func TestSegmentIsShared(t *testing.T) {
	noNewFDs(t)
	a := create(t, 5000)
	if want := roundUp(5000, os.Getpagesize()); a.Size() != want {
		t.Fatalf("Size() = %d, want %d", a.Size(), want)
	}
	b, err := Map(a.FD(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if b.FD() != -1 || b.Size() != a.Size() {
		t.Errorf("Map: FD() = %d, Size() = %d, want -1, %d", b.FD(), b.Size(), a.Size())
	}
	copy(a.Bytes()[4000:], "hello")
	if got := b.Bytes()[4000:4005]; !bytes.Equal(got, []byte("hello")) {
		t.Errorf("the other end reads %q", got)
	}
	b.Word64(4096).Add(7)
	if got := a.Word64(4096).Load(); got != 7 {
		t.Errorf("word is %d, want 7", got)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); !errors.Is(err, ErrClosed) {
		t.Errorf("second Close: %v, want ErrClosed", err)
	}
	if got := b.Word64(4096).Load(); got != 7 {
		t.Errorf("word is %d after its creator closed, want 7", got)
	}
}

func TestSegmentCannotChangeSize(t *testing.T) {
	s := create(t, 8192)
	for _, size := range []int64{0, 4096, 1 << 20} {
		if err := unix.Ftruncate(s.FD(), size); !errors.Is(err, unix.EPERM) {
			t.Errorf("ftruncate to %d: %v, want EPERM", size, err)
		}
	}
	// Whoever receives the descriptor cannot seal it either.
	if _, err := unix.FcntlInt(uintptr(s.FD()), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); !errors.Is(err, unix.EPERM) {
		t.Errorf("another seal: %v, want EPERM", err)
	}
}

func TestSegmentCloseOnExec(t *testing.T) {
	s := create(t, 1)
	if flags, err := unix.FcntlInt(uintptr(s.FD()), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %#x (%v), want FD_CLOEXEC", flags, err)
	}
}

func TestSealFutureWrite(t *testing.T) {
	s := create(t, 4096)
	if err := s.SealFutureWrite(); err != nil {
		t.Fatal(err)
	}
	s.Bytes()[0] = 1 // the creator's mapping goes on writing
	if m, err := Map(s.FD(), false); !errors.Is(err, unix.EPERM) {
		t.Errorf("Map for writing: %v, %v, want EPERM", m, err)
	}
	m, err := Map(s.FD(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if m.Bytes()[0] != 1 || !m.ReadOnly() {
		t.Errorf("read-only end: byte %d, ReadOnly() = %t", m.Bytes()[0], m.ReadOnly())
	}
	if _, err := unix.Pwrite(s.FD(), []byte{2}, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("write(2) to it: %v, want EPERM", err)
	}
	if err := unix.Fallocate(s.FD(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096); !errors.Is(err, unix.EPERM) {
		t.Errorf("hole punched in it: %v, want EPERM", err)
	}
	late := create(t, 4096)
	late.FD()
	if err := late.SealFutureWrite(); !errors.Is(err, ErrHandedOut) {
		t.Errorf("SealFutureWrite after FD: %v, want ErrHandedOut", err)
	}
	if err := m.SealFutureWrite(); !errors.Is(err, ErrClosed) {
		t.Errorf("SealFutureWrite of a mapped one: %v, want ErrClosed", err)
	}
}

func TestMapRefuses(t *testing.T) {
	noNewFDs(t)
	memfd := func(seals int, size int64) int {
		fd, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Ftruncate(fd, size); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer CloseFDs(pipe[:])
	rows := []struct {
		name string
		fd   int
		want error
	}{
		{"no seal", memfd(0, 4096), ErrNotSealed},
		{"sealed against growing only", memfd(unix.F_SEAL_GROW, 4096), ErrNotSealed},
		{"sealed against more seals only", memfd(unix.F_SEAL_SEAL, 4096), ErrNotSealed},
		{"empty", memfd(unix.F_SEAL_SHRINK, 0), ErrSize},
		{"file", int(file.Fd()), ErrNotSealed},
		{"pipe", pipe[0], ErrNotSealed},
		{"no descriptor", -1, ErrNotSealed},
		{"larger than any address space", memfd(unix.F_SEAL_SHRINK, 1<<62), unix.ENOMEM},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			s, err := Map(row.fd, false)
			if !errors.Is(err, row.want) {
				t.Errorf("Map: %v, %v, want %v", s, err, row.want)
			}
		})
	}
	if s, err := Map(memfd(unix.F_SEAL_SHRINK, 4096), false); err != nil {
		t.Errorf("Map of a memfd sealed against shrinking: %v", err)
	} else if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestCreateRefusesSize(t *testing.T) {
	for _, size := range []int{0, -1} {
		if _, err := Create("test", size); !errors.Is(err, ErrSize) {
			t.Errorf("Create of %d bytes: %v, want ErrSize", size, err)
		}
	}
}

func TestWordIsChecked(t *testing.T) {
	b := alignedBytes(64)
	for _, off := range []int{-4, 1, 2, 61, 64, 1 << 40} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Word32 at offset %d of 64: no panic", off)
				}
			}()
			Word32(b, off)
		}()
	}
	Word32(b, 60).Store(1)
	Word64(b, 56).Add(1)
	if AddrOf(nil) != 0 || AddrOf(b) == 0 || AddrOf(b[1:]) != AddrOf(b)+1 {
		t.Error("AddrOf is wrong")
	}
}

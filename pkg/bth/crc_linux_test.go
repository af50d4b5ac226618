package bth

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
)

// mapFile makes a file of n bytes and maps it as often as asked for.
func mapFile(t *testing.T, n, times int) (*os.File, [][]byte) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(int64(n)); err != nil {
		t.Fatal(err)
	}
	var maps [][]byte
	for range times {
		m, err := syscall.Mmap(int(f.Fd()), 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Munmap(m) })
		maps = append(maps, m)
	}
	return f, maps
}

// TestCopyReadsOnce: the source changes while it is read, since what is stored
// changes it: both are views of the same memory. The CRC is over what was
// stored all the same.
func TestCopyReadsOnce(t *testing.T) {
	_, maps := mapFile(t, 8192, 2)
	a, b := maps[0], maps[1]
	fresh := randomBytes(5, len(a))
	forEachCRC(t, func(t *testing.T) {
		for n := range 1100 {
			for _, shift := range []int{-300, -65, -16, -8, -3, 1, 4, 8, 16, 40, 64, 128, 250, 700} {
				copy(a, fresh)
				src, dst := a[2048:2048+n], b[2048+shift:2048+shift+n]
				if got, want := CopyICRC(9, dst, src), updateShort(9, dst); got != want {
					t.Fatalf("%d bytes, copied by %d: %#08x, want %#08x of what was stored", n, shift, got, want)
				}
			}
		}
	})
}

// TestCRCFault: memory that is gone is a panic that can be recovered from, as it
// is for copy, and nothing is out of order afterwards.
func TestCRCFault(t *testing.T) {
	page := os.Getpagesize()
	f, maps := mapFile(t, 2*page, 1)
	if err := f.Truncate(int64(page)); err != nil { // the second page is gone: SIGBUS
		t.Fatal(err)
	}
	shut, err := syscall.Mmap(-1, 0, 2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(shut) })
	if err := syscall.Mprotect(shut[page:], syscall.PROT_NONE); err != nil { // SIGSEGV
		t.Fatal(err)
	}
	whole := randomBytes(6, page)
	scratch := make([]byte, page)
	for name, m := range map[string][]byte{"cut off": maps[0], "shut": shut} {
		copy(m, whole)
		t.Run(name, func(t *testing.T) {
			forEachCRC(t, func(t *testing.T) {
				for _, good := range []int{0, 1, 15, 16, 17, 31, 64, 100, 128, 255, 256, 300, 512} {
					for _, n := range []int{3, 16, 20, 40, 64, 100, 128, 200, 256, 300, 600, 1500} {
						b := m[page-good : page-good+n]
						expectFault(t, n > good, "UpdateCRC", good, n, func() { sink = UpdateCRC(1, b) })
						expectFault(t, n > good, "CopyICRC from it", good, n, func() { sink = CopyICRC(1, scratch, b) })
						expectFault(t, n > good, "CopyICRC to it", good, n, func() { sink = CopyICRC(1, b, whole) })
						copy(m[:page], whole)
					}
				}
				checkCRC(t, 1, 1000, 1, 2, 3)
			})
		})
	}
}

// expectFault runs f, which touches n bytes of which the first good are there.
func expectFault(t *testing.T, want bool, what string, good, n int, f func()) {
	t.Helper()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		t.Helper()
		r := recover()
		if n == 600 {
			runtime.GC() // walks this stack
		}
		err, isError := r.(runtime.Error)
		isFault := isError && strings.Contains(err.Error(), "invalid memory address")
		if isFault != want || (r != nil) != want {
			t.Errorf("%s, %d bytes of %d: recovered %v, want a fault: %v", what, n, good, r, want)
		}
	}()
	f()
}

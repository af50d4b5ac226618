package foreign

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
)

// programEnv makes this test binary the program whose memory is reached.
const programEnv = "SOFTROCE_TEST_FOREIGN_PROGRAM"

const page = 4096

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		program()
		return
	}
	os.Exit(m.Run())
}

// program maps two pages before one that nobody may touch, says where, and
// shows the first bytes again for each line of input.
func program() {
	mem, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err == nil {
		err = unix.Mprotect(mem[2*page:], unix.PROT_NONE)
	}
	if err != nil {
		fmt.Println("0")
		return
	}
	copy(mem, "the program's memory")
	fmt.Println(shm.AddrOf(mem))
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		fmt.Printf("%q\n", mem[:20])
	}
}

// target is a running program.
type target struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	proc *Process
	addr uint64
}

func start(t *testing.T) *target {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), programEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &target{cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(func() { // ends at the end of its input; a second Wait does no harm
		_ = in.Close()
		_ = cmd.Wait()
	})
	if _, err := fmt.Fscan(p.out, &p.addr); err != nil || p.addr == 0 {
		t.Fatalf("the program did not start: %v", err)
	}
	_, _ = p.out.ReadString('\n')
	pidfd, err := shm.OpenPidfd(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pidfd.Close() })
	p.proc = NewProcess(cmd.Process.Pid, pidfd)
	return p
}

func (p *target) open(t *testing.T, off, length uint64) *Memory {
	t.Helper()
	m, err := p.proc.Open(p.addr+off, length)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skipf("skipped: this machine does not let a parent reach its child's memory: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMemory(t *testing.T) {
	p := start(t)
	m := p.open(t, 0, 2*page)
	got := make([]byte, 20)
	if err := m.ReadAt(got, 0); err != nil || string(got) != "the program's memory" {
		t.Errorf("read %q, %v", got, err)
	}
	if err := m.WriteAt([]byte("adapter"), 4); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(p.in)
	if line, err := p.out.ReadString('\n'); line != "\"the adapter's memory\"\n" {
		t.Errorf("the program sees %s, %v", line, err)
	}
	if m.Bytes(0, 8) != nil {
		t.Error("Bytes gave memory that is not mapped here")
	}
	data := bytes.Repeat([]byte("0123456789abcdef"), 2*page/16)
	back := make([]byte, len(data))
	if err := errors.Join(m.WriteAt(data, 0), m.ReadAt(back, 0)); err != nil || !bytes.Equal(data, back) {
		t.Errorf("two pages there and back: %v, equal %t", err, bytes.Equal(data, back))
	}
	var word [64]byte
	if n := testing.AllocsPerRun(50, func() { _ = m.ReadAt(word[:], 8); _ = m.WriteAt(word[:], 8) }); n > 0 {
		t.Errorf("%v allocations in a read and a write", n)
	}
}

func TestMemoryBounds(t *testing.T) {
	p := start(t)
	m := p.open(t, 100, 50)
	var buf [60]byte
	for _, r := range []struct {
		off uint64
		n   int
	}{{0, 51}, {50, 1}, {51, 0}, {math.MaxUint64, 1}, {math.MaxUint64 - 7, 8}} {
		if err := m.ReadAt(buf[:r.n], r.off); !errors.Is(err, ErrBounds) {
			t.Errorf("ReadAt %d bytes at %d: %v, want ErrBounds", r.n, r.off, err)
		}
		if err := m.WriteAt(buf[:r.n], r.off); !errors.Is(err, ErrBounds) {
			t.Errorf("WriteAt %d bytes at %d: %v, want ErrBounds", r.n, r.off, err)
		}
	}
	if err := m.ReadAt(nil, 50); err != nil {
		t.Errorf("ReadAt of nothing at the end: %v", err)
	}
	if _, err := p.proc.Open(math.MaxUint64-7, 9); !errors.Is(err, ErrBounds) {
		t.Errorf("Open of a range that wraps: %v, want ErrBounds", err)
	}
	if _, err := p.proc.Open(p.addr, 0); err != nil {
		t.Errorf("Open of nothing: %v", err)
	}
}

// A range that is not all mapped fails, at registration or in the middle of an
// access, and never ends this process.
func TestMemoryFault(t *testing.T) {
	p := start(t)
	if _, err := p.proc.Open(p.addr+2*page-8, 9); !errors.Is(err, unix.EFAULT) {
		t.Errorf("Open whose last byte is not mapped: %v, want EFAULT", err)
	}
	if _, err := p.proc.Open(0, 8); !errors.Is(err, unix.EFAULT) {
		t.Errorf("Open of the null page: %v, want EFAULT", err)
	}
	m := p.open(t, 0, page)
	m.length = 3 * page // as if the program had unmapped the rest later
	var ae *AccessError
	for _, err := range []error{
		m.ReadAt(make([]byte, 2*page), page), m.WriteAt(make([]byte, 2*page), page), second(m.FetchAdd(2*page, 1)),
	} {
		if !errors.Is(err, unix.EFAULT) || !errors.As(err, &ae) || ae.PID != p.cmd.Process.Pid {
			t.Errorf("access beyond what is mapped: %v, want an *AccessError of EFAULT", err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestMemoryAtomics(t *testing.T) {
	p := start(t)
	m := p.open(t, 0, page)
	alias := p.open(t, 64, 64) // another region over the same words
	for _, off := range []uint64{1, 4, 7} {
		if _, err := m.FetchAdd(off, 1); !errors.Is(err, ErrMisaligned) {
			t.Errorf("FetchAdd at %d: %v, want ErrMisaligned", off, err)
		}
	}
	if _, err := m.CompareSwap(page, 0, 1); !errors.Is(err, ErrBounds) {
		t.Errorf("CompareSwap at the end: %v, want ErrBounds", err)
	}
	if old, err := m.CompareSwap(512, 1, 2); old != 0 || err != nil {
		t.Errorf("CompareSwap that does not match: old %d, %v", old, err)
	}
	if old, err := m.CompareSwap(512, 0, 41); old != 0 || err != nil {
		t.Errorf("CompareSwap: old %d, %v", old, err)
	}
	if old, err := m.FetchAdd(512, math.MaxUint64); old != 41 || err != nil {
		t.Errorf("FetchAdd: old %d, %v", old, err)
	}
	if old, err := m.FetchAdd(512, 0); old != 40 || err != nil {
		t.Errorf("FetchAdd of nothing: old %d, %v", old, err)
	}
	const each = 500
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range each {
				var err error
				if i%2 == 0 {
					_, err = m.FetchAdd(72, 1)
				} else {
					_, err = alias.FetchAdd(8, 1)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got, err := m.FetchAdd(72, 0); got != 4*each || err != nil {
		t.Errorf("sum %d, %v, want %d", got, err, 4*each)
	}
}

// Revoke stops all regions of a program at once, whatever runs.
func TestRevoke(t *testing.T) {
	p := start(t)
	a, b := p.open(t, 0, page), p.open(t, page, page)
	var buf [8]byte
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				if err := a.ReadAt(buf[:0:0], 0); err != nil {
					t.Error(err)
					return
				}
				var own [8]byte
				if err := b.ReadAt(own[:], 0); err != nil {
					if !errors.Is(err, ErrRevoked) {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	p.proc.Revoke()
	wg.Wait()
	for _, err := range []error{a.ReadAt(buf[:], 0), b.WriteAt(buf[:], 0), second(a.FetchAdd(0, 1)), second(a.CompareSwap(0, 0, 1)), second(p.proc.Open(p.addr, 8))} {
		if !errors.Is(err, ErrRevoked) {
			t.Errorf("after Revoke: %v, want ErrRevoked", err)
		}
	}
	if !p.proc.Revoked() {
		t.Error("Revoked() = false")
	}
}

func TestDeadProgram(t *testing.T) {
	p := start(t)
	m := p.open(t, 0, page)
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait()
	var buf [8]byte
	if err := m.ReadAt(buf[:], 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("ReadAt of a dead program: %v, want ESRCH", err)
	}
	if err := m.WriteAt(buf[:], 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("WriteAt to a dead program: %v, want ESRCH", err)
	}
}

// A pid that came to mean another process is not opened: the pidfd knows.
func TestOpenOfAnothersPid(t *testing.T) {
	p := start(t)
	p.open(t, 0, page)
	own := make([]byte, 8)
	reused := NewProcess(os.Getpid(), p.proc.pidfd) // as if the number were this process's now
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait()
	if m, err := reused.Open(uint64(uintptr(unsafe.Pointer(&own[0]))), 8); !errors.Is(err, unix.ESRCH) {
		t.Errorf("Open: %v, %v, want ESRCH", m, err)
	}
}

func BenchmarkMemory(b *testing.B) {
	src := make([]byte, 1<<20)
	p := NewProcess(os.Getpid(), nil)
	m, err := p.Open(shm.AddrOf(src), uint64(len(src)))
	if err != nil {
		b.Skipf("skipped: %v", err)
	}
	for _, n := range []int{64, 4096, 64 << 10} {
		b.Run(fmt.Sprintf("read/%d", n), func(b *testing.B) {
			dst := make([]byte, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if err := m.ReadAt(dst, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The whole address space: what is mapped can be reached, the rest is EFAULT at
// the access, and a program that is gone is ESRCH at once.
func TestOpenAll(t *testing.T) {
	p := start(t)
	p.open(t, 0, 1) // skips where a parent may not
	m, err := p.proc.OpenAll()
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 20)
	if err := m.ReadAt(got, p.addr); err != nil || string(got) != "the program's memory" {
		t.Errorf("read %q, %v", got, err)
	}
	if err := m.WriteAt(got, p.addr+2*page); !errors.Is(err, unix.EFAULT) {
		t.Errorf("a page that nobody may touch: %v, want EFAULT", err)
	}
	if err := m.ReadAt(got[:1], Everything); !errors.Is(err, ErrBounds) {
		t.Errorf("behind the last address: %v, want ErrBounds", err)
	}
	p.proc.Revoke()
	if _, err := p.proc.OpenAll(); !errors.Is(err, ErrRevoked) {
		t.Errorf("after Revoke: %v, want ErrRevoked", err)
	}
	if _, err := NewProcess(1<<30, nil).OpenAll(); !errors.Is(err, unix.ESRCH) {
		t.Errorf("no such process: %v, want ESRCH", err)
	}
}

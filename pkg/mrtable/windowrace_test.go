package mrtable

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// racing is what workers and the control plane fight about.
type racing struct {
	t    *testing.T
	tab  *Table
	r    *Region
	w    [2]atomic.Pointer[Window]
	fast atomic.Pointer[Region]
	stop atomic.Bool
}

// remake makes new windows and a new fast region.
func (c *racing) remake() {
	for i := range c.w {
		w, err := c.tab.AllocWindow(testPD, WindowType(i+1), 0)
		if err != nil {
			c.t.Error(err)
			return
		}
		c.w[i].Store(w)
	}
	f, err := c.tab.AllocRegion(testPD, 2, 0)
	if err != nil {
		c.t.Error(err)
		return
	}
	c.fast.Store(f)
}

// end ends the windows and the fast region, whatever the workers do to them.
func (c *racing) end() {
	for i := range c.w {
		w := c.w[i].Load()
		wantErr(c.t, "mark a window", c.tab.MarkWindow(w), nil)
		c.tab.FreeWindow(w)
	}
	f := c.fast.Load()
	wantErr(c.t, "mark the fast region", c.tab.Mark(f), nil)
	c.tab.Free(f)
}

// worker binds, looks up, invalidates and registers until told to stop, and
// counts what worked.
func (c *racing) worker(qpn uint32, binds, hits, ends, regs *int) {
	pages := []Page{{c.r.LKey(), winBase + pageLen, pageLen}, {c.r.LKey(), winBase, pageLen}}
	count := func(n *int, err error) {
		if err == nil {
			*n++
		}
	}
	for !c.stop.Load() {
		for i := range c.w {
			w := c.w[i].Load()
			b := BindArgs{nextRKey(w.RKey()), c.r.LKey(), winBase + 8, 8, AccessRemoteRead}
			count(binds, c.tab.Bind(qpn, testPD, b))
			seg, err := c.tab.Remote(w.RKey(), testPD, qpn, winBase+8, 8, AccessRemoteRead)
			count(hits, err)
			if d := seg.Bytes(0, 8); err == nil && (len(d) != 8 || d[0] != 0x5A) {
				c.t.Errorf("a window gave %x", d)
			}
			count(ends, c.tab.InvalidateRemote(w.RKey(), testPD, qpn))
		}
		f := c.fast.Load()
		count(regs, c.tab.FastRegister(testPD, nextRKey(f.RKey()), 0, bindAccess, pages))
		if seg, err := c.tab.Local(f.LKey(), testPD, 0, 8, AccessLocalWrite); err == nil && seg.Bytes(0, 8)[0] != 0x5A {
			c.t.Error("a fast region gave other memory")
		}
		count(ends, c.tab.InvalidateLocal(f.RKey(), testPD))
		runtime.Gosched()
	}
}

// TestWindowsAgainstWorkers: workers bind, invalidate and look up the same windows
// and fast regions while the control plane ends and remakes them. A look-up gives
// the right memory or none; the region never goes while a window is bound to it;
// and at the end each binding was counted once and let go once: the region can go.
func TestWindowsAgainstWorkers(t *testing.T) {
	const workers, rounds = 3, 3000
	mem := make(HeapMemory, 2*pageLen)
	for i := range mem {
		mem[i] = 0x5A
	}
	c := &racing{t: t, tab: New(Config{MaxRegions: 16, Secret: 4})}
	c.r = mustRegister(t, c.tab, testPD, mem, winBase, uint64(len(mem)), bindAccess)
	anchor, err := c.tab.AllocWindow(testPD, WindowType1, 0)
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, "anchor", c.tab.Bind(9, testPD, BindArgs{nextRKey(anchor.RKey()), c.r.LKey(), winBase, 1, 0}), nil)
	c.remake()
	var wg sync.WaitGroup
	var binds, hits, ends, regs [workers]int
	for i := range workers {
		wg.Go(func() { c.worker(uint32(i+1), &binds[i], &hits[i], &ends[i], &regs[i]) })
	}
	for range rounds {
		wantErr(t, "mark", c.tab.Mark(c.r), ErrBound)
		c.end()
		c.remake()
		for range 4 {
			runtime.Gosched()
		}
	}
	c.stop.Store(true)
	wg.Wait()
	c.end()
	wantErr(t, "the last window's end", c.tab.MarkWindow(anchor), nil)
	if n := c.r.h.now().users.Load(); n != 0 {
		t.Errorf("%d windows are bound at the end, by the region's count", n)
	}
	wantErr(t, "mark", c.tab.Mark(c.r), nil)
	for i := range workers {
		if binds[i] == 0 || hits[i] == 0 || ends[i] == 0 || regs[i] == 0 {
			t.Errorf("worker %d did not test: %d binds, %d hits, %d invalidations, %d registrations", i, binds[i], hits[i], ends[i], regs[i])
		}
	}
}

// TestBindAgainstMark: of a bind and the end of its region at once one wins: the
// window is bound and the region stays, or neither opens anything.
func TestBindAgainstMark(t *testing.T) {
	tab := New(Config{MaxRegions: 4, Secret: 4})
	mem := make(HeapMemory, pageLen)
	var won [2]int
	for range 2000 {
		r := mustRegister(t, tab, testPD, mem, winBase, pageLen, bindAccess)
		w, err := tab.AllocWindow(testPD, WindowType2, 0)
		if err != nil {
			t.Fatal(err)
		}
		var bound, marked error
		var wg sync.WaitGroup
		wg.Go(func() {
			bound = tab.Bind(1, testPD, BindArgs{nextRKey(w.RKey()), r.LKey(), winBase, 8, AccessRemoteRead})
		})
		wg.Go(func() { marked = tab.Mark(r) })
		wg.Wait()
		_, look := tab.Remote(w.RKey(), testPD, 1, winBase, 8, AccessRemoteRead)
		switch {
		case bound == nil && marked != nil && look == nil:
			won[0]++
		case bound != nil && marked == nil && look != nil:
			won[1]++
		default:
			t.Fatalf("bind: %v, mark: %v, look-up: %v", bound, marked, look)
		}
		wantErr(t, "mark the window", tab.MarkWindow(w), nil)
		tab.FreeWindow(w)
		if marked != nil {
			wantErr(t, "mark the region", tab.Mark(r), nil)
		}
		tab.Free(r)
	}
	t.Logf("the bind won %d times, the mark %d times", won[0], won[1])
}

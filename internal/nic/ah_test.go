package nic

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
)

// A handle finds its object until it is removed, and never another one's, also
// while the table grows under a reader.
func TestAHTable(t *testing.T) {
	var table ahTable
	if table.lookup(0) != nil || table.lookup(1) != nil {
		t.Error("an empty table has something")
	}
	first := &ahObject{}
	table.add(first)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			if table.lookup(first.handle) != first {
				t.Error("the first handle was not found")
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	seen := map[uint32]bool{first.handle: true}
	var list []*ahObject
	for round := range 5 {
		for range 300 {
			o := &ahObject{}
			if !table.add(o) || o.handle == 0 || seen[o.handle] {
				t.Fatalf("round %d: handle %#x", round, o.handle)
			}
			seen[o.handle] = true
			list = append(list, o)
		}
		for _, o := range list {
			if table.lookup(o.handle) != o {
				t.Fatalf("round %d: handle %#x finds something else", round, o.handle)
			}
		}
		for _, o := range list {
			table.remove(o)
			if table.lookup(o.handle) != nil {
				t.Fatalf("handle %#x finds something after its end", o.handle)
			}
		}
		list = list[:0]
	}
	close(stop)
	<-done
	if table.count != 1 || len(table.used) != 512 {
		t.Errorf("%d handles, %d places, want 1 and 512", table.count, len(table.used))
	}
	for _, h := range []uint32{0, ahPlaceMask, 1 << ahPlaceBits, ^uint32(0), first.handle + 1<<ahPlaceBits} {
		if table.lookup(h) != nil {
			t.Errorf("handle %#x finds something", h)
		}
	}
}

// The ways of a handle: one for each steering key, whose send socket carries
// that key alone; the domain is looked at each time.
func TestAHPaths(t *testing.T) {
	a := startAdapter(t, nil)
	e := &endpoint{dev: openDevice(t, a)}
	var err error
	if e.pd, err = e.dev.AllocPD(); err != nil {
		t.Fatal(err)
	}
	ah := e.handleTo(t, e.gid(t))
	p := a.programList()[0]
	o := p.ahs.lookup(ah.Handle())
	w := a.workers[0]
	w.do(func() {
		x := &p.links[0].ahs
		ports := map[uint16]bth.QPN{}
		for qpn := range bth.QPN(2 * steerKeys) {
			path := x.Path(o.handle, o.pd, qpn)
			if path == nil || path != x.Path(o.handle, o.pd, qpn) || path.Dst != o.attr.DGID || path.MTU != 4096 || path.HopLimit != 33 {
				t.Errorf("queue pair %v: %+v", qpn, path)
				return
			}
			if key, ok := ports[path.SrcPort]; ok && key != qpn%steerKeys {
				t.Errorf("port %#x carries keys %d and %d", path.SrcPort, key, qpn%steerKeys)
			}
			ports[path.SrcPort] = qpn % steerKeys
			if x.Path(o.handle, o.pd+1, qpn) != nil {
				t.Error("another domain has the handle, too")
			}
		}
		if len(x.paths) != steerKeys {
			t.Errorf("%d ways, want %d", len(x.paths), steerKeys)
		}
	})
	if err := ah.Destroy(); err != nil {
		t.Fatal(err)
	}
	w.do(func() {
		if x := &p.links[0].ahs; len(x.paths) != 0 || x.Path(o.handle, o.pd, 1) != nil {
			t.Error("a destroyed handle has ways")
		}
	})
}

// A local address goes and comes back: what is sent meanwhile is lost and
// counted, what comes after it arrives, by the same handle.
func TestAHFollowsItsAddress(t *testing.T) {
	testmatrix.SkipOn(t, "an adapter's addresses on a TUN link are its own, and stay", BackendTUN)
	a, b := twoAdapters(t, false)
	x, y := newUD(t, openDevice(t, a), 1<<12, nil), newUD(t, openDevice(t, b), 1<<12, nil)
	watch := a.watch
	watch.end() // the test does its work
	a.watch = nil
	addr := a.Addrs()[0]
	ah := x.handleTo(t, y.gid(t))
	send := func(arrives bool) {
		t.Helper()
		y.postRecv(t, 1, 0, 100)
		x.post(t, x.datagram(ah, y.qp.Num(), 0, 8))
		x.next(t, cq.Send, cq.Success)
		if arrives {
			y.next(t, cq.Recv, cq.Success)
		}
	}
	lost := func() (n uint64) {
		for _, w := range a.Snapshot().Workers {
			n += w.Stats.SendErrors[unix.EBADF]
		}
		return n
	}
	send(true)
	watch.drop(addr)
	send(false)
	send(false)
	if n := lost(); n != 2 {
		t.Errorf("%d datagrams lost, want 2", n)
	}
	e := a.gids.load()[0]
	if err := watch.bind(&e); err != nil {
		t.Fatal(err)
	}
	send(true)
	if n := lost(); n != 2 {
		t.Errorf("%d datagrams lost, want 2", n)
	}
}

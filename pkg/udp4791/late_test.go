package udp4791

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testaddr"
)

// An address comes, is sent from and received on by every worker, goes, and is
// free for others; the flows of the other address never notice.
func TestAddressComesAndGoes(t *testing.T) {
	addrs := testaddr.Take(t, 3)
	g, peer := mustOpen(t, Config{Addrs: addrs[:1], Workers: 2}), mustOpen(t, Config{Addrs: addrs[1:2]})
	p, first := peer.Endpoint(0), g.Endpoint(0)
	back, _ := mustFlow(t, p, addrs[1], 0, 0)
	old, _ := mustFlow(t, first, addrs[0], 3, 0)
	late := addrs[2]
	var gens [3]FlowID
	for round := range gens {
		if _, _, err := first.OpenFlow(late, 0, 0); !errors.As(err, new(*AddrError)) {
			t.Fatalf("a flow from an address that is not there: %v", err)
		}
		n, err := g.OpenAddr(late)
		if err != nil {
			t.Fatal(err)
		}
		for w := range 2 {
			e := g.Endpoint(w)
			fd := e.Adopt(n)
			if fds := e.FDs(); len(fds) != 2 || fds[1] != fd {
				t.Errorf("worker %d polls %v, adopted %d", w, fds, fd)
			}
			key := uint8(w)
			f, port := mustFlow(t, e, late, key, 0)
			if port < FirstFlowPort {
				t.Errorf("worker %d sends from port %d", w, port)
			}
			gens[round], _ = mustFlow(t, e, late, key, Port)
			mustSend(t, e, SendSlot{Flow: f, Dst: addrs[1], Buf: bth(uint32(key), "out")}, SendSlot{Flow: gens[round], Dst: addrs[1], Buf: bth(uint32(key), "out")})
			for _, d := range collect(t, p, 2) {
				if d.Meta.Src.Addr() != late {
					t.Errorf("came from %v", d.Meta.Src)
				}
			}
			mustSend(t, p, SendSlot{Flow: back, Dst: late, Buf: bth(uint32(key), "in")})
			if d := collect(t, e, 1)[0]; d.Meta.Dst != late || d.Buf[12:] != "in" {
				t.Errorf("worker %d got %q for %v", w, d.Buf, d.Meta.Dst)
			}
		}
		n.Close() // everything is adopted: nothing happens
		if _, err := g.OpenAddr(late); !errors.As(err, new(*BusyError)) {
			t.Errorf("an address of the group's own: %v", err)
		}
		for w := range 2 {
			g.Endpoint(w).Drop(late)
		}
		g.CloseAddr(late)
		other, err := Open(Config{Addrs: addrs[2:]})
		if err != nil {
			t.Fatalf("the address is not free: %v", err)
		}
		other.Close()
		mustSend(t, first, SendSlot{Flow: old, Dst: addrs[1], Buf: bth(3, "old")})
		if d := collect(t, p, 1)[0]; d.Meta.Src.Addr() != addrs[0] {
			t.Errorf("the first address's flow came from %v", d.Meta.Src)
		}
	}
	e := g.Endpoint(1)
	for _, f := range gens {
		var se *SendError
		if n, err := e.WriteBatch([]SendSlot{{Flow: f, Dst: addrs[1], Buf: bth(1, "stale")}}); n != 0 || !errors.As(err, &se) || se.Errno != unix.EBADF {
			t.Errorf("a stale flow sent %d, %v", n, err)
		}
		e.CloseFlow(f)
	}
	if a := g.Addrs(); len(a) != 1 || a[0] != addrs[0] {
		t.Errorf("addresses %v", a)
	}
}

// What cannot be an address of the group leaves nothing behind.
func TestLateAddressRefused(t *testing.T) {
	addrs := testaddr.Take(t, 3)
	g := mustOpen(t, Config{Addrs: addrs[:1], Workers: 2})
	mustOpen(t, Config{Addrs: addrs[1:2]})
	if _, err := g.OpenAddr(addrs[1]); !errors.As(err, new(*BusyError)) {
		t.Errorf("another's address: %v", err)
	}
	if _, err := g.OpenAddr(addrs[0]); !errors.As(err, new(*BusyError)) {
		t.Errorf("its own address: %v", err)
	}
	n, err := g.OpenAddr(addrs[2])
	if err != nil {
		t.Fatal(err)
	}
	n.Close()
	mustOpen(t, Config{Addrs: addrs[2:]}) // it is free again
	for len(g.locals) < MaxAddrs {
		g.locals, g.locks = append(g.locals, local{addr: addrs[1]}), append(g.locks, -1)
	}
	for i := range g.locks[1:] {
		g.locks[i+1] = lockOf(t)
	}
	free := testaddr.Take(t, 1)
	if _, err := g.OpenAddr(free[0]); !errors.As(err, new(*AddrError)) {
		t.Errorf("address %d: %v", MaxAddrs+1, err)
	}
	g.Close()
	if _, err := g.OpenAddr(free[0]); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed group: %v", err)
	}
	mustOpen(t, Config{Addrs: free})
}

// lockOf stands for the lock of an address.
func lockOf(t *testing.T) int {
	t.Helper()
	fd, err := unix.Dup(0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

package e2e

import (
	"io"
	"regexp"
	"runtime"
	"strconv"
	"testing"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

// mallocs is how many objects the daemon has allocated since it started, by its
// own profile.
func (d *daemon) mallocs() int { return d.heap("heap?debug=1", "Mallocs") }

// heapBytes is what lives on the daemon's heap, after a collection.
func (d *daemon) heapBytes() int { return d.heap("heap?gc=1&debug=1", "HeapAlloc") }

// heap asks the daemon's profile for a figure of its heap.
func (d *daemon) heap(query, figure string) (n int) {
	d.t.Helper()
	m := regexp.MustCompile(`msg=pprof url=(\S+)`).FindStringSubmatch(d.log.String())
	if m == nil {
		d.t.Fatalf("no profile address in the log:\n%s", d.log.String())
	}
	resp, err := scraper.Get(m[1] + query)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	got := regexp.MustCompile(`(?m)^# ` + figure + ` = (\d+)$`).FindSubmatch(body)
	if got == nil {
		d.t.Fatalf("no %s in the profile:\n%.500s", figure, body)
	}
	if n, err = strconv.Atoi(string(got[1])); err != nil {
		d.t.Fatal(err)
	}
	return n
}

// pump has a write to b, count times n bytes and up to batch at once.
func pump(t *testing.T, a, b *end, count, n, batch int) {
	t.Helper()
	wr := verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(0, n)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	}
	var wcs [32]verbs.WC
	for posted, done := 0, 0; done < count; {
		for ; posted < count && posted-done < batch; posted++ {
			if wr.Opcode = verbs.WRRDMAWrite; posted%4 == 3 {
				wr.Opcode = verbs.WRRDMARead
			}
			if _, err := a.qp.PostSend(wr); err != nil {
				t.Fatal(err)
			}
		}
		k, err := a.cq.Poll(wcs[:])
		if err != nil {
			t.Fatal(err)
		}
		for i := range wcs[:k] {
			if wcs[i].Status != verbs.WCSuccess {
				t.Fatalf("a request ends with %v", wcs[i].Status)
			}
		}
		if done += k; k == 0 {
			runtime.Gosched()
		}
	}
}

// A daemon's steady state allocates nothing: 100,000 requests of a program of
// another process, to another daemon, to itself, and large ones, cost no more
// objects than asking for their number does.
func TestDaemonDoesNotAllocate(t *testing.T) {
	needsSharedMemory(t)
	addrs := testaddr.Take(t, 2)
	var daemons [2]*daemon
	for i := range daemons {
		daemons[i] = startDaemon(t, addrs[i], socketIn(t), "--pprof", toolHost(t, addrs[i])+":0")
	}
	most := 200
	if testmatrix.Backend(t) == adapter.BackendTUN {
		// The watch over the network, which each link of the tests beside this one wakes, has
		// its own: about a thousand. The requests are 100,000 packets each time.
		most = 5_000
	}
	open := func(i int) *end {
		e, err := openEnd(daemons[i].socket, verbs.PSN(i))
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	for _, c := range []struct {
		name            string
		peer            int
		count, n, batch int
	}{
		{"to another daemon", 1, 100_000, 64, 24},
		{"to itself", 0, 100_000, 64, 24},
		{"1 MiB to another daemon", 1, 400, 1 << 20, 8},
		{"1 MiB to itself", 0, 400, 1 << 20, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			if testing.Short() {
				c.count /= 10
			}
			a, b := open(0), open(c.peer)
			for _, x := range [][2]*end{{a, b}, {b, a}} {
				if err := x[0].qp.ConnectRC(x[1].id, verbs.RCConfig{PSN: x[0].id.PSN}); err != nil {
					t.Fatal(err)
				}
			}
			pump(t, a, b, c.count/10, c.n, c.batch)
			for i, d := range daemons {
				d.mallocs()
				idle := d.mallocs()
				idle = d.mallocs() - idle // what asking costs
				got := 0
				for range 5 {
					before := d.mallocs()
					pump(t, a, b, c.count, c.n, c.batch)
					got = d.mallocs() - before
					t.Logf("daemon %d: %d objects for %d requests, %d for none", i, got, c.count, idle)
					if got <= idle+most {
						break
					}
				}
				if got > idle+most {
					t.Errorf("daemon %d: %d objects for %d requests, %d for none", i, got, c.count, idle)
				}
			}
		})
	}
}

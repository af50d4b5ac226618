package e2e

import (
	"os"
	"testing"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/pkg/verbs"
)

const (
	// idleLimit is the most bytes of the daemon's heap that an idle queue pair may
	// take, beside its rings.
	idleLimit = 4096
	manyQPs   = 10_000
	mostQPs   = 100_000
)

// crowd is a program of many queue pairs with one queue and one region.
type crowd struct {
	t   *testing.T
	cq  *verbs.CQ
	mr  *verbs.MR
	pd  *verbs.PD
	gid verbs.GID
	qps []*verbs.QP
}

func newCrowd(t *testing.T, dev *verbs.Device, cqe, region int) *crowd {
	t.Helper()
	c := &crowd{t: t}
	var err error
	if c.pd, err = dev.AllocPD(); err != nil {
		t.Fatal(err)
	}
	if c.cq, err = dev.CreateCQ(cqe, nil, 0); err != nil {
		t.Fatal(err)
	}
	if c.mr, err = c.pd.AllocMR(region, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
		t.Fatal(err)
	}
	if c.gid, err = dev.QueryGID(0); err != nil {
		t.Fatal(err)
	}
	return c
}

// grow makes queue pairs until there are n.
func (c *crowd) grow(n int) {
	c.t.Helper()
	for len(c.qps) < n {
		q, err := c.pd.CreateQP(&verbs.QPInitAttr{
			Type: verbs.RC, SendCQ: c.cq, RecvCQ: c.cq,
			Cap: verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1},
		})
		if err != nil {
			c.t.Fatalf("queue pair %d: %v", len(c.qps), err)
		}
		c.qps = append(c.qps, q)
	}
}

// connect joins the queue pairs of two crowds, one by one.
func (c *crowd) connect(to *crowd) {
	c.t.Helper()
	for i, q := range c.qps {
		peer := verbs.RCPeer{QPN: to.qps[i].Num(), PSN: 1, GID: to.gid}
		if err := q.ConnectRC(peer, verbs.RCConfig{PSN: 1, MaxRDAtomic: 1, Timeout: 18}); err != nil {
			c.t.Fatalf("queue pair %d: %v", i, err)
		}
	}
}

// all polls n completions, all of which must be successes.
func (c *crowd) all(n int) {
	c.t.Helper()
	wcs := make([]verbs.WC, 256)
	eventually(c.t, "every queue pair has completed", func() bool {
		k, err := c.cq.Poll(wcs)
		for i := range wcs[:k] {
			if wcs[i].Status != verbs.WCSuccess {
				c.t.Fatalf("request %d on %v: %v", wcs[i].WRID, wcs[i].QPN, wcs[i].Status)
			}
		}
		if err != nil {
			c.t.Fatal(err)
		}
		n -= k
		return n == 0
	})
}

// Ten thousand connections of one daemon send at once, and each message
// arrives where it belongs.
func TestTenThousandConnectionsAtOnce(t *testing.T) {
	needsSharedMemory(t)
	const size = 64
	addrs := testaddr.Take(t, 2)
	da, db := startDaemon(t, addrs[0], socketIn(t)), startDaemon(t, addrs[1], socketIn(t))
	a := newCrowd(t, openDevice(t, da.socket), 2*manyQPs, manyQPs*size)
	b := newCrowd(t, openDevice(t, db.socket), 2*manyQPs, manyQPs*size)
	a.grow(manyQPs)
	b.grow(manyQPs)
	a.connect(b)
	b.connect(a)
	for i, q := range b.qps {
		if _, err := q.PostRecv(verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{b.mr.SGE(i*size, size)}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range a.mr.Bytes() {
		a.mr.Bytes()[i] = byte(i ^ i>>6 ^ i>>14)
	}
	for i, q := range a.qps {
		wr := verbs.SendWR{WRID: uint64(i), Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(i*size, size)}}
		if _, err := q.PostSend(wr); err != nil {
			t.Fatal(err)
		}
	}
	b.all(manyQPs)
	a.all(manyQPs)
	if string(a.mr.Bytes()) != string(b.mr.Bytes()) {
		t.Error("a message is not what was sent, or not where it belongs")
	}
	t.Logf("%d queue pairs exchanged %d messages", 2*manyQPs, manyQPs)
}

// An idle queue pair costs the daemon little, and a hundred thousand fit.
func TestManyQueuePairsFit(t *testing.T) {
	needsSharedMemory(t)
	d := startDaemon(t, testaddr.Take(t, 1)[0], socketIn(t), "--pprof", "127.0.0.1:0")
	c := newCrowd(t, openDevice(t, d.socket), 64, os.Getpagesize())
	before := d.heapBytes()
	c.grow(manyQPs)
	t.Logf("%d bytes of the daemon's heap for a queue pair in RESET", (d.heapBytes()-before)/manyQPs)
	c.connect(c) // each to itself
	perQP := (d.heapBytes() - before) / manyQPs
	t.Logf("%d bytes of the daemon's heap for an idle queue pair in RTS", perQP)
	if perQP >= idleLimit {
		t.Errorf("an idle queue pair takes %d bytes of the daemon's heap, want below %d", perQP, idleLimit)
	}
	c.grow(mostQPs)
	t.Logf("%d queue pairs, %d MB of the daemon's heap", mostQPs, d.heapBytes()>>20)
}

package e2e

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/verbs"
)

// client holds one of everything.
type client struct {
	pd *verbs.PD
	ch *verbs.CompChannel
	cq *verbs.CQ
	mr *verbs.MR
	qp *verbs.QP

	posted, flushed int
}

func newClient(t *testing.T, dev *verbs.Device) *client {
	t.Helper()
	c := &client{}
	var err error
	fatal := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	c.pd, err = dev.AllocPD()
	fatal(err)
	c.ch, err = dev.CreateCompChannel()
	fatal(err)
	c.cq, err = dev.CreateCQ(64, c.ch, 0)
	fatal(err)
	c.mr, err = c.pd.AllocMR(4096, verbs.AccessLocalWrite)
	fatal(err)
	c.qp, err = c.pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.RC, SendCQ: c.cq, RecvCQ: c.cq, Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	fatal(err)
	fatal(c.qp.ToInit(verbs.AccessRemoteWrite))
	for range 4 {
		_, err := c.qp.PostRecv(verbs.RecvWR{WRID: uint64(c.posted), SGList: []verbs.SGE{c.mr.SGE(0, 64)}})
		fatal(err)
		c.posted++
	}
	return c
}

// postUntilError posts receives while there is room, and polls, until posting
// fails with more than a full queue.
func (c *client) postUntilError() error {
	var wcs [4]verbs.WC
	for {
		_, err := c.qp.PostRecv(verbs.RecvWR{WRID: uint64(c.posted), SGList: []verbs.SGE{c.mr.SGE(0, 64)}})
		switch {
		case err == nil:
			c.posted++
		case !errors.Is(err, unix.ENOMEM):
			return err
		}
		n, err := c.cq.Poll(wcs[:])
		if err != nil {
			return err
		}
		c.count(wcs[:n])
		runtime.Gosched()
	}
}

func (c *client) count(wcs []verbs.WC) {
	for i := range wcs {
		if wcs[i].Status == verbs.WCWRFlushErr {
			c.flushed++
		}
	}
}

// wantFlushed polls out the rest: each posted request completes once.
func (c *client) wantFlushed(t *testing.T) {
	t.Helper()
	var wcs [4]verbs.WC
	for {
		n, err := c.cq.Poll(wcs[:])
		if err != nil {
			t.Fatalf("poll after the daemon's death: %v", err)
		}
		if n == 0 {
			break
		}
		c.count(wcs[:n])
	}
	if c.flushed != c.posted {
		t.Errorf("flushed completions: got %d, want %d, one for each request posted", c.flushed, c.posted)
	}
}

// wantErrors makes each call once more: all fail, none hangs.
func (c *client) wantErrors(t *testing.T, dev *verbs.Device) {
	t.Helper()
	for _, c := range []struct {
		name string
		call func() error
	}{
		{"AllocPD", func() error { _, err := dev.AllocPD(); return err }},
		{"CreateCQ", func() error { _, err := dev.CreateCQ(1, nil, 0); return err }},
		{"CreateCompChannel", func() error { _, err := dev.CreateCompChannel(); return err }},
		{"Query", func() error { _, err := dev.Query(); return err }},
		{"GIDTable", func() error { _, err := dev.GIDTable(); return err }},
		{"AllocMR", func() error { _, err := c.pd.AllocMR(64, 0); return err }},
		{"RegMR", func() error { _, err := c.pd.RegMR(make([]byte, 64), 0); return err }},
		{"Modify", func() error { return c.qp.ToInit(0) }},
		{"QueryQP", func() error { _, err := c.qp.Query(); return err }},
		{"PostRecv", func() error { _, err := c.qp.PostRecv(verbs.RecvWR{}); return err }},
		{"ReqNotify", func() error { return c.cq.ReqNotify(false) }},
		{"DestroyQP", c.qp.Destroy},
		{"DestroyCQ", c.cq.Destroy},
		{"Dereg", c.mr.Dereg},
		{"DestroyChannel", c.ch.Destroy},
		{"DeallocPD", c.pd.Dealloc},
	} {
		if err := c.call(); !errors.Is(err, verbs.ErrDeviceDead) || !errors.Is(err, unix.EIO) {
			t.Errorf("%s on a dead device: got %v, want ErrDeviceDead and EIO", c.name, err)
		}
	}
}

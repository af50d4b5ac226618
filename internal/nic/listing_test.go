package nic

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/verbs"
)

// list lists everything of a kind, part by part.
func (r *rawClient) list(kind uapi.ResourceKind) (out []uapi.Resource, parts int) {
	r.t.Helper()
	m := &uapi.ListResourcesRequest{Kind: kind}
	for {
		rep := must[uapi.ListResourcesReply](r, uapi.OpListResources, m)
		out = append(out, rep.Resources...)
		parts++
		if rep.Next == 0 {
			return out, parts
		}
		if rep.Next <= m.After || len(rep.Resources) == 0 {
			r.t.Fatalf("part after %#x: next %#x, %d objects", m.After, rep.Next, len(rep.Resources))
		}
		m.After = rep.Next
	}
}

// Every kind of object is listed with what rdma-resource(8) shows of it.
func TestListResources(t *testing.T) {
	a := startAdapter(t, nil)
	p := newPairWithWindows(t, a)
	mw, err := p.y.pd.AllocMW(verbs.MWType2)
	if err != nil {
		t.Fatal(err)
	}
	if s := p.status(p.y, mw.BindWR(p.mr, p.mr.Addr()+8, 16, verbs.AccessRemoteWrite)); s != verbs.WCSuccess {
		t.Fatal(s)
	}
	if s := p.write(mw.RKey(), p.mr.Addr()+8, 1); s != verbs.WCSuccess {
		t.Fatal(s)
	}
	r := rawHello(t, a)
	one := func(kind uapi.ResourceKind, is func(*uapi.Resource) bool) uapi.Resource {
		t.Helper()
		all, _ := r.list(kind)
		i := slices.IndexFunc(all, func(x uapi.Resource) bool { return is(&x) })
		if i < 0 {
			t.Fatalf("not among %+v", all)
		}
		return all[i]
	}
	q := one(uapi.ResourceQP, func(x *uapi.Resource) bool { return x.Number == uint32(p.x.qp.Num()) })
	gid, err := p.y.dev.QueryGID(0)
	if err != nil {
		t.Fatal(err)
	}
	if q.Type != "RC" || q.State != "RTS" || q.PeerQPN != uint32(p.y.qp.Num()) || q.Peer != gid.String() || q.PathMTU != 4096 ||
		q.SentBytes == 0 || q.SendCQ == 0 || q.RecvCQ != q.SendCQ || q.PD == 0 || q.Program != 1 {
		t.Errorf("queue pair %+v", q)
	}
	mr := one(uapi.ResourceMR, func(x *uapi.Resource) bool { return x.LKey == uint32(p.mr.LKey()) })
	if mr.Length != 8192 || mr.IOVA != p.mr.Addr() || mr.RKey != uint32(p.mr.RKey()) || mr.Access != uint32(verbs.AccessLocalWrite|verbs.AccessMWBind) || mr.Program != 2 {
		t.Errorf("region %+v", mr)
	}
	w := one(uapi.ResourceMW, func(x *uapi.Resource) bool { return x.RKey == uint32(mw.RKey()) })
	if w.Type != "2B" || w.Length != 16 || w.IOVA != p.mr.Addr()+8 || w.PD != mr.PD {
		t.Errorf("window %+v", w)
	}
	if pd := one(uapi.ResourcePD, func(x *uapi.Resource) bool { return x.Program == 2 }); pd.Users != 4 || pd.Number != mr.PD {
		t.Errorf("domain %+v", pd)
	}
	if c := one(uapi.ResourceCQ, func(x *uapi.Resource) bool { return x.Program == 1 }); c.Users != 2 || c.CQE != 64 || c.Number != q.SendCQ {
		t.Errorf("completion queue %+v", c)
	}
	all, _ := r.list(uapi.ResourceProgram)
	if len(all) != 3 || all[2].Name != "raw" || all[0].Users != 1 || all[2].Users != 0 || all[0].PID == 0 {
		t.Errorf("programs %+v", all)
	}
	r.wantRefusal(r.call(uapi.OpListResources, &uapi.ListResourcesRequest{Kind: 99}), syscall.EINVAL, "kind 99")
	r.wantRefusal(r.call(uapi.OpListResources, &uapi.ListResourcesRequest{}), syscall.EINVAL, "kind 0")
	if rep := must[uapi.ListResourcesReply](r, uapi.OpListResources, &uapi.ListResourcesRequest{Kind: uapi.ResourceQP, After: 1<<64 - 1}); rep.Next != 0 || len(rep.Resources) != 0 {
		t.Errorf("behind the end: %+v", rep)
	}
}

// A user sees its own programs, root and the adapter's user all; keys are for
// the owner's user alone.
func TestSightOfOthers(t *testing.T) {
	const adapter = 900
	for _, row := range []struct {
		name          string
		owner, asker  uint32
		objects, keys bool
	}{
		{"the same user", 1000, 1000, true, true},
		{"another user", 1000, 1001, false, false},
		{"root", 1000, 0, true, false},
		{"root and root", 0, 0, true, true},
		{"the adapter's user", 1000, adapter, true, false},
		{"the adapter's user's objects", adapter, 1000, false, false},
		{"nobody and nobody", overflowUID, overflowUID, false, false},
		{"root's objects", 0, 1000, false, false},
	} {
		if objects, keys := sight(row.asker, row.owner, adapter); objects != row.objects || keys != row.keys {
			t.Errorf("%s: objects %v, keys %v", row.name, objects, keys)
		}
	}
	if objects, _ := sight(overflowUID, 1000, overflowUID); objects {
		t.Error("who has no number here is not the adapter's user")
	}
}

// A program without a number for its user sees itself.
func TestListResourcesOfNobody(t *testing.T) {
	p := &program{uid: overflowUID}
	if objects, keys := p.sight(p); !objects || !keys {
		t.Errorf("objects %v, keys %v", objects, keys)
	}
	if objects, keys := p.sight(&program{uid: overflowUID}); objects || keys {
		t.Errorf("another's objects %v, keys %v", objects, keys)
	}
}

// Parts of a listing are bounded, and what is there all the time comes once,
// while other objects come and go.
func TestListResourcesInParts(t *testing.T) {
	a := startAdapter(t, nil)
	r := rawConn(t, a)
	must[uapi.HelloReply](r, uapi.OpHello, &uapi.HelloRequest{Version: uapi.Version, Program: strings.Repeat("\x01ü", 300)})
	want := map[string]bool{}
	for range 3 * listObjects {
		want[fmt.Sprint("1/", r.pd())] = true
	}
	second := rawHello(t, a)
	want[fmt.Sprint("2/", second.pd())] = true
	asker := rawHello(t, a)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			h := must[uapi.HandleReply](second, uapi.OpAllocPD, nil).Handle
			must[uapi.Empty](second, uapi.OpDeallocPD, &uapi.HandleRequest{Handle: h})
		}
	}()
	for range 20 {
		got, parts := asker.list(uapi.ResourcePD)
		if parts < 3 {
			t.Errorf("%d parts", parts)
		}
		seen := map[string]int{}
		for _, x := range got {
			seen[fmt.Sprint(x.Program, "/", x.Number)]++
		}
		for k, n := range seen {
			if n != 1 {
				t.Errorf("%s came %d times", k, n)
			}
		}
		for k := range want {
			if seen[k] != 1 {
				t.Errorf("%s came %d times", k, seen[k])
			}
		}
	}
	stop.Store(true)
	<-done
}

// Two programs that list each other's objects at the same time do not wait for
// each other.
func TestListResourcesBothWays(t *testing.T) {
	a := startAdapter(t, nil)
	var ends []chan struct{}
	for range 3 {
		r := rawHello(t, a)
		r.qp(r.pd(), r.cq(4))
		end := make(chan struct{})
		ends = append(ends, end)
		go func() {
			defer close(end)
			for range 100 {
				r.list(uapi.ResourceQP)
			}
		}()
	}
	for _, end := range ends {
		<-end
	}
}

// The counters have the kernel's names where it has them, and count.
func TestListCounters(t *testing.T) {
	a := startAdapter(t, nil)
	d := openDevice(t, a)
	x, y := newEndpoint(t, d, 8192), newEndpoint(t, d, 8192)
	connectPair(t, x, y)
	if err := transfer(within(t), x, y, 1); err != nil {
		t.Fatal(err)
	}
	r := rawHello(t, a)
	got := map[string]uint64{}
	for _, c := range must[uapi.ListCountersReply](r, uapi.OpListCounters, nil).Counters {
		if _, twice := got[c.Name]; twice || c.Help == "" {
			t.Errorf("counter %+v, twice %v", c, twice)
		}
		got[c.Name] = c.Value
	}
	for _, name := range []string{
		"sent_pkts", "rcvd_pkts", "duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "send_rnr_err", "rcvd_seq_err",
		"ack_deferred", "retry_exceeded_err", "retry_rnr_exceeded_err", "completer_retry_err", "send_err", "link_downed",
		"rdma_sends", "rdma_recvs", "drop_icrc", "drop_no_qp",
	} {
		if _, ok := got[name]; !ok {
			t.Errorf("no counter %s", name)
		}
	}
	if got["sent_pkts"] == 0 || got["rcvd_pkts"] == 0 || got["local_pkts"] == 0 || got["programs_connected"] != 2 {
		t.Errorf("counters %v", got)
	}
}

// Shared receive queues and address handles are listed, too, and a queue pair
// names its queue.
func TestListSRQsAndAHs(t *testing.T) {
	a := startAdapter(t, nil)
	r := rawHello(t, a)
	pd := r.pd()
	gid, _, _ := a.gid(0)
	srq := must[uapi.CreateSRQReply](r, uapi.OpCreateSRQ, &uapi.CreateSRQRequest{PD: pd, Attr: uapi.SRQAttr{MaxWR: 16, MaxSGE: 2, Limit: 3}})
	ah := must[uapi.HandleReply](r, uapi.OpCreateAH, &uapi.CreateAHRequest{PD: pd, Attr: qpstate.AHAttr{DGID: gid, IsGlobal: true, PortNum: 1}})
	gone := must[uapi.HandleReply](r, uapi.OpCreateAH, &uapi.CreateAHRequest{PD: pd, Attr: qpstate.AHAttr{DGID: gid, IsGlobal: true, PortNum: 1}})
	must[uapi.DestroyReply](r, uapi.OpDestroyAH, &uapi.HandleRequest{Handle: gone.Handle})
	m := rcRequest(pd, r.cq(4))
	m.SRQ = srq.Handle
	must[uapi.CreateQPReply](r, uapi.OpCreateQP, m)
	if got, _ := r.list(uapi.ResourceSRQ); len(got) != 1 || got[0].Number != srq.Handle || got[0].MaxWR != 16 || got[0].MaxSGE != 2 || got[0].Limit != 3 || got[0].Users != 1 {
		t.Errorf("shared receive queues %+v", got)
	}
	if got, _ := r.list(uapi.ResourceAH); len(got) != 1 || got[0].Number != ah.Handle || got[0].Peer != gid.String() || got[0].PD != pd {
		t.Errorf("address handles %+v", got)
	}
	if got, _ := r.list(uapi.ResourceQP); len(got) != 1 || got[0].SRQ != srq.Handle || got[0].State != "RESET" {
		t.Errorf("queue pairs %+v", got)
	}
}

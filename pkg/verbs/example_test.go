package verbs_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

// Two connected queue pairs: one writes into the other's memory, and its immediate
// data wakes the other end, which sleeps until a completion comes.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	here, there := newEnd("127.113.7.1"), newEnd("127.113.7.2")
	defer here.close()
	defer there.close()

	// The ends tell one another who they are: over TCP, say, when they are on two
	// hosts. Package rdmacm does that, too.
	check(here.qp.ConnectRC(there.self(), verbs.RCConfig{PSN: here.psn}))
	check(there.qp.ConnectRC(here.self(), verbs.RCConfig{PSN: there.psn}))

	// Immediate data takes a receive, here one without memory.
	must(there.qp.PostRecv(verbs.RecvWR{WRID: 7}))

	n := copy(here.mr.Bytes(), "hello, RDMA")
	must(here.qp.PostSend(verbs.SendWR{
		Opcode: verbs.WRRDMAWriteWithImm, Flags: verbs.SendSignaled, ImmData: 42,
		SGList: []verbs.SGE{here.mr.SGE(0, n)}, RemoteAddr: there.mr.Addr(), RKey: there.mr.RKey(),
	}))

	wc := there.wait(ctx)
	fmt.Printf("request %d: %v, immediate data %d: %q\n", wc.WRID, wc.Opcode, wc.ImmData, there.mr.Bytes()[:wc.ByteLen])
	fmt.Println("the writer:", here.wait(ctx).Status)
	// Output:
	// request 7: IBV_WC_RECV_RDMA_WITH_IMM, immediate data 42: "hello, RDMA"
	// the writer: IBV_WC_SUCCESS
}

// An end is an adapter and what a queue pair needs.
type end struct {
	adapter *adapter.Adapter
	dev     *verbs.Device
	events  *verbs.CompChannel
	cq      *verbs.CQ
	mr      *verbs.MR
	qp      *verbs.QP
	psn     verbs.PSN
}

func newEnd(addr string) *end {
	e := &end{psn: 1000} // better a random number
	e.adapter = must(adapter.Start(adapter.Config{Addrs: []netip.Addr{netip.MustParseAddr(addr)}}))
	e.dev = must(e.adapter.Open()) // on a host with a daemon: verbs.Open(nil)
	e.events = must(e.dev.CreateCompChannel())
	e.cq = must(e.dev.CreateCQ(16, e.events, 0))
	pd := must(e.dev.AllocPD())
	e.mr = must(pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
	e.qp = must(pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq,
		Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1},
	}))
	return e
}

// self is what the other end has to know.
func (e *end) self() verbs.RCPeer {
	return verbs.RCPeer{QPN: e.qp.Num(), PSN: e.psn, GID: must(e.dev.QueryGID(0))}
}

// wait sleeps until there is a completion: it looks, asks for an event, and looks
// once more before it sleeps, for what came in between.
func (e *end) wait(ctx context.Context) verbs.WC {
	var wc [1]verbs.WC
	for {
		if must(e.cq.Poll(wc[:])) == 1 {
			return wc[0]
		}
		check(e.cq.ReqNotify(false))
		if must(e.cq.Poll(wc[:])) == 1 {
			return wc[0]
		}
		must(e.events.Get(ctx)).AckEvents(1)
	}
}

func (e *end) close() {
	check(e.dev.Close()) // with all that it has
	check(e.adapter.Close())
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

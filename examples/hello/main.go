// Command hello is the shortest softroce program: two adapters in one process,
// an RDMA WRITE from one to the other, and the bytes compared. With a daemon,
// verbs.Open replaces adapter.Start and Open.
package main

import (
	"fmt"
	"log"
	"net/netip"

	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

// end is what a program holds of an adapter.
type end struct {
	cq *verbs.CQ
	mr *verbs.MR
	qp *verbs.QP
	id verbs.RCPeer
}

func open(addr string, psn verbs.PSN) end {
	a := must(adapter.Start(adapter.Config{Addrs: []netip.Addr{netip.MustParseAddr(addr)}}))
	dev := must(a.Open())
	pd := must(dev.AllocPD())
	cq := must(dev.CreateCQ(16, nil, 0))
	mr := must(pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
	qp := must(pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.RC, SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1},
	}))
	return end{cq, mr, qp, verbs.RCPeer{QPN: qp.Num(), PSN: psn, GID: must(dev.QueryGID(0))}}
}

func main() {
	a, b := open("127.0.0.1", 100), open("127.0.0.2", 200)
	check(a.qp.ConnectRC(b.id, verbs.RCConfig{PSN: a.id.PSN}))
	check(b.qp.ConnectRC(a.id, verbs.RCConfig{PSN: b.id.PSN}))

	n := copy(a.mr.Bytes(), "hello, RDMA")
	_, err := a.qp.PostSend(verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{a.mr.SGE(0, n)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	})
	check(err)
	var wc [1]verbs.WC
	for must(a.cq.Poll(wc[:])) == 0 {
	}
	fmt.Printf("%v: %q arrived at %v\n", wc[0].Status, b.mr.Bytes()[:n], b.id.GID.Addr())
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

// Command hello writes into another adapter's memory.
package main

import (
	"fmt"
	"log"
	"net/netip"

	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

func main() {
	devA, devB := open("127.0.0.1"), open("127.0.0.2") // on a host with a daemon: verbs.Open(nil)
	cqA, mrA, qpA := build(devA)
	_, mrB, qpB := build(devB)
	peerA := verbs.RCPeer{QPN: qpA.Num(), PSN: 100, GID: must(devA.QueryGID(0))}
	peerB := verbs.RCPeer{QPN: qpB.Num(), PSN: 200, GID: must(devB.QueryGID(0))}
	check(qpA.ConnectRC(peerB, verbs.RCConfig{PSN: peerA.PSN}))
	check(qpB.ConnectRC(peerA, verbs.RCConfig{PSN: peerB.PSN}))

	n := copy(mrA.Bytes(), "hello, RDMA")
	must(qpA.PostSend(verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{mrA.SGE(0, n)}, RemoteAddr: mrB.Addr(), RKey: mrB.RKey(),
	}))
	var wc [1]verbs.WC
	for must(cqA.Poll(wc[:])) == 0 {
	}
	fmt.Printf("%v: %q is in the memory of %v\n", wc[0].Status, mrB.Bytes()[:n], peerB.GID.Addr())
}

func open(addr string) *verbs.Device {
	return must(must(adapter.Start(adapter.Config{Addrs: []netip.Addr{netip.MustParseAddr(addr)}})).Open())
}

func build(dev *verbs.Device) (*verbs.CQ, *verbs.MR, *verbs.QP) {
	pd, cq := must(dev.AllocPD()), must(dev.CreateCQ(16, nil, 0))
	mr := must(pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
	limits := verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}
	return cq, mr, must(pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, Cap: limits}))
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

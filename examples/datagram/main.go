// Command datagram asks by an unreliable datagram and is answered by another:
// the answer goes where the header in front of the question says.
package main

import (
	"fmt"
	"log"
	"net/netip"

	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

// qkey is what both ends agree on; datagrams with another are dropped.
const qkey verbs.QKey = 0x1ee7

// An end is a UD queue pair that is ready, and memory.
type end struct {
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	mr  *verbs.MR
	qp  *verbs.QP
}

func main() {
	a, b := open("127.0.0.1"), open("127.0.0.2") // on a host with a daemon: verbs.Open(nil)
	// Of a datagram's receive buffer the first 40 bytes are for the header.
	for _, e := range []*end{a, b} {
		must(e.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{e.mr.SGE(2048, verbs.GRHSize+1024)}}))
	}
	toB := must(a.pd.CreateAH(&verbs.AHAttr{DGID: must(b.dev.QueryGID(0)), IsGlobal: true, PortNum: 1}))
	a.send(toB, b.qp.Num(), "who is there?")

	wc, question := b.receive()
	fmt.Printf("queue pair %v asks %q\n", wc.SrcQP, question)
	back := must(b.pd.CreateAHFromWC(1, &wc, b.mr.Bytes()[2048:]))
	b.send(back, wc.SrcQP, "softroce")

	_, answer := a.receive()
	fmt.Printf("the answer is %q\n", answer)
}

func (e *end) send(to *verbs.AH, qpn verbs.QPN, text string) {
	n := copy(e.mr.Bytes(), text)
	must(e.qp.PostSend(verbs.SendWR{
		Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e.mr.SGE(0, n)},
		AH: to.Handle(), RemoteQPN: qpn, RemoteQKey: qkey,
	}))
}

// receive waits for a datagram; the completion of the own one may come before.
func (e *end) receive() (verbs.WC, string) {
	for {
		var wc [1]verbs.WC
		if must(e.cq.Poll(wc[:])) == 0 {
			continue
		}
		if wc[0].Status != verbs.WCSuccess {
			log.Fatal(wc[0].Status.Explain())
		}
		if wc[0].Opcode == verbs.WCRecv {
			return wc[0], string(e.mr.Bytes()[2048:][verbs.GRHSize:wc[0].ByteLen])
		}
	}
}

func open(addr string) *end {
	dev := must(must(adapter.Start(adapter.Config{Addrs: []netip.Addr{netip.MustParseAddr(addr)}})).Open())
	e := &end{dev: dev, pd: must(dev.AllocPD()), cq: must(dev.CreateCQ(16, nil, 0))}
	e.mr = must(e.pd.AllocMR(4096, verbs.AccessLocalWrite))
	limits := verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}
	e.qp = must(e.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.UD, SendCQ: e.cq, RecvCQ: e.cq, Cap: limits}))
	check(e.qp.ReadyUD(qkey, 1))
	return e
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

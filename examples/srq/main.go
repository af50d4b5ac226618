// Command srq serves several connections from one shared receive queue, and
// posts more receives when the queue says that it runs low.
package main

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

const (
	clients  = 3
	messages = 10 // of each
	batch    = 8  // receives that are posted at a time
	low      = 4  // fewer than these raise the event
	size     = 64 // bytes of a receive
)

func main() {
	server, client := open("127.0.0.1"), open("127.0.0.2") // on a host with a daemon: verbs.Open(nil)
	spd, scq := must(server.AllocPD()), must(server.CreateCQ(64, nil, 0))
	mr := must(spd.AllocMR(64*size, verbs.AccessLocalWrite))
	srq := must(spd.CreateSRQ(verbs.SRQAttr{MaxWR: 64, MaxSGE: 1}))
	post(srq, mr, 0)
	check(srq.Modify(verbs.SRQAttr{Limit: low}, verbs.SRQLimitMask))
	go refill(server, srq, mr)

	cpd, ccq := must(client.AllocPD()), must(client.CreateCQ(64, nil, 0))
	for i := range clients {
		ours := must(spd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: scq, RecvCQ: scq, SRQ: srq, Cap: verbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1}}))
		theirs := must(cpd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: ccq, RecvCQ: ccq, Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: size}}))
		check(ours.ConnectRC(verbs.RCPeer{QPN: theirs.Num(), GID: must(client.QueryGID(0))}, verbs.RCConfig{}))
		check(theirs.ConnectRC(verbs.RCPeer{QPN: ours.Num(), GID: must(server.QueryGID(0))}, verbs.RCConfig{}))
		for n := range messages {
			must(theirs.PostSend(verbs.SendWR{
				Opcode: verbs.WRSend, Flags: verbs.SendSignaled | verbs.SendInline, Inline: fmt.Appendf(nil, "client %d, message %d", i, n),
			}))
		}
	}
	for n := 0; n < clients*messages; {
		var wcs [16]verbs.WC
		for _, wc := range wcs[:must(scq.Poll(wcs[:]))] {
			if wc.Status != verbs.WCSuccess {
				log.Fatal(wc.Status.Explain())
			}
			fmt.Printf("queue pair %v, receive %2d: %s\n", wc.QPN, wc.WRID, mr.Bytes()[wc.WRID%64*size:][:wc.ByteLen])
			n++
		}
	}
}

// refill arms the limit again and posts a batch, each time that it was reached.
func refill(dev *verbs.Device, srq *verbs.SRQ, mr *verbs.MR) {
	for next := uint64(batch); ; next += batch {
		ev := must(dev.AsyncEvent(context.Background()))
		if ev.Type != verbs.EventSRQLimitReached {
			log.Fatal(ev.Type)
		}
		ev.Ack()
		// First the limit: an empty queue that is armed afterwards raises nothing.
		check(srq.Modify(verbs.SRQAttr{Limit: low}, verbs.SRQLimitMask))
		post(srq, mr, next)
	}
}

// post posts a batch of receives, numbered from first on.
func post(srq *verbs.SRQ, mr *verbs.MR, first uint64) {
	for i := first; i < first+batch; i++ {
		must(srq.PostRecv(verbs.RecvWR{WRID: i, SGList: []verbs.SGE{mr.SGE(int(i%64)*size, size)}}))
	}
}

func open(addr string) *verbs.Device {
	return must(must(adapter.Start(adapter.Config{Addrs: []netip.Addr{netip.MustParseAddr(addr)}})).Open())
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

package rdmacm_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/rdmacm"
	"github.com/softroce/softroce/pkg/verbs"
)

// A server that takes one connection and one message, and its client.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	here, there := openExample("127.113.6.1"), openExample("127.113.6.2") // on a host with a daemon: verbs.Open(nil)

	l, err := rdmacm.Listen(there, netip.MustParseAddrPort("127.113.6.2:7471"), nil)
	must(err)
	served := make(chan string)
	go func() {
		end := newEnd(there)
		// The receive is posted before the client can send.
		conn, err := l.Accept(ctx, end.config(func(id *rdmacm.ID) error {
			_, err := id.QP().PostRecv(verbs.RecvWR{SGList: []verbs.SGE{end.mr.SGE(0, 64)}})
			return err
		}))
		must(err)
		wc := end.wait(ctx)
		served <- fmt.Sprintf("the message is %q", end.mr.Bytes()[:wc.ByteLen])
		<-conn.Done()
		must(conn.Close())
		served <- "the client has gone"
	}()

	end := newEnd(here)
	conn, err := rdmacm.Dial(ctx, here, l.Addr(), end.config(nil))
	must(err)
	n := copy(end.mr.Bytes(), "hello by address")
	_, err = conn.QP().PostSend(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{end.mr.SGE(0, n)}})
	must(err)
	end.wait(ctx)
	fmt.Println(<-served)
	must(conn.Close())
	fmt.Println(<-served)
	must(l.Close())
	// Output:
	// the message is "hello by address"
	// the client has gone
}

// An end is what a queue pair needs.
type end struct {
	pd *verbs.PD
	cq *verbs.CQ
	mr *verbs.MR
}

func newEnd(dev *verbs.Device) *end {
	pd, err := dev.AllocPD()
	must(err)
	cq, err := dev.CreateCQ(16, nil, 0)
	must(err)
	mr, err := pd.AllocMR(64, verbs.AccessLocalWrite)
	must(err)
	return &end{pd, cq, mr}
}

func (e *end) config(prepare func(*rdmacm.ID) error) *rdmacm.Config {
	return &rdmacm.Config{PD: e.pd, Prepare: prepare, QP: verbs.QPInitAttr{
		SendCQ: e.cq, RecvCQ: e.cq, Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1},
	}}
}

// wait waits for a completion.
func (e *end) wait(ctx context.Context) verbs.WC {
	for {
		var wc [1]verbs.WC
		n, err := e.cq.Poll(wc[:])
		must(err)
		if n == 1 && wc[0].Status == verbs.WCSuccess {
			return wc[0]
		}
		must(ctx.Err())
	}
}

func openExample(addr string) *verbs.Device {
	a, err := adapter.Start(adapter.Config{Addrs: []netip.Addr{netip.MustParseAddr(addr)}})
	must(err)
	dev, err := a.Open()
	must(err)
	return dev
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// Command reconnect shows a program that outlives its adapter. It counts in
// its own memory with RDMA atomics over a queue pair connected to itself;
// when the daemon dies it learns so at once, waits for the next daemon, makes
// everything anew and goes on. It prints "counting" when it counts, and
// "lost: ..." when the adapter went.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log"
	"os/signal"
	"syscall"
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

func main() {
	socket := flag.String("socket", "", "the daemon's socket")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	for ctx.Err() == nil {
		err := run(ctx, *socket)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, verbs.ErrDeviceDead):
			fmt.Println("lost:", err)
		case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
			pause(ctx, 50*time.Millisecond) // no daemon yet
		default:
			log.Fatal(err)
		}
	}
}

// pause waits a little, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// run works with one adapter until it goes or ctx ends.
func run(ctx context.Context, socket string) error {
	dev, err := verbs.Open(&verbs.Options{Socket: socket})
	if err != nil {
		return err
	}
	defer dev.Close()
	cq, mr, qp, err := build(dev)
	if err != nil {
		return err
	}
	fmt.Println("counting")
	for ctx.Err() == nil {
		if err := add(dev, cq, mr, qp); err != nil {
			return err
		}
		pause(ctx, 10*time.Millisecond)
	}
	fmt.Println("count:", binary.NativeEndian.Uint64(mr.Bytes()))
	return nil
}

func build(dev *verbs.Device) (cq *verbs.CQ, mr *verbs.MR, qp *verbs.QP, err error) {
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, nil, nil, err
	}
	if cq, err = dev.CreateCQ(16, nil, 0); err != nil {
		return nil, nil, nil, err
	}
	if mr, err = pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteAtomic); err != nil {
		return nil, nil, nil, err
	}
	qp, err = pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.RC, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return nil, nil, nil, err
	}
	gid, err := dev.QueryGID(0)
	if err != nil {
		return nil, nil, nil, err
	}
	err = qp.ConnectRC(verbs.RCPeer{QPN: qp.Num(), PSN: 1, GID: gid}, verbs.RCConfig{PSN: 1})
	return cq, mr, qp, err
}

// add adds one and waits for the completion. A completion that was flushed
// because the adapter went is that, not a failure of its own.
func add(dev *verbs.Device, cq *verbs.CQ, mr *verbs.MR, qp *verbs.QP) error {
	_, err := qp.PostSend(verbs.SendWR{
		Opcode: verbs.WRAtomicFetchAdd, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(8, 8)},
		RemoteAddr: mr.Addr(), RKey: mr.RKey(), CompareAdd: 1,
	})
	if err != nil {
		return err
	}
	var wc [1]verbs.WC
	for {
		n, err := cq.Poll(wc[:])
		if err != nil {
			return err
		}
		if n == 0 {
			continue
		}
		if wc[0].Status == verbs.WCSuccess {
			return nil
		}
		select {
		case <-dev.Done():
			return verbs.ErrDeviceDead
		default:
			return fmt.Errorf("fetch and add: %v: %s", wc[0].Status, wc[0].Status.Explain())
		}
	}
}

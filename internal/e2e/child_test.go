package e2e

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/softroce/softroce/pkg/verbs"
)

// child is a client program: it says what it does on standard output.
func child(mode string) int {
	debug.SetGCPercent(400)
	var err error
	switch mode {
	case "writer":
		err = writer(os.Args[1], os.Args[2])
	case "read-stream":
		err = readStream(os.Args[1], os.Args[2], os.Args[3], os.Args[4])
	case "write-stream":
		err = writeStream(os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5])
	default:
		err = fmt.Errorf("no such mode: %q", mode)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "client program:", err)
		return 1
	}
	return 0
}

const (
	writeSize = 1 << 20
	writeRing = 8 // 1 MiB writes in flight, always
)

// end is one queue pair with its region and queue.
type end struct {
	cq *verbs.CQ
	mr *verbs.MR
	qp *verbs.QP
	id verbs.RCPeer
}

func openEnd(socket string, psn verbs.PSN) (*end, error) {
	dev, err := verbs.Open(&verbs.Options{Socket: socket})
	if err != nil {
		return nil, err
	}
	return endOf(dev, psn)
}

func endOf(dev *verbs.Device, psn verbs.PSN) (*end, error) {
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, err
	}
	e := &end{}
	if e.cq, err = dev.CreateCQ(64, nil, 0); err != nil {
		return nil, err
	}
	if e.mr, err = pd.AllocMR(writeSize*writeRing, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead); err != nil {
		return nil, err
	}
	e.qp, err = pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq, Cap: verbs.QPCap{MaxSendWR: 32, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return nil, err
	}
	gid, err := dev.QueryGID(0)
	e.id = verbs.RCPeer{QPN: e.qp.Num(), PSN: psn, GID: gid}
	return e, err
}

// writer keeps writeRing writes of 1 MiB in flight between two daemons until
// it is killed. It says "ready" when the first have completed: from then on at
// least 1 MiB is unacknowledged at any moment.
func writer(from, to string) error {
	a, err := openEnd(from, 1)
	if err != nil {
		return err
	}
	b, err := openEnd(to, 2)
	if err != nil {
		return err
	}
	if err := a.qp.ConnectRC(b.id, verbs.RCConfig{PSN: a.id.PSN}); err != nil {
		return err
	}
	if err := b.qp.ConnectRC(a.id, verbs.RCConfig{PSN: b.id.PSN}); err != nil {
		return err
	}
	var wcs [writeRing]verbs.WC
	free := writeRing
	for i, done := 0, 0; ; {
		for ; free > 0; i, free = i+1, free-1 {
			off := i % writeRing * writeSize
			_, err := a.qp.PostSend(verbs.SendWR{
				WRID: uint64(i), Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled,
				SGList: []verbs.SGE{a.mr.SGE(off, writeSize)}, RemoteAddr: b.mr.Addr() + uint64(off), RKey: b.mr.RKey(),
			})
			if err != nil {
				return err
			}
		}
		n, err := a.cq.Poll(wcs[:])
		if err != nil {
			return err
		}
		for j := range wcs[:n] {
			if wcs[j].Status != verbs.WCSuccess {
				return fmt.Errorf("write %d: %v", wcs[j].WRID, wcs[j].Status)
			}
		}
		free += n
		if done == 0 && n > 0 {
			fmt.Println("ready")
		}
		done += n
	}
}

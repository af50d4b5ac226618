package nic

import (
	"bytes"
	"testing"

	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/verbs"
)

// Unreliable connections between two adapters and within one: SEND and WRITE of
// one packet and of many, with immediate.
func TestUC(t *testing.T) {
	for _, same := range []bool{false, true} {
		name := "two adapters"
		if same {
			name = "one adapter"
		}
		t.Run(name, func(t *testing.T) {
			a, b := twoAdapters(t, same)
			uc := func(init *verbs.QPInitAttr) { init.Type = verbs.UC }
			const room = 1 << 17
			x, y := newQPOf(t, openDevice(t, a), room, uc), newQPOf(t, openDevice(t, b), room, uc)
			for _, side := range []struct{ own, peer *endpoint }{{x, y}, {y, x}} {
				err := side.own.qp.ConnectUC(verbs.RCPeer{QPN: side.peer.qp.Num(), PSN: 9, GID: side.peer.gid(t)}, verbs.RCConfig{PSN: 9})
				if err != nil {
					t.Fatal(err)
				}
			}
			for i, n := range []int{0, 1, 4096, 4097, 60000} {
				for k := range n {
					x.mr.Bytes()[k] = byte(k*3 + i)
				}
				for _, op := range []verbs.WROpcode{verbs.WRSend, verbs.WRSendWithImm, verbs.WRRDMAWriteWithImm} {
					clear(y.mr.Bytes())
					y.postRecv(t, uint64(op), 0, n)
					x.post(t, verbs.SendWR{
						Opcode: op, Flags: verbs.SendSignaled, SGList: x.sge(0, n), ImmData: 5, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey(),
					})
					wc, err := completion(within(t), x.cq)
					if err != nil || wc.Status != cq.Success {
						t.Fatalf("%v of %d bytes: %+v, %v", op, n, wc, err)
					}
					wc, err = completion(within(t), y.cq)
					if err != nil || wc.Status != cq.Success || wc.WRID != uint64(op) || wc.ByteLen != uint32(n) {
						t.Fatalf("%v of %d bytes: %+v, %v", op, n, wc, err)
					}
					if !bytes.Equal(x.mr.Bytes()[:n], y.mr.Bytes()[:n]) {
						t.Errorf("%v of %d bytes: they differ", op, n)
					}
				}
			}
		})
	}
}

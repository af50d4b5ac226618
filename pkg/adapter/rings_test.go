package adapter_test

import (
	"testing"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

// The two rings of a queue pair may lie in different pieces of shared memory:
// where the send queue takes the end of one, the receive queue begins the next.
func TestRingsInSeveralSegments(t *testing.T) {
	a, err := adapter.Start(adapter.Config{Addrs: testaddr.Take(t, 1), Workers: 1})
	must(t, err)
	t.Cleanup(func() { must(t, a.Close()) })
	dev, err := a.Open()
	must(t, err)
	t.Cleanup(func() { must(t, dev.Close()) })
	pd, err := dev.AllocPD()
	must(t, err)
	cq, err := dev.CreateCQ(16, nil, 0)
	must(t, err)
	for i := range 96 {
		qp, err := pd.CreateQP(&verbs.QPInitAttr{
			Type: verbs.RC, SendCQ: cq, RecvCQ: cq,
			Cap: verbs.QPCap{MaxSendWR: uint32(64 + 61*i), MaxRecvWR: uint32(1 + 89*i), MaxSendSGE: 2, MaxRecvSGE: 1},
		})
		if err != nil {
			t.Fatalf("queue pair %d: %v", i, err)
		}
		must(t, qp.ToInit(allAccess))
		if _, err := qp.PostRecv(verbs.RecvWR{WRID: uint64(i)}); err != nil {
			t.Fatalf("queue pair %d: %v", i, err)
		}
	}
}

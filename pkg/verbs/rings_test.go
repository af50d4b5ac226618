package verbs

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/uapi"
)

// A segment's descriptor comes with one answer, and the next answer may name the
// segment. So nobody asks for another ring before the segment is mapped: of many
// goroutines that made queues at once, one was told that there is no memory.
func TestRingsAreMappedInTurn(t *testing.T) {
	f, d := newFake(t)
	pd, err := d.AllocPD()
	check(t, err)
	cq, err := d.CreateCQ(4, nil, 0)
	check(t, err)
	srq, err := pd.CreateSRQ(SRQAttr{MaxWR: 2, MaxSGE: 1})
	check(t, err)
	f.answer(uapi.OpResizeCQ, func([]byte, []int) (uapi.Body, []int, unix.Errno) {
		ref := uapi.RingRef{Slots: 8}
		_, fd := f.ring(&ref, uapi.CQRingSize(8))
		return &uapi.CreateCQReply{CQE: 8, Ring: ref}, []int{fd}, 0
	})
	f.answer(uapi.OpModifySRQ, func([]byte, []int) (uapi.Body, []int, unix.Errno) {
		ref := uapi.RingRef{Slots: 4, MaxSGE: 1}
		_, fd := f.ring(&ref, uapi.RQRingSize(4, 1))
		return &uapi.ModifySRQReply{Attr: SRQAttr{MaxWR: 4, MaxSGE: 1}, Ring: ref}, []int{fd}, 0
	})
	for op, create := range map[uapi.Op]func() error{
		uapi.OpCreateCQ: func() error { _, err := d.CreateCQ(4, nil, 0); return err },
		uapi.OpResizeCQ: func() error { return cq.Resize(8) },
		uapi.OpCreateQP: func() error {
			_, err := pd.CreateQP(&QPInitAttr{Type: RC, SendCQ: cq, RecvCQ: cq, Cap: QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
			return err
		},
		uapi.OpCreateSRQ: func() error { _, err := pd.CreateSRQ(SRQAttr{MaxWR: 2, MaxSGE: 1}); return err },
		uapi.OpModifySRQ: func() error { return srq.Modify(SRQAttr{MaxWR: 4}, SRQMaxWRMask) },
	} {
		asked := make(chan struct{})
		answer := f.on[op]
		f.answer(op, func(body []byte, fds []int) (uapi.Body, []int, unix.Errno) {
			close(asked)
			return answer(body, fds)
		})
		d.mu.Lock() // nothing is mapped
		done := make(chan error)
		go func() { done <- create() }()
		<-asked
		d.ctl.mu.Lock() // the answer is there
		if d.ringMu.TryLock() {
			t.Errorf("%v: another ring can be asked for before the memory is mapped", op)
			d.ringMu.Unlock()
		}
		d.ctl.mu.Unlock()
		d.mu.Unlock()
		check(t, <-done)
	}
}

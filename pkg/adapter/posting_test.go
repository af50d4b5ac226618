package adapter_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/verbs"
)

// A bad request is refused when it is posted: EINVAL says what is wrong, the
// ones before it are taken, and the queue pair is none the worse.
func TestPostSendRefusals(t *testing.T) {
	a, b := pair(t, shape{}, verbs.RCConfig{}, nil)
	nine := make([]verbs.SGE, 9)
	for i := range nine {
		nine[i] = a.mr.SGE(i, 1)
	}
	good := a.write(b, 0, 0, 8)
	good.WRID = 1
	for _, c := range []struct {
		name  string
		spoil func(wr *verbs.SendWR)
		words []string
	}{
		{"an operation that is none", func(wr *verbs.SendWR) { wr.Opcode = 77 }, []string{"77"}},
		{"too many elements", func(wr *verbs.SendWR) { wr.SGList = nine }, []string{"9", "8"}},
		{"inline too long", func(wr *verbs.SendWR) {
			wr.Flags |= verbs.SendInline
			wr.SGList, wr.Inline = nil, make([]byte, 129)
		}, []string{"129", "128"}},
		{"inline elements too long", func(wr *verbs.SendWR) {
			wr.Flags |= verbs.SendInline
			wr.SGList = []verbs.SGE{a.mr.SGE(0, 100), a.mr.SGE(0, 100)}
		}, []string{"128"}},
		{"inline from no region", func(wr *verbs.SendWR) {
			wr.Flags |= verbs.SendInline
			wr.SGList = []verbs.SGE{{Addr: a.mr.Addr(), Length: 8, LKey: a.mr.LKey() + 1}}
		}, []string{"region"}},
		{"inline READ", func(wr *verbs.SendWR) {
			wr.Opcode = verbs.WRRDMARead
			wr.Flags |= verbs.SendInline
		}, []string{"RDMA_READ"}},
		{"an unknown flag", func(wr *verbs.SendWR) { wr.Flags |= 1 << 20 }, []string{"0x100000"}},
		{"an atomic of 4 bytes", func(wr *verbs.SendWR) {
			wr.Opcode, wr.SGList = verbs.WRAtomicFetchAdd, []verbs.SGE{a.mr.SGE(0, 4)}
		}, []string{"8-byte"}},
		{"an atomic to an odd address", func(wr *verbs.SendWR) { wr.Opcode, wr.RemoteAddr = verbs.WRAtomicFetchAdd, 0x1001 }, []string{"aligned"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bad := good
			bad.WRID = 2
			c.spoil(&bad)
			first := good
			first.Flags = verbs.SendSignaled
			n, err := a.qp.PostSend(first, bad, first)
			if n != 1 || !errors.Is(err, unix.EINVAL) {
				t.Errorf("%d queued, %v; want 1 and EINVAL", n, err)
			}
			wantWords(t, err, append([]string{"post send"}, c.words...)...)
			a.status(1, verbs.WCSuccess)
			a.none()
		})
	}
	_, err := a.qp.PostRecv(verbs.RecvWR{SGList: nine})
	if !errors.Is(err, unix.EINVAL) {
		t.Errorf("a receive of 9 elements: %v, want EINVAL", err)
	}
	if w := a.host.workers(); w.Stats.BadSlots != 0 {
		t.Errorf("the adapter met %d bad slots", w.Stats.BadSlots)
	}
	alive(a, b)
}

// States that do not take requests refuse them with EINVAL.
func TestPostInWrongState(t *testing.T) {
	h := start(t, nil)
	a, b := h.open(t, shape{}), h.open(t, shape{})
	send, recv := a.write(b, 0, 0, 8), verbs.RecvWR{}
	refused := func(when string, call func() (int, error)) {
		t.Helper()
		if n, err := call(); n != 0 || !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s: %d queued, %v; want EINVAL", when, n, err)
		}
	}
	refused("a send in RESET", func() (int, error) { return a.qp.PostSend(send) })
	refused("a receive in RESET", func() (int, error) { return a.qp.PostRecv(recv) })
	must(t, a.qp.ToInit(allAccess))
	refused("a send in INIT", func() (int, error) { return a.qp.PostSend(send) })
	a.recv(1, 0, 8)
	connect(a, b, verbs.RCConfig{})
	alive(a, b)
	must(t, a.qp.Destroy())
	refused("a send to a destroyed queue pair", func() (int, error) { return a.qp.PostSend(send) })
	refused("a receive to a destroyed queue pair", func() (int, error) { return a.qp.PostRecv(recv) })
	// A receive outlived nothing: no completion of it.
	a.none()
}

// ENOMEM when a queue is full, until completions were polled. An unsignaled
// request is free when a later completion was.
func TestFullQueuesAndUnsignaledBatches(t *testing.T) {
	a, b := pair(t, shape{wr: 8}, verbs.RCConfig{}, nil)
	capacity := int(a.qp.Cap().MaxSendWR)
	full := func(post func() (int, error)) {
		t.Helper()
		if n, err := post(); n != 0 || !errors.Is(err, unix.ENOMEM) {
			t.Errorf("%d posted to a full queue, %v; want ENOMEM", n, err)
		}
	}
	wr := a.write(b, 0, 0, 8)
	for round := range uint64(50) {
		batch := make([]verbs.SendWR, capacity)
		for i := range batch {
			batch[i] = wr
			batch[i].WRID = round*100 + uint64(i)
		}
		last := &batch[capacity-1]
		last.Flags = verbs.SendSignaled
		if round%3 == 1 { // a signaled one in the middle, too
			batch[2].Flags = verbs.SendSignaled
		}
		a.post(batch...)
		full(func() (int, error) { return a.qp.PostSend(wr) })
		if round%3 == 1 {
			a.status(batch[2].WRID, verbs.WCSuccess)
			// Three are free: two unsignaled ones and their signaled one.
			three := []verbs.SendWR{wr, wr, wr, wr}
			three[2].WRID, three[2].Flags = 9999, verbs.SendSignaled
			if n, err := a.qp.PostSend(three...); n != 3 || !errors.Is(err, unix.ENOMEM) {
				t.Fatalf("round %d: %d posted, %v; want 3 and ENOMEM", round, n, err)
			}
			a.status(last.WRID, verbs.WCSuccess)
			a.status(9999, verbs.WCSuccess)
			continue
		}
		a.status(last.WRID, verbs.WCSuccess)
	}
	a.none()
	for i := range uint64(capacity) {
		b.recv(i, 0, 8)
	}
	full(func() (int, error) { return b.qp.PostRecv(verbs.RecvWR{}) })
	send := verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(0, 8)}}
	a.do(send)
	full(func() (int, error) { return b.qp.PostRecv(verbs.RecvWR{}) }) // not polled yet
	b.status(0, verbs.WCSuccess)
	b.recv(50, 0, 8)
	// Equal marks everywhere: the order alone says what is free.
	for range 20 {
		for range 3 {
			a.post(wr)
		}
		a.do(wr)
	}
}

// A queue pair that is taken to RESET and used again: nothing of its former
// life is executed, completed or counted, also when completions of that life
// are polled in the new one.
func TestResetAndReuse(t *testing.T) {
	a, b := pair(t, shape{wr: 8}, verbs.RCConfig{}, nil)
	for life := range uint64(6) {
		a.psn, b.psn = a.psn.Add(1000), b.psn.Add(77)
		if life > 0 {
			connect(a, b, verbs.RCConfig{})
		}
		// One success and one failure; what was posted behind it flushes.
		b.recv(life, 0, 8)
		a.do(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(0, 8)}})
		b.status(life, verbs.WCSuccess)
		for range 3 {
			a.recv(666, 0, 8)
		}
		bad := a.write(b, 0, 0, 8)
		bad.RKey++
		bad.Flags, bad.WRID = verbs.SendSignaled, 667
		a.post(bad, bad, bad)
		if life%2 == 0 {
			a.status(667, verbs.WCRemAccessErr)
		} else {
			eventually(t, "the queue pair is in ERR", func() bool { q, err := a.qp.Query(); return err == nil && q.State == verbs.StateErr })
		}
		for _, p := range []*program{a, b} {
			must(t, p.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
			if q, err := p.qp.Query(); err != nil || q.State != verbs.StateReset {
				t.Fatalf("state %v, %v; want RESET", q.State, err)
			}
		}
		// No send is taken in INIT, whatever was polled before.
		must(t, a.qp.ToInit(allAccess))
		drain(t, a.cq)
		if n, err := a.qp.PostSend(bad); n != 0 || !errors.Is(err, unix.EINVAL) {
			t.Fatalf("life %d: a send in INIT: %d posted, %v; want EINVAL", life, n, err)
		}
		// All of the queue is there again.
		for i := range uint64(8) {
			a.recv(i, 0, 8)
		}
		if _, err := a.qp.PostRecv(verbs.RecvWR{}); !errors.Is(err, unix.ENOMEM) {
			t.Fatalf("life %d: a ninth receive: %v, want ENOMEM", life, err)
		}
		must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
		drain(t, b.cq)
		if n := a.host.workers().Stats.BadSlots; n != 0 {
			t.Fatalf("life %d: the adapter met %d bad slots", life, n)
		}
	}
}

// drain polls a queue until it is empty.
func drain(t *testing.T, cq *verbs.CQ) {
	t.Helper()
	var wcs [16]verbs.WC
	for {
		n, err := cq.Poll(wcs[:])
		must(t, err)
		if n == 0 {
			return
		}
	}
}

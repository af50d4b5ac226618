package adapter_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/verbs"
)

// wantErrno checks an error's errno; 0 is success.
func wantErrno(t testing.TB, what string, err error, errno unix.Errno) {
	t.Helper()
	if errno == 0 && err != nil || errno != 0 && !errors.Is(err, errno) {
		t.Errorf("%s: %v, want errno %d (%v)", what, err, int(errno), errno)
	}
}

// ibv_resize_cq(3): what waits stays in order, too few entries for it are EINVAL
// and change nothing, and work goes on while the queue is resized.
func TestResizeCQ(t *testing.T) {
	a, b := pair(t, shape{cqe: 16, wr: 64}, verbs.RCConfig{}, nil)
	for i := range uint64(12) {
		a.recv(i, 0, 64)
	}
	for range 12 {
		// Acknowledged: the receive's completion is there.
		b.do(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{b.mr.SGE(0, 64)}})
	}
	wantErrno(t, "12 completions into 4 entries", a.cq.Resize(4), unix.EINVAL)
	for _, cqe := range []int{0, -1, 1 << 31} {
		wantErrno(t, "an impossible size", a.cq.Resize(cqe), unix.EINVAL)
	}
	must(t, a.cq.Resize(200))
	if a.cq.Cap() < 200 {
		t.Errorf("%d entries after a resize to 200", a.cq.Cap())
	}
	for i := range uint64(12) {
		a.status(i, verbs.WCSuccess)
	}
	const total, window = 2000, 16
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for cqe := 64; ; cqe ^= 64 ^ 128 {
			select {
			case <-stop:
				return
			default:
			}
			if err := a.cq.Resize(cqe); err != nil {
				t.Errorf("resize to %d: %v", cqe, err)
				return
			}
		}
	})
	wr := a.write(b, 0, 0, 8)
	wr.Flags = verbs.SendSignaled
	for posted, done := uint64(0), uint64(0); done < total; done++ {
		for ; posted < total && posted < done+window; posted++ {
			wr.WRID = posted
			a.post(wr)
		}
		a.status(done, verbs.WCSuccess)
	}
	close(stop)
	wg.Wait()
	a.none()
	alive(a, b)
}

// Events survive a resize: armed before, read before, read after.
func TestResizeCQWithEvents(t *testing.T) {
	a, b := pair(t, shape{cqe: 16, events: true}, verbs.RCConfig{}, nil)
	event := func() {
		t.Helper()
		cq, err := a.ch.Get(within(t))
		must(t, err)
		if cq != a.cq {
			t.Error("an event of another queue")
		}
		cq.AckEvents(1)
	}
	for round := range 3 {
		must(t, a.cq.ReqNotify(false))
		if round == 0 {
			must(t, a.cq.Resize(32))
		}
		a.do(a.write(b, 0, 0, 8))
		if round == 1 {
			must(t, a.cq.Resize(64)) // with an event unread
		}
		event()
	}
	must(t, a.qp.Destroy())
	must(t, a.cq.Destroy())
}

// ibv_create_cq_ex(3): fields, and timestamps of the host's own clock.
func TestExtendedPolling(t *testing.T) {
	h := start(t, nil)
	a, b := h.open(t, shape{}), start(t, nil).open(t, shape{})
	dev, err := a.dev.Query()
	must(t, err)
	if dev.CompletionTimestampMask == 0 || dev.HCACoreClock != 1_000_000 {
		t.Fatalf("timestamp mask %#x, clock %d kHz", dev.CompletionTimestampMask, dev.HCACoreClock)
	}
	const fields = verbs.WCExWithByteLen | verbs.WCExWithImm | verbs.WCExWithQPNum |
		verbs.WCExWithCompletionTimestamp | verbs.WCExWithCompletionTimestampWallclock
	cq, err := a.dev.CreateCQEx(&verbs.CQInitAttrEx{CQE: 32, WCFlags: fields})
	must(t, err)
	a.cq = cq
	a.qp = a.newQP(8, false)
	connect(a, b, verbs.RCConfig{})
	for i := range uint64(4) {
		a.recv(i, 0, 64)
	}
	before := monotonic(t)
	for i := range uint32(4) {
		b.do(verbs.SendWR{Opcode: verbs.WRSendWithImm, ImmData: i, SGList: []verbs.SGE{b.mr.SGE(0, int(i)+1)}})
	}
	must(t, cq.StartPoll())
	last := before
	for i := range uint64(4) {
		if i > 0 {
			must(t, cq.NextPoll())
		}
		ts := cq.ReadCompletionTS()
		if cq.ReadWRID() != i || cq.ReadStatus() != verbs.WCSuccess || cq.ReadOpcode() != verbs.WCRecv || cq.ReadImmData() != uint32(i) ||
			cq.ReadByteLen() != uint32(i)+1 || cq.ReadQPNum() != a.qp.Num() || cq.ReadWCFlags() != verbs.WCWithImm || cq.ReadSrcQP() != 0 {
			t.Errorf("receive %d: %d, %v, %v, imm %d, %d bytes", i, cq.ReadWRID(), cq.ReadStatus(), cq.ReadOpcode(), cq.ReadImmData(), cq.ReadByteLen())
		}
		if now := monotonic(t); ts < last || ts > now {
			t.Errorf("completion %d at %d, after %d and before %d is right", i, ts, last, now)
		}
		last = ts
		// The day is enough to tell the clock from another; nothing is measured.
		if wall := time.Unix(0, int64(cq.ReadCompletionWallclockNS())); time.Since(wall).Abs() > 24*time.Hour {
			t.Errorf("completion %d at %v", i, wall)
		}
	}
	wantErrno(t, "no more", cq.NextPoll(), unix.ENOENT)
	cq.EndPoll()
	wantErrno(t, "an empty queue", cq.StartPoll(), unix.ENOENT)
	alive(a, b) // by Poll
	_, err = a.dev.CreateCQEx(&verbs.CQInitAttrEx{CQE: 4, WCFlags: verbs.WCExWithFlowTag})
	wantErrno(t, "flow tags", err, unix.EOPNOTSUPP)
	_, err = a.dev.CreateCQEx(&verbs.CQInitAttrEx{CQE: 4, WCFlags: 1 << 40})
	wantErrno(t, "unknown fields", err, unix.EINVAL)
}

// monotonic is the clock of timestamps.
func monotonic(t testing.TB) uint64 {
	t.Helper()
	var ts unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts))
	return uint64(ts.Nano())
}

// Completion vectors spread queues; one that is not there is EINVAL.
func TestCompletionVectors(t *testing.T) {
	a := start(t, nil).open(t, shape{})
	n := a.dev.NumCompVectors()
	dev, err := a.dev.Query()
	must(t, err)
	if n < 1 || uint32(n) != dev.NumCompVectors {
		t.Errorf("%d completion vectors, the device says %d", n, dev.NumCompVectors)
	}
	for v := range n {
		cq, err := a.dev.CreateCQ(8, nil, v)
		must(t, err)
		a.cq = cq
		if qp := a.newQP(4, false); v > 0 && int(qp.Num()&7)%n != v {
			t.Errorf("queue pair %v of vector %d is on worker %d", qp.Num(), v, int(qp.Num()&7)%n)
		}
	}
	for _, v := range []int{-1, n, 1 << 20} {
		_, err = a.dev.CreateCQ(8, nil, v)
		wantErrno(t, "no such vector", err, unix.EINVAL)
	}
}

// A channel that several queues share gives each queue's events as that queue's,
// to a program that waits in its own epoll, too.
func TestChannelSharedByQueues(t *testing.T) {
	h := start(t, nil)
	a, b := h.open(t, shape{events: true}), start(t, nil).open(t, shape{})
	conn, err := a.ch.SyscallConn()
	must(t, err)
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(ep) })
	must(t, conn.Control(func(fd uintptr) {
		err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, int(fd), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)})
	}))
	must(t, err)
	// epoll waits for one edge.
	edge := func() {
		t.Helper()
		for {
			n, err := unix.EpollWait(ep, make([]unix.EpollEvent, 2), int(patience/time.Millisecond))
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if must(t, err); n != 1 {
				t.Fatalf("%d descriptors are ready, want 1", n)
			}
			return
		}
	}
	cqs := []*verbs.CQ{a.cq}
	for range 2 {
		cq, err := a.dev.CreateCQ(8, a.ch, 0)
		must(t, err)
		cqs = append(cqs, cq)
	}
	_, err = a.ch.TryGet()
	wantErrno(t, "no event", err, unix.EAGAIN)
	for round, order := range [][]int{{0, 1, 2}, {2, 0, 1}} {
		for _, i := range order {
			a.cq = cqs[i]
			a.qp = a.newQP(4, false)
			b.qp = b.newQP(4, false)
			connect(a, b, verbs.RCConfig{})
			must(t, a.cq.ReqNotify(false))
			a.do(a.write(b, 0, 0, 8))
		}
		edge()
		got := map[*verbs.CQ]int{}
		for n := 0; n < len(cqs); {
			cq, err := a.ch.TryGet()
			if errors.Is(err, unix.EAGAIN) {
				edge()
				continue
			}
			must(t, err)
			cq.AckEvents(1)
			got[cq]++
			n++
		}
		for i, cq := range cqs {
			if got[cq] != 1 {
				t.Errorf("round %d: %d events of queue %d, want 1", round, got[cq], i)
			}
		}
		_, err = a.ch.TryGet()
		wantErrno(t, "all events are read", err, unix.EAGAIN)
	}
}

// ibv_get_async_event(3): destroying a queue pair waits for the acknowledgement.
func TestDestroyQPWaitsForAck(t *testing.T) {
	a, b := pair(t, shape{}, verbs.RCConfig{}, nil)
	alive(a, b)
	must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateSQD, EnSQDAsyncNotify: true}, verbs.QPStateMask|verbs.QPEnSQDAsyncNotifyMask))
	ev, err := a.dev.AsyncEvent(within(t))
	if err != nil || ev.Type != verbs.EventSQDrained || ev.QP != a.qp {
		t.Fatalf("event %+v, %v; want SQ_DRAINED", ev, err)
	}
	done := make(chan error)
	go func() { done <- a.qp.Destroy() }()
	eventually(t, "the queue pair is on its way out", func() bool {
		_, err := a.qp.Query()
		return errors.Is(err, unix.EINVAL)
	})
	select {
	case err := <-done:
		t.Errorf("destroyed with an event not acknowledged: %v", err)
	default:
	}
	ev.Ack()
	must(t, <-done)
	if ev, err := a.dev.TryAsyncEvent(); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("an event after all: %+v, %v", ev, err)
	}
}

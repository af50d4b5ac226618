package adapter_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/verbs"
)

// ready takes a pair of a type to RTS, and makes one message from a to b.
func readyPair(t *testing.T, typ verbs.QPType) (a, b *program, send func(wrid uint64) verbs.SendWR) {
	t.Helper()
	if typ == verbs.UD {
		a, b, ah := datagrams(t, shape{})
		return a, b, func(wrid uint64) verbs.SendWR {
			wr := a.datagram(ah, b.qp.Num(), 8)
			wr.WRID = wrid
			return wr
		}
	}
	a, b = pair(t, shape{typ: typ}, verbs.RCConfig{}, nil)
	return a, b, func(wrid uint64) verbs.SendWR {
		return verbs.SendWR{WRID: wrid, Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(0, 8)}}
	}
}

// forTypes runs a test for each type.
func forTypes(t *testing.T, f func(t *testing.T, typ verbs.QPType)) {
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		t.Run(typ.String(), func(t *testing.T) { f(t, typ) })
	}
}

// SQD for each type: what was started ends, SQ_DRAINED says so, the rest and what
// is posted then wait for RTS (IBTA Vol 1 §10.3.1.5).
func TestDrainOfEachType(t *testing.T) {
	forTypes(t, func(t *testing.T, typ verbs.QPType) {
		a, b, send := readyPair(t, typ)
		for i := range uint64(4) {
			b.recv(i, 0, 64)
		}
		a.post(send(0), send(1))
		must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateSQD, EnSQDAsyncNotify: true}, verbs.QPStateMask|verbs.QPEnSQDAsyncNotifyMask))
		ev, err := a.dev.AsyncEvent(within(t))
		if err != nil || ev.Type != verbs.EventSQDrained || ev.QP != a.qp {
			t.Fatalf("event %+v, %v; want SQ_DRAINED", ev, err)
		}
		ev.Ack()
		done := uint64(0)
		var wcs [4]verbs.WC
		n, err := a.cq.Poll(wcs[:])
		must(t, err)
		for _, wc := range wcs[:n] {
			if wc.WRID != done || wc.Status != verbs.WCSuccess {
				t.Errorf("completion %d: %v, want %d", wc.WRID, wc.Status, done)
			}
			done++
		}
		a.post(send(2))
		if q, err := a.qp.Query(); err != nil || q.State != verbs.StateSQD || q.SQDraining {
			t.Errorf("state %v, draining %v, %v", q.State, q.SQDraining, err)
		}
		a.none()
		must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateRTS}, verbs.QPStateMask))
		for ; done < 3; done++ {
			a.status(done, verbs.WCSuccess)
		}
		for i := range uint64(3) {
			b.status(i, verbs.WCSuccess)
		}
	})
}

// ERR for each type flushes both queues in order, and what is posted then; RESET
// forgets all of it and the queue pair serves anew (IBTA Vol 1 §10.3.1.7).
func TestErrAndResetOfEachType(t *testing.T) {
	forTypes(t, func(t *testing.T, typ verbs.QPType) {
		a, b, send := readyPair(t, typ)
		for i := range uint64(3) {
			a.recv(10+i, 0, 64)
		}
		must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPStateMask))
		a.post(send(1), send(2))
		a.recv(13, 0, 64)
		var sends, recvs []uint64
		for range 6 {
			wc := a.next()
			if wc.Status != verbs.WCWRFlushErr {
				t.Fatalf("completion %d: %v, want a flush", wc.WRID, wc.Status)
			}
			if wc.Opcode.IsRecv() {
				recvs = append(recvs, wc.WRID)
			} else {
				sends = append(sends, wc.WRID)
			}
		}
		for i, id := range append(sends, recvs...) {
			if want := []uint64{1, 2, 10, 11, 12, 13}[i]; id != want {
				t.Errorf("flushed sends %d and receives %d", sends, recvs)
				break
			}
		}
		must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
		if q, err := a.qp.Query(); err != nil || q.State != verbs.StateReset || q.DestQPN != 0 || q.QKey != 0 || q.SQPSN != 0 {
			t.Errorf("after RESET: %+v, %v", q, err)
		}
		_, err := a.qp.PostSend(send(1))
		wantErrno(t, "a post in RESET", err, unix.EINVAL)
		if typ == verbs.UD {
			must(t, a.qp.ReadyUD(qkey, 77))
		} else {
			must(t, b.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
			connect(a, b, verbs.RCConfig{})
		}
		b.recv(5, 0, 64)
		a.post(send(3))
		a.status(3, verbs.WCSuccess)
		b.status(5, verbs.WCSuccess)
	})
}

// ibv_query_qp(3) gives back what ibv_modify_qp(3) set.
func TestQueryGivesBackWhatWasSet(t *testing.T) {
	forTypes(t, func(t *testing.T, typ verbs.QPType) {
		a, b, _ := readyPair(t, typ)
		q, err := a.qp.Query()
		must(t, err)
		if q.State != verbs.StateRTS || q.CurState != verbs.StateRTS || q.PortNum != 1 || q.Cap != a.qp.Cap() || q.SQPSN != a.psn {
			t.Errorf("%+v", q)
		}
		if typ == verbs.UD {
			if q.QKey != qkey {
				t.Errorf("Q_Key %#x", uint32(q.QKey))
			}
			return
		}
		if q.DestQPN != b.qp.Num() || q.RQPSN != b.psn || q.AH.DGID != b.gid || q.AH.HopLimit != 64 || !q.AH.IsGlobal || q.PathMTU != verbs.MTU4096 {
			t.Errorf("%+v", q)
		}
		if typ == verbs.RC && (q.Timeout != 14 || q.RetryCnt != 7 || q.RNRRetry != 7 || q.MinRNRTimer != 12 || q.MaxRDAtomic != 16 || q.MaxDestRDAtomic != 16) {
			t.Errorf("%+v", q)
		}
	})
}

// Attributes that RTS takes, and those that it takes in SQD only.
func TestModifyInRTS(t *testing.T) {
	a, b := pair(t, shape{}, verbs.RCConfig{}, nil)
	must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateRTS, MinRNRTimer: 3, AccessFlags: uint32(verbs.AccessRemoteRead)},
		verbs.QPStateMask|verbs.QPMinRNRTimerMask|verbs.QPAccessFlagsMask))
	timeout := verbs.QPAttr{State: verbs.StateRTS, Timeout: 10}
	wantErrno(t, "timeout in RTS", a.qp.Modify(&timeout, verbs.QPStateMask|verbs.QPTimeoutMask), unix.EINVAL)
	must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateSQD}, verbs.QPStateMask))
	timeout = verbs.QPAttr{State: verbs.StateSQD, Timeout: 10, RetryCnt: 3, RNRRetry: 2}
	must(t, a.qp.Modify(&timeout, verbs.QPStateMask|verbs.QPTimeoutMask|verbs.QPRetryCntMask|verbs.QPRNRRetryMask))
	must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateRTS, CurState: verbs.StateSQD}, verbs.QPStateMask|verbs.QPCurStateMask))
	q, err := a.qp.Query()
	must(t, err)
	if q.MinRNRTimer != 3 || q.AccessFlags != uint32(verbs.AccessRemoteRead) || q.Timeout != 10 || q.RetryCnt != 3 || q.RNRRetry != 2 {
		t.Errorf("%+v", q)
	}
	alive(a, b)
}

// Every pair of states that is no transition is EINVAL for every type, and
// changes nothing.
func TestIllegalTransitions(t *testing.T) {
	forTypes(t, func(t *testing.T, typ verbs.QPType) {
		a, _, _ := readyPair(t, typ)
		reach := map[verbs.QPState]func(){
			verbs.StateReset: func() { must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask)) },
			verbs.StateRTS:   func() {},
			verbs.StateSQD:   func() { must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateSQD}, verbs.QPStateMask)) },
			verbs.StateErr:   func() { must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPStateMask)) },
		}
		for _, from := range []verbs.QPState{verbs.StateRTS, verbs.StateSQD, verbs.StateErr, verbs.StateReset} {
			reach[from]()
			for to := verbs.StateReset; to <= verbs.StateErr; to++ {
				if _, _, ok := qpstate.Transition(typ, from, to); ok {
					continue
				}
				err := a.qp.Modify(&verbs.QPAttr{State: to}, verbs.QPStateMask)
				if !errors.Is(err, unix.EINVAL) {
					t.Errorf("%v to %v: %v, want EINVAL", from, to, err)
				}
				if q, err := a.qp.Query(); err != nil || q.State != from {
					t.Errorf("after %v to %v was refused: %v, %v", from, to, q.State, err)
				}
			}
		}
	})
}

// The adapter goes: the send queue of a queue pair with a shared receive queue is
// flushed in order, its receives are nobody's, and no call hangs, one that waits
// for an acknowledgement included.
func TestDeathWithSharedReceiveQueue(t *testing.T) {
	h, err := tryStart(t, nil)
	must(t, err)
	a := h.open(t, shape{srq: 8})
	b := start(t, nil).open(t, shape{})
	connect(a, b, verbs.RCConfig{})
	alive(a, b)
	a.recv(1, 0, 64)
	must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateSQD, EnSQDAsyncNotify: true}, verbs.QPStateMask|verbs.QPEnSQDAsyncNotifyMask))
	_, err = a.dev.AsyncEvent(within(t)) // is not acknowledged
	must(t, err)
	for i := range uint64(3) {
		wr := a.write(b, 0, 0, 8)
		wr.WRID = i
		a.post(wr) // waits in SQD
	}
	wantErrno(t, "a shared queue in use", a.srq.Destroy(), unix.EBUSY)
	must(t, h.Close())
	<-a.dev.Done()
	for i := range uint64(3) {
		a.status(i, verbs.WCWRFlushErr)
	}
	a.none()
	_, err = a.srq.PostRecv(verbs.RecvWR{})
	wantErrno(t, "a post to a dead adapter", err, unix.EIO)
	for what, err := range map[string]error{"QP": a.qp.Destroy(), "SRQ": a.srq.Destroy(), "CQ": a.cq.Destroy()} {
		if !errors.Is(err, verbs.ErrDeviceDead) {
			t.Errorf("destroy %s: %v, want ErrDeviceDead", what, err)
		}
	}
	if ev, err := a.dev.TryAsyncEvent(); err != nil || ev.Type != verbs.EventDeviceFatal {
		t.Errorf("event %+v, %v; want DEVICE_FATAL", ev, err)
	}
}

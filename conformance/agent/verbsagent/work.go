package verbsagent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/pkg/verbs"
)

// send posts requests. When one is refused, those before it stay posted.
func (s *Session) send(_ context.Context, r *agent.Request) (*agent.Answer, error) {
	qp, err := find(s.qps, "qp", r.QP)
	if err != nil {
		return nil, err
	}
	wrs := make([]verbs.SendWR, len(r.Sends))
	for i := range wrs {
		if wrs[i], err = s.sendWR(&r.Sends[i]); err != nil {
			return nil, fmt.Errorf("request %d: %w", i, err)
		}
	}
	a := &agent.Answer{}
	if a.Posted, err = qp.PostSend(wrs...); err != nil {
		return nil, fmt.Errorf("request %d: %w", a.Posted, err)
	}
	for i := range r.Sends {
		if w := s.mws[r.Sends[i].MW]; w != nil {
			a.RKey = uint32(w.RKey())
		}
	}
	return a, nil
}

func (s *Session) sendWR(w *agent.SendWR) (verbs.SendWR, error) {
	op, err := value(ops, "operation", w.Op)
	if err != nil {
		return verbs.SendWR{}, err
	}
	flags, err := setOf(sendFlags, "flag", w.Flags)
	if err != nil {
		return verbs.SendWR{}, err
	}
	wr := verbs.SendWR{
		WRID: w.ID, Opcode: op, Flags: flags, ImmData: w.Imm, InvalidateRKey: verbs.RKey(w.Inv),
		RemoteAddr: w.Addr, RKey: verbs.RKey(w.RKey), CompareAdd: w.CompareAdd, Swap: w.Swap,
		RemoteQPN: verbs.QPN(w.RemoteQPN), RemoteQKey: verbs.QKey(w.RemoteQKey), SGList: sges(w.SGEs), Inline: w.Inline,
	}
	if w.AH != 0 {
		ah, err := find(s.ahs, "ah", w.AH)
		if err != nil {
			return wr, err
		}
		wr.AH = ah.Handle()
	}
	if op != verbs.WRBindMW {
		return wr, nil
	}
	mw, err := find(s.mws, "mw", w.MW)
	if err != nil {
		return wr, err
	}
	if w.Bind == nil {
		return wr, errors.New("a bind without what it is to")
	}
	access, err := accessOf(w.Bind.Access)
	if err != nil {
		return wr, err
	}
	wr.Bind = verbs.Bind{RKey: verbs.IncRKey(mw.RKey()), Addr: w.Bind.Addr, Length: w.Bind.Length, Access: access}
	if w.Bind.RKey != 0 {
		wr.Bind.RKey = verbs.RKey(w.Bind.RKey)
	}
	if w.Bind.MR != 0 {
		mr, err := find(s.mrs, "mr", w.Bind.MR)
		if err != nil {
			return wr, err
		}
		wr.Bind.MR = mr.LKey()
	}
	return wr, nil
}

func sges(list []agent.SGE) []verbs.SGE {
	if len(list) == 0 {
		return nil
	}
	out := make([]verbs.SGE, len(list))
	for i, e := range list {
		out[i] = verbs.SGE{Addr: e.Addr, Length: e.Length, LKey: verbs.LKey(e.LKey)}
	}
	return out
}

// recv posts receives, to a queue pair or a shared queue.
func (s *Session) recv(_ context.Context, r *agent.Request) (*agent.Answer, error) {
	wrs := make([]verbs.RecvWR, len(r.Recvs))
	for i, w := range r.Recvs {
		wrs[i] = verbs.RecvWR{WRID: w.ID, SGList: sges(w.SGEs)}
	}
	var post func(...verbs.RecvWR) (int, error)
	if r.SRQ != 0 {
		srq, err := find(s.srqs, "srq", r.SRQ)
		if err != nil {
			return nil, err
		}
		post = srq.PostRecv
	} else {
		qp, err := find(s.qps, "qp", r.QP)
		if err != nil {
			return nil, err
		}
		post = qp.PostRecv
	}
	n, err := post(wrs...)
	if err != nil {
		return nil, fmt.Errorf("request %d: %w", n, err)
	}
	return &agent.Answer{Posted: n}, nil
}

// bind binds a window of type 1, signaled.
func (s *Session) bind(_ context.Context, r *agent.Request) (*agent.Answer, error) {
	qp, err := find(s.qps, "qp", r.QP)
	if err != nil {
		return nil, err
	}
	mw, err := find(s.mws, "mw", r.MW)
	if err != nil {
		return nil, err
	}
	if r.Bind == nil {
		return nil, errors.New("a bind without what it is to")
	}
	b := verbs.MWBind{WRID: r.ID, Flags: verbs.SendSignaled, Addr: r.Bind.Addr, Length: r.Bind.Length}
	if b.Access, err = accessOf(r.Bind.Access); err != nil {
		return nil, err
	}
	if r.Bind.MR != 0 {
		if b.MR, err = find(s.mrs, "mr", r.Bind.MR); err != nil {
			return nil, err
		}
	}
	if err := qp.BindMW(mw, b); err != nil {
		return nil, err
	}
	return &agent.Answer{RKey: uint32(mw.RKey())}, nil
}

// maxPoll is how many completions one answer carries at most.
const maxPoll = 4096

// poll takes completions. It looks again after short sleeps, which grow: a case costs milliseconds.
func (s *Session) poll(ctx context.Context, r *agent.Request) (*agent.Answer, error) {
	q, err := find(s.cqs, "cq", r.CQ)
	if err != nil {
		return nil, err
	}
	if r.N < 0 || r.N > maxPoll {
		return nil, invalid("%d completions, at most %d", r.N, maxPoll)
	}
	a := &agent.Answer{WCs: []agent.WC{}}
	wcs := make([]verbs.WC, max(r.N, 1))
	until := time.Now().Add(wait(r))
	for nap := 50 * time.Microsecond; ; nap = min(nap*5/4, time.Millisecond) {
		n, err := q.Poll(wcs[len(a.WCs):])
		if err != nil {
			return nil, err
		}
		for _, wc := range wcs[len(a.WCs) : len(a.WCs)+n] {
			a.WCs = append(a.WCs, completion(&wc))
		}
		if len(a.WCs) == len(wcs) || !time.Now().Before(until) || ctx.Err() != nil {
			return a, nil
		}
		time.Sleep(nap)
	}
}

// wait is how long a request waits.
func wait(r *agent.Request) time.Duration {
	return time.Duration(min(max(r.MS, 0), agent.MaxWait)) * time.Millisecond
}

// completion tells of a completion what is valid in it.
func completion(wc *verbs.WC) agent.WC {
	c := agent.WC{ID: wc.WRID, QPN: uint32(wc.QPN), Status: strings.TrimPrefix(wc.Status.String(), "IBV_WC_")}
	if wc.Status != verbs.WCSuccess {
		return c
	}
	c.Op = strings.TrimPrefix(wc.Opcode.String(), "IBV_WC_")
	switch wc.Opcode {
	case verbs.WCRecv, verbs.WCRecvRDMAWithImm, verbs.WCRDMARead, verbs.WCCompSwap, verbs.WCFetchAdd:
		c.ByteLen = wc.ByteLen
	case verbs.WCSend, verbs.WCRDMAWrite, verbs.WCBindMW, verbs.WCLocalInv, verbs.WCRegMR: // not valid
	}
	c.SrcQP, c.GRH = uint32(wc.SrcQP), wc.Flags&verbs.WCGRH != 0
	if c.WithImm = wc.Flags&verbs.WCWithImm != 0; c.WithImm {
		c.Imm = wc.ImmData
	}
	if c.WithInv = wc.Flags&verbs.WCWithInv != 0; c.WithInv {
		c.Inv = wc.InvalidatedRKey
	}
	return c
}

func (s *Session) arm(_ context.Context, r *agent.Request) (*agent.Answer, error) {
	q, err := find(s.cqs, "cq", r.CQ)
	if err != nil {
		return nil, err
	}
	return nil, q.ReqNotify(r.Solicited)
}

// event waits for the next event of a completion queue's channel, and acknowledges it.
func (s *Session) event(ctx context.Context, r *agent.Request) (*agent.Answer, error) {
	q, err := find(s.cqs, "cq", r.CQ)
	if err != nil {
		return nil, err
	}
	if q.events == nil {
		return nil, fmt.Errorf("cq %d was made without a channel", r.CQ)
	}
	ctx, cancel := context.WithTimeout(ctx, wait(r))
	defer cancel()
	got, err := q.events.TryGet()
	if noEvent(err) {
		got, err = q.events.Get(ctx)
	}
	switch {
	case err == nil:
		got.AckEvents(1)
	case ctx.Err() == nil:
		return nil, err
	}
	return &agent.Answer{Event: err == nil}, nil
}

// async gives the asynchronous events that wait, or the first one within the time.
func (s *Session) async(ctx context.Context, r *agent.Request) (*agent.Answer, error) {
	a := &agent.Answer{Events: []agent.Event{}}
	ctx, cancel := context.WithTimeout(ctx, wait(r))
	defer cancel()
	for len(a.Events) < maxPoll {
		ev, err := s.dev.TryAsyncEvent()
		if noEvent(err) && len(a.Events) == 0 && ctx.Err() == nil {
			ev, err = s.dev.AsyncEvent(ctx)
		}
		if err != nil {
			if noEvent(err) || ctx.Err() != nil {
				break
			}
			return nil, err
		}
		ev.Ack()
		a.Events = append(a.Events, s.eventOf(ev))
		if ev.Type == verbs.EventDeviceFatal {
			break // again and again
		}
	}
	return a, nil
}

func (s *Session) eventOf(ev verbs.AsyncEvent) agent.Event {
	e := agent.Event{Type: eventName(ev.Type)}
	for h, q := range s.qps {
		if q.QP == ev.QP && ev.QP != nil {
			e.QP = h
		}
	}
	for h, q := range s.cqs {
		if q.CQ == ev.CQ && ev.CQ != nil {
			e.CQ = h
		}
	}
	for h, q := range s.srqs {
		if q == ev.SRQ && ev.SRQ != nil {
			e.SRQ = h
		}
	}
	return e
}

// noEvent says whether an error is that there is none.
func noEvent(err error) bool { return errors.Is(err, unix.EAGAIN) }

package tiny

import (
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

// duplicate answers a request from before the expected PSN, without executing it (C9-105, C9-106).
func (q *qp) duplicate(p *packet) {
	t := q.t
	switch {
	case t.broken("duplicate-silent"):
		return
	case t.broken("duplicate-nak"), t.broken("duplicate-in-gap-nak") && q.nakked:
		q.nak(bth.NAKSequence, q.epsn)
		return
	case t.broken("duplicate-rnr") && p.Info.ConsumesRecv && !q.hasRecv():
		q.nak(bth.RNRSyndrome(uint8(q.minRNR)), p.psn())
		return
	case t.broken("duplicate-ends-message"):
		q.cur = nil
	case t.broken("duplicate-moves-epsn"):
		q.epsn = p.psn().Add(1)
	case t.broken("duplicate-counts-msn"):
		q.msn++
	case t.broken("duplicate-write-checked") && p.Has(bth.HasRETH) && p.Info.Op == bth.OpWrite:
		if _, err := q.remoteMem(p.h.RETH.RKey, p.h.RETH.VA, uint64(p.h.RETH.Length), remoteWrite); err != nil {
			q.nak(bth.NAKRemoteAccess, p.psn())
			return
		}
	case t.broken("duplicate-executed") && p.Info.Position == bth.Only:
		saved := q.responder
		switch op := p.Info.Op; {
		case op == bth.OpSend && q.hasRecv():
			q.send(p)
			rq := q.rq
			q.responder = saved
			q.rq = rq
			return
		case op == bth.OpWrite:
			q.write(p)
			q.responder = saved
			return
		}
	}
	switch op := p.Info.Op; {
	case op == bth.OpSend || op == bth.OpWrite:
		if p.h.BTH.AckReq {
			psn := q.epsn.Add(uint32(bth.PSNMask)) // one before
			if t.broken("duplicate-ack-psn-ahead") {
				psn = q.epsn
			}
			q.ack(psn)
		}
	case op == bth.OpReadRequest:
		q.readAgain(p)
	case op == bth.OpCmpSwap || op == bth.OpFetchAdd:
		q.atomicAgain(p)
	case op == bth.OpFlush || op == bth.OpAtomicWrite:
		for _, r := range q.ring {
			if r.op == p.Info.Op && r.psn == p.psn() {
				q.readResponse(p.psn(), nil)
			}
		}
	}
}

// readAgain answers a duplicate READ, or the tail of one.
func (q *qp) readAgain(p *packet) {
	t, h := q.t, p.h.RETH
	if t.broken("duplicate-read-silent") {
		return
	}
	for _, r := range q.ring {
		d := p.psn().Sub(r.psn)
		if r.op != bth.OpReadRequest || d < 0 || uint32(d) >= r.n {
			continue
		}
		off := uint64(d) * uint64(q.mtu)
		inside := h.VA == r.va+off && uint64(h.Length)+off <= uint64(r.length)
		if !inside && !t.broken("duplicate-read-unchecked") || h.RKey != r.key && !t.broken("duplicate-read-any-key") {
			return
		}
		psn, va, n := p.psn(), h.VA, uint64(h.Length)
		if t.broken("duplicate-read-from-start") {
			psn, va, n = r.psn, r.va, uint64(r.length)
		}
		mem, err := q.remoteMem(r.key, va, n, remoteRead)
		if n > 0 && err != nil {
			return
		}
		if t.broken("duplicate-read-old-data") {
			mem = make([]byte, n)
		}
		if t.broken("duplicate-read-psn") {
			psn = q.epsn
		}
		q.readResponse(psn, mem)
		return
	}
	if t.broken("duplicate-read-unchecked") {
		if mem, err := q.remoteMem(h.RKey, h.VA, uint64(h.Length), remoteRead); err == nil {
			q.readResponse(p.psn(), mem)
		}
	}
}

// atomicAgain answers a duplicate atomic with what the first one returned.
func (q *qp) atomicAgain(p *packet) {
	t, a := q.t, p.h.AtomicETH
	for _, r := range q.ring {
		if r.op == p.Info.Op && r.psn == p.psn() && r.va == a.VA && r.key == a.RKey && r.swap == a.Swap {
			old := r.old
			if cell, err := q.remoteMem(a.RKey, a.VA, 8, remoteAtomic); err == nil {
				switch {
				case t.broken("duplicate-atomic-executed"):
					old = t.atomic(cell, r.op == bth.OpCmpSwap, a.Compare, a.Swap)
				case t.broken("duplicate-atomic-reads"):
					old = t.atomic(append([]byte(nil), cell...), false, 0, 0)
				}
			}
			q.atomicAck(p.psn(), old)
			return
		}
	}
	if t.broken("forgotten-atomic-answered") {
		q.atomicAck(p.psn(), 0)
	}
}

// laterThan waits longer than a tester's silence.
func laterThan() <-chan time.Time { return time.After(30 * time.Millisecond) }

// later runs f after a while, with the target's mutex.
func later(f func(), t *Target) {
	go func() {
		<-laterThan()
		t.mu.Lock()
		defer t.mu.Unlock()
		if !t.closed {
			f()
		}
	}()
}

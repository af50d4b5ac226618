package tiny

import (
	"encoding/binary"
	"slices"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/pkg/bth"
)

// replay is what the responder remembers of a READ, an atomic, a FLUSH or an ATOMIC WRITE.
type replay struct {
	op     bth.Op
	psn    bth.PSN
	n      uint32 // PSNs
	va     uint64
	key    uint32
	length uint32
	swap   uint64
	cmp    uint64
	old    uint64
}

// remember keeps a replay, as many as the queue pair has resources.
func (q *qp) remember(r replay) {
	q.ring = append(q.ring, r)
	if keep := max(q.maxDest, 1); len(q.ring) > keep {
		q.ring = q.ring[len(q.ring)-keep:]
	}
}

// write takes a packet of a WRITE.
func (q *qp) write(p *packet) {
	t, n := q.t, uint64(len(p.Payload))
	if p.Info.Position.Begins() {
		m := &message{op: bth.OpWrite, va: p.h.RETH.VA, key: p.h.RETH.RKey, length: uint64(p.h.RETH.Length)}
		if _, err := q.remoteMem(m.key, m.va, m.length, remoteWrite); err != nil && (m.length > 0 || t.broken("zero-write-checked")) {
			q.refuse(p, bth.NAKRemoteAccess, "QP_ACCESS_ERR")
			return
		}
		q.cur = m
	}
	m := q.cur
	short := p.Info.Position.Ends() && m.got+n < m.length && !t.broken("write-short-accepted")
	long := m.got+n > m.length && !t.broken("write-long-accepted")
	if short || long {
		q.refuse(p, bth.NAKInvalidRequest, "QP_REQ_ERR")
		return
	}
	if n > 0 {
		mem, err := q.remoteMem(m.key, m.va+m.got, n, remoteWrite)
		if err != nil {
			q.refuse(p, bth.NAKRemoteAccess, "QP_ACCESS_ERR")
			return
		}
		if t.broken("pad-delivered") {
			if all, err := q.remoteMem(m.key, m.va+m.got, n+uint64(p.Pad), remoteWrite); err == nil {
				mem = all
			}
		}
		q.place(mem, q.delivered(p))
	}
	m.got += n
	if p.Has(bth.HasImmDt) {
		q.writeImmediate(p, m)
	} else if p.Info.Position.Ends() && t.broken("write-completes") {
		if r := q.takeRecv(); r != nil {
			q.recvCQ.push(agent.WC{ID: r.ID, Status: "SUCCESS", Op: "RECV", QPN: uint32(q.num)}, false)
		}
	}
	q.executed(p)
}

// place copies bytes to memory.
func (q *qp) place(mem, b []byte) {
	switch {
	case q.t.broken("write-not-done"):
		return
	case q.t.broken("write-later-packets-lost") && q.cur.got > 0:
		return
	}
	copy(mem, b)
}

func (q *qp) writeImmediate(p *packet, m *message) {
	r := q.takeRecv()
	wc := agent.WC{
		ID: r.ID, Status: "SUCCESS", Op: "RECV_RDMA_WITH_IMM", ByteLen: uint32(m.got), QPN: uint32(q.num), SrcQP: uint32(q.dest),
	}
	if q.t.broken("write-imm-byte-len") {
		wc.ByteLen = uint32(len(p.Payload))
	}
	if q.t.broken("write-imm-scatters") {
		_ = q.scatter(r.SGEs, 0, []byte("write"))
	}
	if q.t.broken("write-imm-as-recv") {
		wc.Op = "RECV"
	}
	q.immediate(&wc, p)
	q.recvCQ.push(wc, q.solicited(p))
}

// packets is how many packets a message of n bytes takes.
func (q *qp) packets(n uint32) uint32 {
	if q.t.broken("read-takes-psn-more") {
		return n/uint32(q.mtu) + 2
	}
	return max(1, uint32((uint64(n)+uint64(q.mtu)-1)/uint64(q.mtu)))
}

// read answers a READ request.
func (q *qp) read(p *packet) {
	t, r := q.t, p.h.RETH
	mem, err := q.remoteMem(r.RKey, r.VA, uint64(r.Length), remoteRead)
	if r.Length == 0 && !t.broken("zero-read-checked") {
		mem, err = nil, nil
	}
	if err != nil {
		if t.broken("read-leaks") {
			q.readResponse(p.psn(), make([]byte, r.Length))
		}
		q.refuse(p, bth.NAKRemoteAccess, "QP_ACCESS_ERR")
		return
	}
	n := q.packets(r.Length)
	q.remember(replay{op: p.Info.Op, psn: p.psn(), n: n, va: r.VA, key: r.RKey, length: r.Length})
	if t.broken("read-takes-one-psn") {
		n = 1
	}
	q.epsn = q.epsn.Add(n)
	switch {
	case t.broken("msn-counts-reads-twice"):
		q.msn += 2
	case t.broken("msn-skips-reads"):
	default:
		q.msn++
	}
	if t.broken("read-needs-ackreq") && !p.h.BTH.AckReq {
		return
	}
	if t.broken("read-answered-late") {
		later(func() { q.readResponse(p.psn(), mem) }, t)
		return
	}
	if t.broken("read-stale") {
		mem = make([]byte, len(mem))
	}
	q.readResponse(p.psn(), mem)
}

// readResponse sends the response packets of a READ.
func (q *qp) readResponse(psn bth.PSN, mem []byte) {
	t, mtu := q.t, q.mtu
	if t.broken("read-response-mtu-half") {
		mtu /= 2
	}
	n := max(1, (len(mem)+mtu-1)/mtu)
	for i := range n {
		op := bth.RCReadResponseMiddle
		switch {
		case n == 1:
			op = bth.RCReadResponseOnly
		case i == 0:
			op = bth.RCReadResponseFirst
		case i == n-1:
			op = bth.RCReadResponseLast
		}
		switch {
		case t.broken("read-last-missing") && i > 0 && i == n-1:
			return
		case t.broken("read-last-as-middle") && op == bth.RCReadResponseLast:
			op = bth.RCReadResponseMiddle
		case t.broken("read-middle-as-last") && op == bth.RCReadResponseMiddle:
			op = bth.RCReadResponseLast
		}
		w := q.packetTo(op, psn.Add(uint32(i)))
		if t.broken("read-psn-constant") {
			w.BTH.PSN = psn
		}
		if t.broken("read-psn-not-wrapped") && psn.Add(uint32(i)) < psn {
			w.BTH.PSN = psn.Add(uint32(i) + 1)
		}
		w.Payload = append([]byte(nil), mem[min(i*mtu, len(mem)):min((i+1)*mtu, len(mem))]...)
		q.aeth(w, bth.AckNoCredit)
		if t.broken("read-msn-old") {
			w.AETH.MSN = (q.msn - 1) & 0xFFFFFF
		}
		q.out(w)
	}
}

// atomicRequest executes a CmpSwap or FetchAdd.
func (q *qp) atomicRequest(p *packet) {
	t, a := q.t, p.h.AtomicETH
	if a.VA%8 != 0 && !t.broken("atomic-misaligned") {
		q.refuse(p, bth.NAKInvalidRequest, "QP_REQ_ERR")
		return
	}
	cell, err := q.remoteMem(a.RKey, a.VA, 8, remoteAtomic)
	if err != nil || t.broken("atomic-end-refused") && q.atEnd(a.RKey, a.VA) {
		q.refuse(p, bth.NAKRemoteAccess, "QP_ACCESS_ERR")
		return
	}
	if t.broken("atomic-lost") && t.lastAtomic != q {
		cell = slices.Clone(cell)
	}
	t.lastAtomic = q
	old := t.atomic(cell, p.Info.Op == bth.OpCmpSwap, a.Compare, a.Swap)
	q.remember(replay{op: p.Info.Op, psn: p.psn(), n: 1, va: a.VA, key: a.RKey, swap: a.Swap, cmp: a.Compare, old: old})
	q.epsn = q.epsn.Add(1)
	if !t.broken("atomic-msn-missing") {
		q.msn++
	}
	q.atomicAck(p.psn(), old)
}

// atEnd reports whether the cell is the last of its region.
func (q *qp) atEnd(key uint32, va uint64) bool {
	_, err := q.remoteMem(key, va+8, 8, remoteAtomic)
	return err != nil
}

func (q *qp) atomicAck(psn bth.PSN, old uint64) {
	t := q.t
	w := q.packetTo(bth.RCAtomicAcknowledge, psn)
	q.aeth(w, bth.AckNoCredit)
	w.AtomicAckETH.Original = old
	switch {
	case t.broken("atomic-ack-little-endian"):
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], old)
		w.AtomicAckETH.Original = binary.BigEndian.Uint64(b[:])
	case t.broken("atomic-ack-psn"):
		w.BTH.PSN = psn.Add(1)
	case t.broken("atomic-plain-ack"):
		w.BTH.Opcode = bth.RCAcknowledge
	case t.broken("atomic-silent"):
		return
	}
	q.out(w)
}

// flushRequest answers a FLUSH: prior writes are visible here as soon as they are done (Annex A19).
func (q *qp) flushRequest(p *packet) {
	t, r := q.t, p.h.RETH
	if t.broken("flush-acked-without-support") {
		q.executed(p)
		return
	}
	need := access(0)
	if p.h.FETH.PLT&bth.FlushGlobal != 0 {
		need |= flushGlobal
	}
	if p.h.FETH.PLT&bth.FlushPersistent != 0 {
		need |= flushPersistent
	}
	va, n := r.VA, uint64(r.Length)
	if p.h.FETH.Sel == bth.FlushRegion {
		if reg := t.byKey(r.RKey); reg != nil {
			va, n = reg.addr, uint64(len(reg.mem))
		}
	}
	if _, err := q.remoteMem(r.RKey, va, n, need); err != nil {
		q.refuse(p, bth.NAKRemoteAccess, "QP_ACCESS_ERR")
		return
	}
	q.remember(replay{op: p.Info.Op, psn: p.psn(), n: 1, va: r.VA, key: r.RKey, length: r.Length})
	q.epsn = q.epsn.Add(1)
	q.msn++
	if t.broken("flush-plain-ack") {
		q.ack(p.psn())
		return
	}
	q.readResponse(p.psn(), nil)
}

func (t *Target) byKey(key uint32) *region {
	for _, r := range t.mrs {
		if r.key == key {
			return r
		}
	}
	return nil
}

// atomicWrite executes an ATOMIC WRITE (Annex A19).
func (q *qp) atomicWrite(p *packet) {
	t, r := q.t, p.h.RETH
	if (r.VA%8 != 0 || r.Length != 8) && !t.broken("atomic-write-unaligned") {
		q.refuse(p, bth.NAKInvalidRequest, "QP_REQ_ERR")
		return
	}
	mem, err := q.remoteMem(r.RKey, r.VA, 8, remoteWrite)
	if err != nil {
		q.refuse(p, bth.NAKRemoteAccess, "QP_ACCESS_ERR")
		return
	}
	copy(mem, p.Payload)
	if t.broken("atomic-write-swapped") {
		reverse(mem)
	}
	q.remember(replay{op: p.Info.Op, psn: p.psn(), n: 1, va: r.VA, key: r.RKey, length: 8})
	q.epsn = q.epsn.Add(1)
	q.msn++
	q.readResponse(p.psn(), nil)
}

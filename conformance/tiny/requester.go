package tiny

import (
	"slices"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

// wqe is a send request.
type wqe struct {
	wr      agent.SendWR
	started bool
	done    bool
	status  string // of a request that failed here: it completes so when its turn comes
	first   bth.PSN
	n       uint32
	data    []byte // of a SEND or WRITE
	length  uint32 // of a READ
	got     uint32 // responses to a READ
	sends   int
	resumed bool // asked for again after a part had come
}

func (w *wqe) has(flag string) bool { return slices.Contains(w.wr.Flags, flag) }

func (w *wqe) fetches() bool {
	switch w.wr.Op {
	case "RDMA_READ", "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD", "FLUSH", "ATOMIC_WRITE":
		return true
	}
	return false
}

func (w *wqe) last() bth.PSN { return w.first.Add(w.n - 1) }

func (w *wqe) owns(psn bth.PSN) bool {
	d := psn.Sub(w.first)
	return w.started && d >= 0 && uint32(d) < w.n
}

// burst is how many packets may be on their way.
const burst = 128

// pump sends what may be sent.
func (q *qp) pump() {
	for q.step() {
	}
	q.startTimer()
}

// step sends one packet, or starts a request; false: nothing to do now.
func (q *qp) step() bool {
	if q.state != "RTS" && q.state != "SQD" || !q.rnrUntil.IsZero() {
		return false
	}
	if q.cursor != q.next { // a started request has packets to send, or to send again
		w := q.owner(q.cursor)
		if w == nil {
			return false
		}
		if q.cursor.Sub(q.una) >= burst && !q.t.broken("window-endless") {
			return false
		}
		q.transmit(w)
		return true
	}
	if q.state == "SQD" && !q.t.broken("sqd-ignored") {
		return false
	}
	for i, w := range q.sq {
		if w.started {
			continue
		}
		if !q.mayStart(i, w) {
			return false
		}
		return q.start(w)
	}
	return false
}

func (q *qp) owner(psn bth.PSN) *wqe {
	for _, w := range q.sq {
		if w.owns(psn) {
			return w
		}
	}
	return nil
}

// mayStart reports whether a request may leave now, those before it having left (IBTA Vol 1 §10.8.3.3).
func (q *qp) mayStart(i int, w *wqe) bool {
	t, fetching := q.t, 0
	for _, o := range q.sq[:i] {
		if o.status != "" {
			return false
		}
		if o.fetches() && !o.done {
			fetching++
		}
		if w.wr.Op == "LOCAL_INV" && !o.done {
			return false
		}
	}
	if w.has("FENCE") && fetching > 0 && !t.broken("fence-ignored") {
		return false
	}
	if q.typ == "RC" && w.fetches() && fetching >= q.maxRD && !t.broken("rd-atomic-ignored") {
		return false
	}
	return true
}

// start gives a request its PSNs; what needs no packet is done here.
func (q *qp) start(w *wqe) bool {
	t := q.t
	w.started, w.first = true, q.next
	if w.status = q.prepare(w); w.status != "" {
		q.finish()
		return false
	}
	switch {
	case w.length > 1<<31:
		w.done = true
		q.finish()
		return true
	case w.wr.Op == "BIND_MW" && t.broken("bind-late"):
		w.done = true
		win, key := t.mws[w.wr.MW], t.mws[w.wr.MW].key
		right := win.key
		win.key = ^key
		later(func() { win.key = right }, t)
		q.finish()
		return true
	case w.wr.Op == "BIND_MW" || w.wr.Op == "LOCAL_INV":
		w.done = true
		q.finish()
		return true
	case q.typ == "UD" || q.typ == "GSI":
		q.sendDatagram(w)
		q.finish()
		return true
	}
	w.n = q.sendPackets(w)
	q.next = q.next.Add(w.n)
	if t.broken("psn-spaces-shared") {
		q.epsn = q.epsn.Add(w.n)
	}
	if t.broken("request-psn-skips") {
		q.next = q.next.Add(1)
		w.n++
	}
	return true
}

func (q *qp) sendPackets(w *wqe) uint32 {
	switch w.wr.Op {
	case "RDMA_READ":
		if q.t.broken("read-request-one-psn") {
			return 1
		}
		return max(1, (w.length+uint32(q.mtu)-1)/uint32(q.mtu))
	case "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD", "FLUSH", "ATOMIC_WRITE":
		return 1
	}
	return max(1, uint32((len(w.data)+q.mtu-1)/q.mtu))
}

// prepare checks and gathers what a request names here; the result is the status of a failure.
func (q *qp) prepare(w *wqe) string {
	switch w.wr.Op {
	case "BIND_MW":
		win := q.t.mws[w.wr.MW]
		if win == nil || w.wr.Bind == nil || q.bind(win, w.wr.Bind, w.wr.Bind.RKey) != nil {
			return "MW_BIND_ERR"
		}
		return ""
	case "LOCAL_INV":
		if q.t.mrKeyed(w.wr.Inv) && q.t.broken("local-inv-of-region") {
			return ""
		}
		if q.invalidate(w.wr.Inv) != nil {
			return "LOC_QP_OP_ERR"
		}
		return ""
	case "RDMA_READ", "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD":
		for _, s := range w.wr.SGEs {
			if s.Length > 0 {
				if _, err := q.local(s, localWrite); err != nil {
					return "LOC_PROT_ERR"
				}
			}
			w.length += s.Length
		}
		return ""
	case "FLUSH":
		return ""
	}
	if len(w.wr.SGEs) == 1 && w.wr.SGEs[0].Length > 1<<31 {
		w.length = w.wr.SGEs[0].Length
		return ""
	}
	return q.gather(w)
}

func (t *Target) mrKeyed(key uint32) bool { return t.byKey(key) != nil }

// gather copies the payload of a SEND or WRITE.
func (q *qp) gather(w *wqe) string {
	if w.has("INLINE") && len(w.wr.Inline) > 0 {
		w.data = w.wr.Inline
		if q.t.broken("inline-garbled") {
			w.data = make([]byte, len(w.data))
		}
		return ""
	}
	for _, s := range w.wr.SGEs {
		if s.Length == 0 {
			continue
		}
		mem, err := q.local(s, 0)
		if err != nil {
			return "LOC_PROT_ERR"
		}
		w.data = append(w.data, mem...)
	}
	if q.t.broken("empty-send-filled") && len(w.data) == 0 {
		w.data = []byte{0}
	}
	return ""
}

// transmit sends the packet at the cursor.
func (q *qp) transmit(w *wqe) {
	t := q.t
	if q.cursor == w.first {
		w.sends++
	}
	switch w.wr.Op {
	case "RDMA_READ":
		q.sendRead(w)
	case "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD":
		q.sendAtomic(w)
	default:
		q.sendData(w)
	}
	if q.cursor.Sub(q.sent) > 0 {
		q.sent = q.cursor
	}
	if q.typ == "UC" && q.cursor == w.last().Add(1) && !t.broken("uc-waits-for-ack") {
		w.done = true
		q.una = q.cursor
		q.finish()
	}
}

// sendRead sends a READ request for what has not come yet.
func (q *qp) sendRead(w *wqe) {
	t := q.t
	got := w.got
	if t.broken("read-resumes-whole") {
		got, w.got = 0, 0
	}
	done := got * uint32(q.mtu)
	w.resumed = got > 0
	out := q.packetTo(bth.RCReadRequest, w.first.Add(got))
	out.BTH.AckReq = true
	out.RETH = bth.RETHFields{VA: w.wr.Addr + uint64(done), RKey: w.wr.RKey, Length: w.length - done}
	if t.broken("read-resumes-old-address") {
		out.RETH.VA = w.wr.Addr
	}
	if w.sends > 1 && t.broken("read-resent-new-psn") {
		out.BTH.PSN = out.BTH.PSN.Add(1)
	}
	q.cursor = w.last().Add(1)
	q.out(out)
}

func (q *qp) sendAtomic(w *wqe) {
	op := bth.RCFetchAdd
	a := bth.AtomicETHFields{VA: w.wr.Addr, RKey: w.wr.RKey, Swap: w.wr.CompareAdd}
	if w.wr.Op == "ATOMIC_CMP_AND_SWP" {
		op = bth.RCCmpSwap
		a.Swap, a.Compare = w.wr.Swap, w.wr.CompareAdd
	}
	if w.sends > 1 && q.t.broken("atomic-resent-changed") {
		a.Swap++
	}
	out := q.packetTo(op, w.first)
	out.BTH.AckReq = true
	out.AtomicETH = a
	q.cursor = w.last().Add(1)
	q.out(out)
}

// sendData sends one packet of a SEND or WRITE.
func (q *qp) sendData(w *wqe) {
	t := q.t
	i := int(q.cursor.Sub(w.first))
	from, to := min(i*q.mtu, len(w.data)), min((i+1)*q.mtu, len(w.data))
	last := uint32(i) == w.n-1
	out := q.packetTo(q.dataOpcode(w, i == 0, last), q.cursor)
	out.Payload = w.data[from:to]
	out.RETH = bth.RETHFields{VA: w.wr.Addr, RKey: w.wr.RKey, Length: uint32(len(w.data))}
	out.IETH.RKey = w.wr.Inv
	q.setImmediate(w, out)
	write := w.wr.Op == "RDMA_WRITE"
	out.BTH.Solicited = w.has("SOLICITED") && (last || t.broken("solicited-on-every-packet")) &&
		(!write || t.broken("solicited-on-write")) && !t.broken("solicited-missing")
	out.BTH.AckReq = last || q.cursor.Sub(q.una) == burst-1 || i%32 == 31
	if t.broken("ack-not-asked") {
		out.BTH.AckReq = false
	}
	q.breakData(w, out, i)
	q.cursor = q.cursor.Add(1)
	q.out(out)
}

func (q *qp) breakData(w *wqe, out *wire.Packet, i int) {
	t := q.t
	again := q.cursor.Before(q.sent)
	switch {
	case t.broken("reth-length-of-packet"):
		out.RETH.Length = uint32(len(out.Payload))
	case t.broken("resent-without-ackreq") && again:
		out.BTH.AckReq = false
	case t.broken("resent-changed") && again && len(out.Payload) > 0:
		out.Payload = append([]byte(nil), out.Payload...)
		out.Payload[0] ^= 0xFF
	case t.broken("resent-new-psn") && again:
		out.BTH.PSN = out.BTH.PSN.Add(w.n)
	case t.broken("middle-without-payload") && i == 1:
		out.Payload = nil
	}
}

// dataOpcode is the opcode of a packet of a SEND or WRITE.
func (q *qp) dataOpcode(w *wqe, first, last bool) bth.Opcode {
	op := bth.RCSendMiddle
	switch {
	case w.wr.Op == "ATOMIC_WRITE":
		return bth.RCAtomicWrite
	case w.wr.Op == "FLUSH":
		return bth.RCFlush
	case first && last:
		op = map[string]bth.Opcode{
			"SEND": bth.RCSendOnly, "SEND_WITH_IMM": bth.RCSendOnlyImmediate, "SEND_WITH_INV": bth.RCSendOnlyInvalidate,
			"RDMA_WRITE": bth.RCWriteOnly, "RDMA_WRITE_WITH_IMM": bth.RCWriteOnlyImmediate,
		}[w.wr.Op]
	case last:
		op = map[string]bth.Opcode{
			"SEND": bth.RCSendLast, "SEND_WITH_IMM": bth.RCSendLastImmediate, "SEND_WITH_INV": bth.RCSendLastInvalidate,
			"RDMA_WRITE": bth.RCWriteLast, "RDMA_WRITE_WITH_IMM": bth.RCWriteLastImmediate,
		}[w.wr.Op]
	case w.wr.Op == "RDMA_WRITE" || w.wr.Op == "RDMA_WRITE_WITH_IMM":
		op = bth.RCWriteMiddle
	}
	if first && !last {
		op-- // First stands before Middle
	}
	if q.typ == "UC" {
		op |= bth.UCSendFirst
	}
	return op
}

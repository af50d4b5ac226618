package transport_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/simnet"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/wq"
)

// The world's memory, the same at both ends. Each region of slots serves one
// operation; a slot is used again when the operation before is done.
const (
	slotSize   = 12 << 10
	slots      = 4
	sourceOff  = 0                         // what is sent and written; never changes
	readOff    = sourceOff + 2*slotSize    // what the peer READs; never changes
	recvOff    = readOff + 2*slotSize      // receives
	writeOff   = recvOff + slots*slotSize  // where the peer WRITEs
	landOff    = writeOff + slots*slotSize // where READs land
	addCell    = landOff + slots*slotSize  // the peer's FETCH_ADDs
	swapCell   = addCell + 8               // the peer's CMP_SWAPs
	resultOff  = swapCell + 8              // where atomics land
	fastOff    = resultOff + 8*slots       // the pages of the fast region
	worldSize  = fastOff + slots*fastPage  // bytes
	maxPending = 2 * slots                 // sends posted and not completed, a side
	stuckAfter = 60 * time.Second          // of virtual time without a completion
	netDelay   = 20 * time.Microsecond     // one way
	refuseFor  = 30 * time.Microsecond     // how long a full socket refuses
	lateRecv   = 300 * time.Microsecond    // how late a receive may be posted
	repollGap  = 5 * time.Microsecond      // between two looks at a busy host
	worldPKey  = bth.PKey(0xFFFF)          // as the engine sends it
	worldPort  = 0xC123                    // UDP source port at both ends
	recvSpare  = 64                        // bytes a receive is larger than its message
	worldRetry = 7
)

// op is one request as the world knows it.
type op struct {
	id       uint64
	code     wq.Opcode
	n        int
	src      int // offset in the sender's memory, or in the peer's for a READ
	slot     int
	at       int // offset in the peer's memory, of a WRITE
	imm      uint32
	signaled bool
	want     uint64 // atomics: the value to come back
	solicit  bool
	inline   bool
	via      *export      // that it opens, closes or goes by
	inv      mrtable.RKey // SEND with Invalidate
}

// side is one end of the world with its model.
type side struct {
	*end
	index   int
	rand    *simnet.Rand
	model   []byte // what memory must be
	ops     []op   // posted, not known to be done
	nextID  uint64
	toPost  int
	sum     uint64 // model of the peer's addCell
	swapVal uint64 // model of the peer's swapCell
	// Messages of the peer that consume a receive, in order.
	arrivals []op
	posted   []uint64 // receives in the queue
	nextRecv uint64
	recvDue  []time.Time // when further receives are posted
	exports  [2]*export
	blocked  time.Time // a full socket until then
	unsigned int       // unsignaled requests since the last signaled one
}

// world is two queue pairs, both sending, on one bad network.
type world struct {
	net    *simnet.Net
	sides  [2]*side
	rand   simnet.Rand
	opts   options
	ctrl   worldConfig
	steps  int
	err    error
	lastOK time.Time
	opened int // exports, by requests
	closed int // exports, by the peer
	trace  func(string)
	twin   *twin // nil: nothing is compared
}

// worldConfig is what a test asks for.
type worldConfig struct {
	seed   uint64
	ops    int // a side
	net    simnet.Config
	refuse bool // sockets refuse packets at random
	late   bool // receives are posted late at random
	opts   options
}

func newWorld(t testing.TB, c worldConfig) *world {
	w := &world{ctrl: c, rand: simnet.NewRand(c.seed), opts: c.opts}
	c.net.Seed = w.rand.Uint64()
	w.net = simnet.New(c.net, start)
	o := c.opts.withDefaults()
	o.memSize = worldSize
	o.memAccess |= mrtable.AccessMWBind
	for i := range w.sides {
		r := simnet.NewRand(w.rand.Uint64())
		w.sides[i] = &side{end: newEnd(t, bth.QPN(0x11*(i+1)), byte(i+1), o), index: i, rand: &r, toPost: c.ops, nextID: 1, nextRecv: 1}
	}
	a, b := w.sides[0], w.sides[1]
	for _, s := range w.sides {
		clear(s.mem[recvOff:])
		s.model = append([]byte(nil), s.mem...)
		s.makeExports(t)
	}
	a.to(qpstate.RTS, b.end, o)
	b.to(qpstate.RTS, a.end, o)
	w.lastOK = start
	return w
}

func (w *world) peer(s *side) *side { return w.sides[1-s.index] }

func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// run drives the world until everything posted is done.
func (w *world) run() error {
	for w.err == nil {
		now := w.net.Now()
		for _, s := range w.sides {
			w.postRecvs(s, now)
			w.postSends(s, now)
			w.transmit(s, now)
			w.harvest(s, now)
		}
		if w.err != nil || w.done() {
			break
		}
		at, ok := w.nextTime(now)
		if !ok {
			w.fail("stuck: nothing is due and %d + %d requests wait", len(w.sides[0].ops), len(w.sides[1].ops))
			break
		}
		if at.Sub(w.lastOK) > stuckAfter {
			w.fail("stuck: no completion for %v", stuckAfter)
			break
		}
		w.net.Advance(at)
		w.deliver()
		w.timeouts()
		if w.steps++; w.steps > 5_000_000 {
			w.fail("endless")
		}
	}
	if w.err == nil {
		w.checkEnd()
	}
	return w.err
}

func (w *world) done() bool {
	for _, s := range w.sides {
		if s.toPost > 0 || len(s.ops) > 0 || len(s.arrivals) > 0 {
			return false
		}
	}
	return true
}

func (w *world) nextTime(now time.Time) (time.Time, bool) {
	at, ok := w.net.Next()
	take := func(t time.Time) {
		if !t.IsZero() && (!ok || t.Before(at)) {
			at, ok = t, true
		}
	}
	for _, s := range w.sides {
		take(s.qp.NextTimeout())
		if s.blocked.After(now) {
			take(s.blocked)
		}
		if len(s.recvDue) > 0 {
			take(s.recvDue[0])
		}
		if s.mayPost() {
			take(now) // requests were done without a packet
		}
	}
	if ok && !at.After(now) {
		at = now.Add(time.Nanosecond)
	}
	return at, ok
}

func (w *world) deliver() {
	for {
		d, ok := w.twin.take(w.net)
		if !ok {
			return
		}
		s, from := w.sides[d.To], w.sides[d.From]
		p := &s.parsed
		p.Src, p.Dst = from.gid, s.gid
		h := bth.NetHeader{Src: from.gid, Dst: s.gid, SrcPort: worldPort, DstPort: 4791}
		if p.Parse(d.Data) != nil {
			continue
		}
		if bth.ICRC(h.Seed(len(d.Data)), p.Covered()) != p.ICRC() {
			continue
		}
		if d.Damaged && d.Data[4] == 0 { // byte 4 of the BTH is not covered
			w.fail("a corrupted packet passes the ICRC: %s", packetText(d.Data))
			return
		}
		v := s.qp.HandlePacket(w.net.Now(), p)
		if w.trace != nil {
			w.trace(fmt.Sprintf("%v %d<- %s: %v", w.net.Now().Sub(start), d.To, packetText(d.Data), v))
		}
		w.twin.handled(s.end, d.Data, v)
		w.twin.takeRun(w.net, s.end, &d, v, false)
		w.harvest(s, w.net.Now())
	}
}

func (w *world) timeouts() {
	now := w.net.Now()
	for _, s := range w.sides {
		if d := s.qp.NextTimeout(); !d.IsZero() && !d.After(now) {
			s.qp.HandleTimeout(now)
			if w.trace != nil {
				w.trace(fmt.Sprintf("%v %d timeout", now.Sub(start), s.index))
			}
		}
	}
}

// transmit pulls packets, until the socket refuses.
func (w *world) transmit(s *side, now time.Time) {
	if s.blocked.After(now) {
		return
	}
	for i := 0; ; i++ {
		if w.ctrl.refuse && s.rand.IntN(40) == 0 {
			s.blocked = now.Add(time.Duration(1 + s.rand.IntN(int(refuseFor))))
			return
		}
		n, _ := s.qp.PollTransmit(now, s.buf[:])
		if n == 0 {
			w.twin.note(s.end)
			return
		}
		if w.trace != nil {
			w.trace(fmt.Sprintf("%v %d-> %s", now.Sub(start), s.index, packetText(s.buf[:n])))
		}
		w.net.Send(s.index, 1-s.index, s.buf[:n])
		i += w.twin.sendRun(w, s, now, n)
		if i > 1<<16 {
			w.fail("endless transmission")
			return
		}
	}
}

// postRecvs keeps receives posted, some of them late.
func (w *world) postRecvs(s *side, now time.Time) {
	for len(s.recvDue) > 0 && !s.recvDue[0].After(now) {
		s.recvDue = s.recvDue[1:]
		s.addRecv(now)
	}
	for len(s.posted)+len(s.recvDue) < slots {
		if w.ctrl.late && s.rand.IntN(3) == 0 || len(s.recvDue) > 0 {
			due := now.Add(time.Duration(s.rand.IntN(int(lateRecv))))
			if k := len(s.recvDue); k > 0 && due.Before(s.recvDue[k-1]) {
				due = s.recvDue[k-1]
			}
			s.recvDue = append(s.recvDue, due)
			continue
		}
		s.addRecv(now)
	}
}

func (s *side) addRecv(now time.Time) {
	id := s.nextRecv
	s.nextRecv++
	off := recvOff + int(id%slots)*slotSize
	k := 1 + s.rand.IntN(700)
	s.postRecv(now, id, s.sge(off, k), s.sge(off+k, slotSize-k))
	s.posted = append(s.posted, id)
}

var worldOps = [...]wq.Opcode{
	wq.Send, wq.SendWithImm, wq.RDMAWrite, wq.RDMAWriteWithImm, wq.RDMARead, wq.RDMARead,
	wq.AtomicFetchAndAdd, wq.AtomicCmpAndSwp, wq.SendWithInv, wq.LocalInv,
}

// mayPost says whether there is something to post, and a slot for it: the slot's
// last user must be known to be done.
func (s *side) mayPost() bool {
	return s.toPost > 0 && len(s.ops) < maxPending && (len(s.ops) == 0 || s.ops[0].id+slots > s.nextID)
}

func (w *world) postSends(s *side, now time.Time) {
	for s.mayPost() {
		o := op{id: s.nextID, code: worldOps[s.rand.IntN(len(worldOps))], imm: uint32(s.rand.Uint64())}
		o.slot = int(o.id) % slots
		o.n = s.length()
		o.src = s.rand.IntN(slotSize)
		if o.code == wq.RDMARead {
			o.src += readOff
		}
		s.unsigned++
		o.signaled = s.rand.IntN(3) > 0 || s.unsigned >= slots-1 || s.toPost == 1
		if o.signaled {
			s.unsigned = 0
		}
		o.solicit = s.rand.IntN(2) == 0
		if !w.postOp(s, now, &o) {
			return
		}
	}
}

// length is a message's: often around the boundaries of packets.
func (s *side) length() int {
	switch s.rand.IntN(6) {
	case 0:
		return s.rand.IntN(5)
	case 1:
		return 256<<s.rand.IntN(5) + s.rand.IntN(3) - 1
	case 2:
		return s.rand.IntN(slotSize - recvSpare)
	default:
		return s.rand.IntN(3000)
	}
}

func (w *world) postOp(s *side, now time.Time, o *op) bool {
	peer := w.peer(s)
	wr := wq.SendWR{WRID: o.id, Opcode: o.code, ImmData: o.imm, RKey: peer.mr.RKey()}
	if o.signaled {
		wr.Flags |= wq.SendSignaled
	}
	if o.solicit {
		wr.Flags |= wq.SendSolicited
	}
	if s.rand.IntN(5) == 0 {
		wr.Flags |= wq.SendFence
	}
	switch {
	case o.code == wq.LocalInv:
		s.planLocal(o, &wr)
	case o.code == wq.SendWithInv:
		w.planInvalidate(s, o, &wr)
	case o.code == wq.RDMAWrite || o.code == wq.RDMAWriteWithImm:
		o.at = writeOff + o.slot*slotSize
		wr.RemoteAddr = memBase + uint64(o.at)
		w.planVia(s, o, &wr)
	case o.code == wq.RDMARead:
		w.planVia(s, o, &wr)
	}
	cut := s.rand.IntN(o.n + 1)
	split := func(off int) []wq.SGE { return []wq.SGE{s.sge(off, cut), s.sge(off+cut, o.n-cut)} }
	switch {
	case o.code == wq.LocalInv || o.code == wq.BindMW || o.code == wq.RegMR:
	case o.code == wq.RDMARead:
		wr.RemoteAddr = memBase + uint64(o.src)
		wr.SGList = split(landOff + o.slot*slotSize)
	case o.code == wq.AtomicFetchAndAdd:
		o.n, wr.CompareAdd = 8, s.rand.Uint64()
		wr.RemoteAddr = memBase + addCell
		wr.SGList = []wq.SGE{s.sge(resultOff+8*o.slot, 8)}
		o.want = s.sum
		s.sum += wr.CompareAdd
		binary.NativeEndian.PutUint64(peer.model[addCell:], s.sum)
	case o.code == wq.AtomicCmpAndSwp:
		o.n, wr.CompareAdd, wr.Swap = 8, s.swapVal, s.rand.Uint64()
		if s.rand.IntN(3) == 0 {
			wr.CompareAdd++ // does not match
		}
		wr.RemoteAddr = memBase + swapCell
		wr.SGList = []wq.SGE{s.sge(resultOff+8*o.slot, 8)}
		o.want = s.swapVal
		if wr.CompareAdd == s.swapVal {
			s.swapVal = wr.Swap
		}
		binary.NativeEndian.PutUint64(peer.model[swapCell:], s.swapVal)
	default:
		if o.n <= 200 && s.rand.IntN(2) == 0 {
			o.inline = true
			wr.Flags |= wq.SendInline
			wr.Inline = append([]byte(nil), s.mem[o.src:o.src+o.n]...)
		} else {
			wr.SGList = split(o.src)
		}
	}
	if err := s.qp.PostSend(now, &wr); err != nil {
		w.fail("side %d: post %d: %v", s.index, o.id, err)
		return false
	}
	s.nextID++
	s.toPost--
	s.ops = append(s.ops, *o)
	if o.code == wq.RDMAWrite {
		copy(peer.model[o.at:], s.mem[o.src:o.src+o.n])
	}
	if o.code == wq.RDMAWriteWithImm || o.code == wq.Send || o.code == wq.SendWithImm || o.code == wq.SendWithInv {
		peer.arrivals = append(peer.arrivals, *o)
	}
	return true
}

// harvest checks completions as they come.
func (w *world) harvest(s *side, now time.Time) {
	for i := range s.sendCQ.wcs {
		w.sendDone(s, &s.sendCQ.wcs[i])
		w.lastOK = now
	}
	for i := range s.recvCQ.wcs {
		w.recvDone(s, &s.recvCQ.wcs[i], s.recvCQ.solicited[i])
		w.lastOK = now
	}
	s.sendCQ.take0()
	s.recvCQ.take0()
}

func (c *completions) take0() { c.wcs, c.solicited = c.wcs[:0], c.solicited[:0] }

// sendDone: the completion must be of the oldest signaled request, and implies
// those before it.
func (w *world) sendDone(s *side, wc *cq.WC) {
	if wc.Status != cq.Success {
		w.fail("side %d: %s", s.index, wcText(wc))
		return
	}
	for len(s.ops) > 0 {
		o := s.ops[0]
		s.ops = s.ops[1:]
		w.checkOp(s, &o)
		if o.id == wc.WRID {
			if !o.signaled {
				w.fail("side %d: completion of request %d, which is not signaled", s.index, o.id)
			}
			if int(wc.ByteLen) != o.n {
				w.fail("side %d: request %d: byte_len %d, want %d", s.index, o.id, wc.ByteLen, o.n)
			}
			return
		}
		if o.signaled {
			w.fail("side %d: completion of %d, expected %d", s.index, wc.WRID, o.id)
			return
		}
	}
	w.fail("side %d: completion of %d, which was not posted or is done", s.index, wc.WRID)
}

// checkOp looks at the memory that a request that is done has changed.
func (w *world) checkOp(s *side, o *op) {
	peer := w.peer(s)
	w.localDone(s, o)
	switch {
	case o.code == wq.RDMARead:
		at := landOff + o.slot*slotSize
		copy(s.model[at:], peer.mem[o.src:o.src+o.n])
		if !bytes.Equal(s.mem[at:at+o.n], s.model[at:at+o.n]) {
			w.fail("side %d: READ %d of %d bytes: data differs", s.index, o.id, o.n)
		}
	case o.code == wq.AtomicFetchAndAdd || o.code == wq.AtomicCmpAndSwp:
		at := resultOff + 8*o.slot
		binary.NativeEndian.PutUint64(s.model[at:], o.want)
		if got := binary.NativeEndian.Uint64(s.mem[at:]); got != o.want {
			w.fail("side %d: %v %d returned %#x, want %#x", s.index, o.code, o.id, got, o.want)
		}
	case o.code == wq.RDMAWrite:
		if !bytes.Equal(peer.mem[o.at:o.at+o.n], s.mem[o.src:o.src+o.n]) {
			w.fail("side %d: WRITE %d of %d bytes: data differs", s.index, o.id, o.n)
		}
	}
}

// recvDone: receives complete in order, with the peer's messages in order.
func (w *world) recvDone(s *side, wc *cq.WC, solicited bool) {
	if wc.Status != cq.Success {
		w.fail("side %d: receive %s", s.index, wcText(wc))
		return
	}
	if len(s.posted) == 0 || s.posted[0] != wc.WRID {
		w.fail("side %d: receive %d completes, posted are %v", s.index, wc.WRID, s.posted)
		return
	}
	if len(s.arrivals) == 0 {
		w.fail("side %d: receive %d completes, nothing was sent", s.index, wc.WRID)
		return
	}
	o := s.arrivals[0]
	s.arrivals, s.posted = s.arrivals[1:], s.posted[1:]
	src := w.peer(s).mem[o.src : o.src+o.n]
	at := recvOff + int(wc.WRID%slots)*slotSize
	if o.code == wq.RDMAWriteWithImm {
		at = o.at
	}
	copy(s.model[at:], src)
	if !bytes.Equal(s.mem[at:at+o.n], src) {
		w.fail("side %d: message %d of %d bytes: data differs", s.index, o.id, o.n)
	}
	if int(wc.ByteLen) != o.n || solicited != o.solicit {
		w.fail("side %d: message %d: byte_len %d, solicited %v, want %d, %v", s.index, o.id, wc.ByteLen, solicited, o.n, o.solicit)
	}
	if hasImm := o.code == wq.SendWithImm || o.code == wq.RDMAWriteWithImm; hasImm != (wc.Flags&cq.WithImm != 0) || hasImm && wc.ImmData != o.imm {
		w.fail("side %d: message %d: immediate %#x", s.index, o.id, wc.ImmData)
	}
	w.invalidated(s, &o, wc)
}

// checkEnd compares all memory with the model, and looks for what is left.
func (w *world) checkEnd() {
	for _, s := range w.sides {
		for i := range s.mem {
			if s.mem[i] != s.model[i] {
				w.fail("side %d: byte at %#x is %#x, want %#x", s.index, i, s.mem[i], s.model[i])
				return
			}
		}
		if s.qp.State() != qpstate.RTS {
			w.fail("side %d: state %v", s.index, s.qp.State())
		}
		w.checkExportsEnd(s)
	}
}

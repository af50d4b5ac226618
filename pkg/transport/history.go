package transport

import (
	"errors"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/wq"
)

// What a queue pair remembers for a person who asks why it failed: of fixed size,
// written where something goes wrong, never for a packet that is in order.

// TroubleKind says what went wrong with a queue pair.
type TroubleKind uint8

// Kinds of trouble.
const (
	TroubleNone       TroubleKind = iota
	TroubleNoAnswer               // retry_cnt is used up
	TroubleNotReady               // rnr_retry is used up
	TroubleRefused                // the peer refused a request: Syndrome
	TroubleBadAnswer              // the peer's answer is none to the request
	TroubleLocal                  // a request of this end could not be carried out
	TroubleRequest                // this end refused a request of the peer: Syndrome
	TroubleReplay                 // memory that a READ was promised went away
	TroubleFatal                  // the adapter ended it: a full completion queue, a memory fault
	TroubleAskedFor               // the program moved it to ERR
	TroubleKindsCount             // how many there are
)

// Why says more exactly what was wrong.
type Why uint8

// Reasons, with the kinds of trouble that have them.
const (
	WhyNone Why = iota

	WhyTimeout // NoAnswer: the ACK timer
	WhyGap     // NoAnswer: the peer asked for the packet each time
	WhyImplied // NoAnswer: answers showed that one was lost

	WhyKey         // Local, Request: no region or window has the key
	WhyPD          // the key is of another protection domain
	WhyWindowQP    // the window is bound to another queue pair
	WhyRights      // the key does not grant it
	WhyBounds      // the range reaches outside
	WhyMemoryGone  // the memory cannot be reached
	WhyShortList   // the buffers are shorter than the message
	WhyBind        // a bind, an invalidation or a fast registration that is not allowed
	WhyNoReads     // Local: max_rd_atomic is 0
	WhyNoAH        // Local: no such address handle
	WhyDatagram    // Local: longer than the path MTU
	WhySuccession  // Request: a Middle or Last without a First, or a First inside a message
	WhyUnsupported // Request: an operation that there is not
	WhyDisabled    // Request: qp_access_flags do not allow it
	WhyReadsFull   // Request: more than max_dest_rd_atomic
	WhyMTU         // the packet's size is not that of the path MTU
	WhyLength      // Request: pad, DMA length or payload do not fit
	WhyAlign       // Request: an atomic's address
	WhyRecvShort   // Request: the receive is smaller than the message
	WhyInvalidate  // Request: a key that the peer may not invalidate
	WhyCount       // how many there are
)

// A Range is memory that a key did not grant.
type Range struct {
	Key          uint32
	Need, Has    mrtable.Access
	Addr, Length uint64 // asked for
	Base, Size   uint64 // what the key covers; Size 0: not known
}

// A Trouble is what a completion in error, or the end of a connection, came of.
// Fields beside Kind and At hold what the kind and the reason need, else zero.
type Trouble struct {
	Kind     TroubleKind
	Why      Why
	Status   cq.Status // of the completion that told of it
	Syndrome bth.Syndrome
	RNRTimer uint8      // NotReady: the peer's timer code
	Retries  uint8      // NoAnswer, NotReady: the attribute that was used up
	Op       wq.Opcode  // of the request of this end
	Opcode   bth.Opcode // of the peer's packet, or of its answer
	HasOp    bool       // Op has a meaning
	At       time.Time
	PSN      bth.PSN
	Remote   Range  // memory that was asked for at the other end, or here by it
	Size     uint32 // bytes of the packet or message
	Room     uint32 // bytes that there was room for
	Heard    uint64 // packets received before
}

// A NAK is the last refusal of a direction.
type NAK struct {
	Syndrome bth.Syndrome
	PSN      bth.PSN
	At       time.Time
}

// An Odd packet is one that was received and not simply accepted.
type Odd struct {
	Verdict Verdict
	Opcode  bth.Opcode
	PSN     bth.PSN
	Size    uint32 // bytes of payload
	At      time.Time
	Count   uint32 // of the same kind in a row; PSN and At are the last one's
}

// oddPackets is how many a queue pair remembers; our own tuning.
const oddPackets = 4

// History is what a queue pair remembers.
type History struct {
	First            Trouble // since the queue pair was last in INIT
	Troubles         uint32  // how many there were
	NAKRcvd, NAKSent NAK
	PeerMTU          int // bytes, where packets showed that it is another one
	odd              [oddPackets]Odd
	odds             uint32

	doubt Range // the last range that was not granted, until a trouble takes it
	why   Why   // likewise its reason
}

// Odds gives the odd packets, the newest first.
func (h *History) Odds() (out []Odd) {
	for i := uint32(0); i < min(h.odds, oddPackets); i++ {
		out = append(out, h.odd[(h.odds-1-i)%oddPackets])
	}
	return out
}

// History is what the queue pair remembers, nil when nothing happened; it goes on
// writing to it.
func (q *QP) History() *History { return q.history }

// past is the history, made when there is something to remember.
func (q *QP) past() *History {
	if q.history == nil {
		q.history = new(History)
	}
	return q.history
}

// strange remembers a packet that was not simply accepted.
func (h *History) strange(now time.Time, v Verdict, p *Packet) {
	if p.Info == nil {
		return
	}
	op, psn, size := p.BTH().Opcode(), p.BTH().PSN(), uint32(len(p.Payload))
	if h.odds > 0 {
		if o := &h.odd[(h.odds-1)%oddPackets]; o.Verdict == v && o.Opcode == op {
			o.PSN, o.Size, o.At = psn, size, now
			o.Count++
			return
		}
	}
	h.odd[h.odds%oddPackets] = Odd{v, op, psn, size, now, 1}
	h.odds++
}

// because notes why something is about to be refused.
func (h *History) because(w Why) { h.why, h.doubt = w, Range{} }

// doubtful notes a range that err says may not be used so.
func (q *QP) doubtful(key uint32, addr, n uint64, need mrtable.Access, err error) {
	h := q.past()
	h.doubt = Range{Key: key, Need: need, Addr: addr, Length: n}
	h.doubt.Base, h.doubt.Size, h.doubt.Has = q.cfg.Keys.Covers(key, q.cfg.PD)
	switch {
	case errors.Is(err, mrtable.ErrKey):
		h.why = WhyKey
	case errors.Is(err, mrtable.ErrPD):
		h.why = WhyPD
	case errors.Is(err, mrtable.ErrQP):
		h.why = WhyWindowQP
	case errors.Is(err, mrtable.ErrAccess):
		h.why = WhyRights
	case errors.Is(err, mrtable.ErrBounds):
		h.why = WhyBounds
	default:
		h.why = WhyMemoryGone
	}
}

// Stamp gives the first trouble its time, once: the engine's caller does when it
// sees a new one.
func (h *History) Stamp(now time.Time) {
	if h.First.Kind != TroubleNone && h.First.At.IsZero() {
		h.First.At = now
	}
}

// trouble remembers t, when it is the first, and takes over what was noted about
// memory.
func (q *QP) trouble(t Trouble) {
	h := q.past()
	h.Troubles++
	switch t.Kind {
	case TroubleLocal, TroubleRequest, TroubleReplay, TroubleBadAnswer:
		if t.Why == WhyNone {
			t.Why = h.why
		}
		if h.doubt != (Range{}) {
			t.Remote = h.doubt
		}
	case TroubleNone, TroubleNoAnswer, TroubleNotReady, TroubleRefused, TroubleFatal, TroubleAskedFor, TroubleKindsCount:
	}
	h.why, h.doubt = WhyNone, Range{}
	if h.First.Kind != TroubleNone {
		return
	}
	t.Heard = q.stats.RcvdPkts
	h.First = t
}

// headTrouble is trouble with the oldest request.
func (q *QP) headTrouble(t Trouble) {
	t.PSN = q.req.una
	if q.sq.Len() > 0 {
		e := q.sq.At(0)
		t.Op, t.HasOp, t.Size = e.Opcode, true, uint32(e.User[userLength])
		if t.Kind == TroubleRefused && e.RKey != 0 {
			t.Remote = Range{Key: uint32(e.RKey), Addr: e.RemoteAddr, Length: e.User[userLength]}
		}
	}
	q.trouble(t)
}

// requestTrouble is trouble with a request of the peer.
func (q *QP) requestTrouble(f fault, p *Packet) {
	do := &reactions[f]
	t := Trouble{
		Kind: TroubleRequest, Status: do.recv, Syndrome: do.syndrome, PSN: p.BTH().PSN(),
		Opcode: p.BTH().Opcode(), Size: uint32(len(p.Payload)),
	}
	switch f {
	case faultRecvShort:
		t.Why, t.Size, t.Room = WhyRecvShort, q.rsp.total+uint32(len(p.Payload)), uint32(min(q.rsp.room, 1<<32-1))
	case faultAlign:
		t.Why, t.Remote.Addr = WhyAlign, p.AtomicETH().VA()
	case faultInvalidate:
		t.Why, t.Remote.Key = WhyInvalidate, p.IETH().RKey()
	case faultLength:
		t.Why = WhyLength
		if q.past().PeerMTU != 0 {
			t.Why, t.Room = WhyMTU, q.mtu
		}
	case faultNone, faultInvalid, faultAccess, faultScatter, faultNotReady, faultResource, faultCount:
	}
	q.trouble(t)
}

// forgetTroubles begins anew, with a connection.
func (q *QP) forgetTroubles(next qpstate.State) {
	if next == qpstate.Init && q.state == qpstate.Reset {
		q.history = nil
	}
}

// answerTrouble is trouble with the peer's answer.
func (q *QP) answerTrouble(status cq.Status, p *Packet) {
	t := Trouble{Kind: TroubleBadAnswer, Status: status, Opcode: p.BTH().Opcode()}
	if status == cq.LocProtErr {
		t.Kind = TroubleLocal
	}
	if q.past().why == WhyMTU {
		t.Room = q.mtu
	}
	q.headTrouble(t)
}

// disabled notes that an operation is not there or not allowed.
func (h *History) disabled(o *operation, flags uint32) {
	h.because(WhyUnsupported)
	if o.execute != nil {
		h.why, h.doubt.Need, h.doubt.Has = WhyDisabled, o.need, mrtable.Access(flags)
	}
}

// noAH notes an address handle that is none.
func (h *History) noAH(ah uint32) {
	h.because(WhyNoAH)
	h.doubt.Key = ah
}

var troubleNames = [TroubleKindsCount]string{
	"none", "no_answer", "not_ready", "refused", "bad_answer", "local", "request", "replay", "fatal", "asked_for",
}

// String is the kind's word in a listing.
func (k TroubleKind) String() string { return word(troubleNames[:], int(k)) }

var whyNames = [WhyCount]string{
	"", "timeout", "gap", "implied", "key", "pd", "window_qp", "rights", "bounds", "memory_gone", "short_list", "bind", "no_reads",
	"no_ah", "datagram", "succession", "unsupported", "disabled", "reads_full", "mtu", "length", "align", "recv_short", "invalidate",
}

// String is the reason's word in a listing.
func (w Why) String() string { return word(whyNames[:], int(w)) }

func word(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "unknown"
}

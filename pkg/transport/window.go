package transport

import (
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/wq"
)

// Our own tuning of the windows, in bytes of window cost unless said otherwise.
const (
	// initialWindow is what a shared flow begins with: a receiver whose socket has
	// the kernel's default buffer has room for it.
	initialWindow = 64 << 10
	// maxQuantum is the most that a queue pair takes from a flow at once.
	maxQuantum = 64 << 10
	// maxUnasked is the most that is sent without asking for an acknowledgement.
	maxUnasked = 256 << 10
	// smallCost is a packet that may pass those who wait.
	smallCost = 1 << 10
	// firstProbe and lastProbe are after how many windows without a loss a flow
	// near its mark opens by a step: doubled by each loss.
	firstProbe, lastProbe = 128, 2048
	// rareLoss is how many windows apart losses below the mark are when they are
	// taken for chance.
	rareLoss = 4
)

// A direction is what is sent to the peer, or what READs make the peer send.
type direction uint8

const (
	outbound direction = iota
	inbound
	directions
)

func directionOf(op wq.Opcode) direction {
	if op == wq.RDMARead {
		return inbound
	}
	return outbound
}

// A flow is the window of one direction to one peer: how many bytes may be in
// flight there, of all its queue pairs together. What limits it is the buffer
// of the receiver's socket, or of something on the way; both lose what comes
// when they are full. So the window opens fast up to just below the mark where
// the last loss was, and from there on by small steps, ever more rarely the
// more losses confirm the mark; once it is well past the mark, the mark is
// raised, and steps come faster again.
//
// Bytes are counted by rounds, a round being a window of acknowledged bytes: a
// queue pair that neither sends nor hears anything for two rounds has nothing on
// its way any more. What it holds is lost, and not counted; it gets no more than
// a packet until it hears something. So a peer's queue pair that is gone holds up no other.
type flow struct {
	window uint32
	least  uint32 // two packets of the largest path MTU
	limit  uint32
	held   [2]uint32 // by the shares last counted in even and odd rounds
	round  uint32
	acked  uint32 // in this round,
	span   uint32 // which ends with so much acknowledged
	peak   uint32 // most that was used in this round,
	before uint32 // and in the one before
	total  uint64 // acknowledged ever

	mark   uint32 // where the last loss was; 0: not known
	every  uint32 // windows to a step
	clean  uint64 // acknowledged since the last step
	lossAt uint64 // total at the last loss
	epoch  uint32 // losses that shrank the window
	shrunk uint32 // round of the last one

	waiters
}

// A share is what one queue pair holds of a flow.
type share struct {
	flight uint32  // sent, not acknowledged
	credit uint32  // taken and not used
	stale  uint32  // in flight when the queue pair went back, and maybe still
	round  uint32  // in which it was counted last
	epoch  uint32  // in which something was sent last,
	since  bth.PSN // and the first PSN of that
	stuck  bool    // a loss, and nothing acknowledged since
	loose  bool    // not counted: others are answered, this one is not
	probe  bool    // loose, and may send one packet to get an answer
	lostAt uint64  // flow's total at that loss
}

// sum is what the flow counts of a share.
func (s *share) sum() uint32 {
	if s.loose {
		return 0
	}
	return s.flight + s.credit + s.stale
}

// awaits says that nothing more is sent before something was acknowledged.
func (s *share) awaits() bool { return (s.stale > 0 || s.loose && !s.probe) && s.flight > 0 }

// open prepares a flow.
func (f *flow) open(initial, limit, least uint32) {
	f.limit, f.least = max(limit, least), max(f.least, least)
	f.window = max(min(initial, f.limit), f.least)
	f.span = 2 * f.window
	f.every = firstProbe
}

// used is what counts as in flight or taken.
func (f *flow) used() uint32 { return f.held[0] + f.held[1] }

// room is what is left of the window.
func (f *flow) room() uint32 {
	if u := f.used(); u < f.window {
		return f.window - u
	}
	return 0
}

// quantum is what a queue pair takes at once, so that the others get a turn. It
// is long enough for a run of packets and one acknowledgement.
func (f *flow) quantum() uint32 { return min(max(f.window/4, f.least/2), maxQuantum) }

// touch counts a share in the present round. One that was forgotten, and still
// has something in flight, is not counted before it hears of it.
func (f *flow) touch(s *share) {
	if s.round == f.round {
		return
	}
	switch n := s.sum(); {
	case s.round == f.round-1:
		f.held[s.round&1] -= n
		f.held[f.round&1] += n
	case s.flight > 0:
		s.loose, s.probe = true, true
	default:
		f.held[f.round&1] += n
	}
	s.round = f.round
}

// join takes in a share that is not counted.
func (f *flow) join(s *share) {
	s.round = f.round - 2
	s.epoch = f.epoch - 1
}

// drop ends the counting of a share.
func (f *flow) drop(s *share) {
	f.touch(s)
	f.held[f.round&1] -= s.sum()
	s.round = f.round - 2
}

// nextRound forgets what was not touched in the round before this one. What is
// forgotten was lost, as far as the flow is concerned: it was sent before all
// that was acknowledged in a whole round.
func (f *flow) nextRound() {
	f.round++
	f.acked = 0
	gone := f.held[f.round&1]
	f.held[f.round&1] = 0
	f.before, f.peak = f.peak, f.used()
	if gone > 0 && int32(f.round-2-f.shrunk) > 0 {
		f.shrink()
	}
	f.span = max(f.window, f.used()) + f.window/4 + f.least
}

// allows says whether a queue pair may have cost more bytes in flight. One that
// has nothing in flight always may when nobody else has.
func (f *flow) allows(q *QP, s *share, cost uint32) bool {
	if s.credit >= cost {
		return true
	}
	if s.stale > 0 || s.loose {
		return !s.awaits()
	}
	u := f.used()
	if s.flight == 0 && cost <= smallCost && u+cost <= f.window+f.window/4 {
		return true
	}
	if f.first != nil && f.first != q {
		return false
	}
	if u == s.credit || u == 0 {
		return true
	}
	return u-min(s.credit, u)+cost <= f.window
}

// take makes the credit of a share at least cost; false when that may not be.
func (f *flow) take(q *QP, s *share, cost uint32) bool {
	if s.credit >= cost {
		return true
	}
	f.touch(s)
	if !f.allows(q, s, cost) {
		return false
	}
	need := cost - s.credit
	old := min(need, s.stale) // what went back is replaced, not added to
	s.stale -= old
	add := need - old
	if old == 0 && f.first == nil && !s.loose {
		add = max(add, min(f.quantum(), f.room()))
	}
	s.credit += old + add
	if s.loose {
		s.probe = false
	} else {
		f.held[f.round&1] += add
	}
	f.peak = max(f.peak, f.used())
	return true
}

// giveBack returns the credit of a share.
func (f *flow) giveBack(s *share) {
	if s.credit == 0 {
		return
	}
	f.touch(s)
	n := s.sum()
	s.credit = 0
	f.held[f.round&1] -= n - s.sum()
	f.offer()
}

// goBack makes all in flight old: it may still fill a buffer on the way, and
// would do so until something is acknowledged. When a full window was the reason
// only two packets are sent before that: were the first of them lost, no NAK
// would tell.
func (f *flow) goBack(s *share, full bool) {
	f.touch(s)
	n := s.flight + s.credit + s.stale
	s.flight = 0
	s.credit = f.least
	if !full {
		s.credit = max(f.least, f.window/4)
	}
	s.credit = min(n, s.credit)
	s.stale = n - s.credit
}

// forgive counts nothing of a share any more.
func (f *flow) forgive(s *share) {
	f.touch(s)
	f.held[f.round&1] -= s.sum()
	s.flight, s.credit, s.stale, s.loose = 0, 0, 0, false
	f.offer()
}

// ack takes cost bytes out of flight. That something arrived shows that nothing
// older is on its way.
func (f *flow) ack(s *share, cost uint32) {
	f.touch(s)
	old := s.sum()
	s.flight -= min(cost, s.flight)
	s.stale, s.stuck, s.loose, s.probe = 0, false, false, false
	f.held[f.round&1] += s.sum() - old
	f.total += uint64(cost)
	f.acked += cost
	f.grow(cost)
	if f.acked >= f.span {
		f.nextRound()
	}
	f.offer()
}

// grow opens the window for cost acknowledged bytes, when it was made use of.
func (f *flow) grow(cost uint32) {
	if max(f.peak, f.before) < f.window/2 || f.window >= f.limit {
		return
	}
	if f.mark == 0 || f.window < f.mark-f.mark/8-f.mark/32 {
		f.window = min(f.window+cost/4, f.limit)
		return
	}
	f.clean += uint64(cost)
	if f.clean < uint64(f.window)*uint64(f.every) {
		return
	}
	f.clean = 0
	f.window = min(f.window+max(f.window/32, f.least/2), f.limit)
	if f.window > f.mark+f.mark/8 {
		// More fits than was thought.
		f.mark = f.window
		if f.every /= 2; f.every == 0 {
			f.mark, f.every = 0, firstProbe
		}
	}
}

// lost takes note of a loss of the packet psn, the oldest in flight. The window
// shrinks once for all packets that were sent before it did, and not for a queue
// pair that alone gets no answer.
func (f *flow) lost(s *share, psn bth.PSN) (full bool) {
	if s.stuck && s.lostAt != f.total {
		f.loosen(s)
		return true
	}
	s.stuck, s.lostAt = true, f.total
	if s.epoch != f.epoch || psn.Before(s.since) {
		return true
	}
	return f.shrink()
}

// loosen stops counting a share.
func (f *flow) loosen(s *share) {
	f.touch(s)
	f.held[f.round&1] -= s.sum()
	s.loose = true
	f.offer()
}

// shrink makes the window smaller after a loss. full says that the window was
// full, or just before.
func (f *flow) shrink() (full bool) {
	u := max(f.peak, f.before)
	rare := f.total-f.lossAt > rareLoss*uint64(f.window)
	f.lossAt = f.total
	f.epoch++
	f.shrunk, f.clean = f.round, 0
	f.peak, f.before = 0, 0
	if u < f.window/2 {
		// It was not the window's doing, as far as one can see.
		f.window = max(f.window/2, f.least)
		return false
	}
	if rare && u < f.mark-f.mark/8 {
		// Nor was it here: so much has gone through before. What says otherwise
		// is the next loss, if it comes soon.
		f.mark -= f.mark / 32
		f.window = max(u-u/4-u/16, f.least)
		return true
	}
	if f.mark != 0 {
		f.every = min(2*f.every, lastProbe)
	}
	f.mark = min(u, f.window)
	f.window = max(f.mark-f.mark/4-f.mark/16, f.least)
	return true
}

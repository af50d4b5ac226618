package cq

// arming is the state of an arm word.
type arming uint8

const (
	armNone arming = iota
	armSolicited
	armAny
)

// SliceRing is a [Ring] on a slice together with its consumer's side, for
// tests and simulations. It is not safe for concurrent use.
type SliceRing struct {
	buf       []WC
	head      uint64 // next to be polled
	published uint64
	tail      uint64 // next to be put
	arm       arming
}

// NewSliceRing makes a ring of n entries.
func NewSliceRing(n int) *SliceRing { return &SliceRing{buf: make([]WC, n)} }

// Free implements [Ring].
func (r *SliceRing) Free() int { return len(r.buf) - int(r.tail-r.head) }

// Put implements [Ring]. A full ring drops wc.
func (r *SliceRing) Put(wc *WC) {
	if r.Free() == 0 {
		return
	}
	r.buf[r.tail%uint64(len(r.buf))] = *wc
	r.tail++
}

// Publish implements [Ring].
func (r *SliceRing) Publish() { r.published = r.tail }

// TakeArm implements [Ring].
func (r *SliceRing) TakeArm(solicited bool) bool {
	if r.arm == armAny || r.arm == armSolicited && solicited {
		r.arm = armNone
		return true
	}
	return false
}

// Arm asks for one event: at the next completion published, or at the next
// solicited one. Arming for any overrides an earlier solicited; the reverse
// does not weaken.
func (r *SliceRing) Arm(solicitedOnly bool) {
	if !solicitedOnly {
		r.arm = armAny
	} else if r.arm == armNone {
		r.arm = armSolicited
	}
}

// Poll moves published completions into dst and returns how many.
func (r *SliceRing) Poll(dst []WC) int {
	n := 0
	for n < len(dst) && r.head != r.published {
		dst[n] = r.buf[r.head%uint64(len(r.buf))]
		r.head++
		n++
	}
	return n
}

// Len is the number of published completions that wait to be polled.
func (r *SliceRing) Len() int { return int(r.published - r.head) }

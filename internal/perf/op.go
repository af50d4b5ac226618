package perf

import "fmt"

// Op is the operation that is measured.
type Op string

// The operations.
const (
	Write  Op = "write"  // RDMA WRITE
	Read   Op = "read"   // RDMA READ
	Send   Op = "send"   // SEND into posted receives
	Atomic Op = "atomic" // fetch-and-add, or compare-and-swap
)

// title is the operation as perftest's banner has it.
func (o Op) title() string {
	switch o {
	case Write:
		return "RDMA_Write"
	case Read:
		return "RDMA_Read"
	case Send:
		return "Send"
	case Atomic:
		return "Atomic"
	}
	return string(o)
}

// ParseOp gives the operation of a name.
func ParseOp(name string) (Op, error) {
	switch o := Op(name); o {
	case Write, Read, Send, Atomic:
		return o, nil
	}
	return "", fmt.Errorf("%q is none of write, read, send and atomic", name)
}

// inlines says whether the operation's data may be inline.
func (o Op) inlines() bool { return o == Write || o == Send }

// pingPong says whether its latency is measured there and back, and given as
// the half.
func (o Op) pingPong() bool { return o == Write || o == Send }

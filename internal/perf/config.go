package perf

import (
	"fmt"
	"net"
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// Params say what is measured. The client decides them, and the server takes
// them from it. Zero values stand for perftest's defaults, in parentheses.
type Params struct {
	Op      Op   `json:"op"`
	Latency bool `json:"latency"` // latency instead of bandwidth
	// Sizes are the bytes of a message, measured one after the other (65536;
	// latency 2; atomics 8, and no other).
	Sizes []int `json:"sizes"`
	// Iters is the number of operations of each queue pair and size (5000 for
	// write bandwidth, else 1000).
	Iters int `json:"iters"`
	// Duration measures each size for so long instead of Iters times.
	Duration time.Duration `json:"duration_ns"`
	TxDepth  int           `json:"tx_depth"` // requests in flight of a queue pair (128)
	RxDepth  int           `json:"rx_depth"` // receives posted of a queue pair (512)
	QPs      int           `json:"qps"`      // queue pairs (1); latency has one
	MTU      verbs.MTU     `json:"mtu"`      // path MTU (the port's active MTU)
	// Inline is up to which size data is inline (latency of write 220, of send
	// 236, as far as the adapter has it; else 0); negative: never.
	Inline int `json:"inline"`
	// CQMod is after how many requests one is signaled (100, or half of
	// TxDepth when that is less).
	CQMod int `json:"cq_mod"`
	// RDAtomic is how many READs and atomics of a queue pair are in flight on
	// the wire (16).
	RDAtomic int `json:"rd_atomic"`
	// CompareSwap takes compare-and-swap instead of fetch-and-add.
	CompareSwap bool `json:"compare_swap"`
	// Imm takes RDMA WRITE with immediate data for the latency of write, whose
	// arrival is a completion that can be slept for.
	Imm bool `json:"imm,omitempty"`
	// Check compares the data that arrived with what was sent.
	Check bool `json:"check"`
}

// Config is one side's.
type Config struct {
	Params
	// Host is the server to connect to; empty: be the server, for one client.
	Host string
	// Port is the TCP port of the exchange (18515), or that of the connection
	// manager.
	Port int
	// CM has the connection manager connect the queue pairs, and the exchange go
	// over a connection of package rdmanet instead of TCP. Both sides need it.
	CM bool
	// Listener is what a server accepts its client from, instead of Port.
	Listener net.Listener

	GIDIndex     uint8 // local address
	TrafficClass uint8
	Events       bool // this side sleeps on completion events; write latency needs Imm for it

	// Started is called when the peers are connected, Row with each result;
	// nil: not.
	Started func(*Report)
	Row     func(*Row)
	// Progress is called by the client a few times a second while it measures;
	// nil: not.
	Progress func(Progress)
}

// Progress says how far the measurement of one size is.
type Progress struct {
	Size int
	Part float64 // 0 to 1
}

// Specification values of perftest: its port and defaults.
const (
	DefaultPort    = 18515
	DefaultTxDepth = 128
	DefaultRxDepth = 512
	defaultBWSize  = 65536
	defaultLatSize = 2
	atomicSize     = 8
	defaultCQMod   = 100
	writeInline    = 220
	sendInline     = 236
)

// Our own limits; a client's wishes are hostile.
const (
	maxSizes    = 64
	maxSize     = 1 << 30
	maxIters    = 1 << 31
	maxDuration = 24 * time.Hour
	maxQPs      = 1024
	maxDepth    = 1 << 16
	maxMemory   = 1 << 30
	// checkMemory bounds the receive buffers that are kept apart to be
	// compared.
	checkMemory = 64 << 20
)

// AllSizes are the sizes of perftest's option -a: the powers of two from 2 to
// 8 MiB.
func AllSizes() []int {
	var s []int
	for n := 2; n <= 1<<23; n <<= 1 {
		s = append(s, n)
	}
	return s
}

// withDefaults fills in what is zero.
func (p Params) withDefaults(port *verbs.PortAttr, dev *verbs.DeviceAttr) Params {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	if len(p.Sizes) == 0 {
		switch {
		case p.Op == Atomic:
			p.Sizes = []int{atomicSize}
		case p.Latency:
			p.Sizes = []int{defaultLatSize}
		default:
			p.Sizes = []int{defaultBWSize}
		}
	}
	iters := 1000
	if p.Op == Write && !p.Latency {
		iters = 5000
	}
	def(&p.Iters, iters)
	def(&p.TxDepth, DefaultTxDepth)
	def(&p.RxDepth, DefaultRxDepth)
	def(&p.QPs, 1)
	def(&p.CQMod, min(defaultCQMod, max(p.TxDepth/2, 1)))
	def(&p.RDAtomic, 16)
	if p.MTU == 0 {
		p.MTU = port.ActiveMTU
	}
	if p.Inline == 0 && p.Latency {
		switch p.Op {
		case Write:
			p.Inline = min(writeInline, int(dev.MaxInline))
		case Send:
			p.Inline = min(sendInline, int(dev.MaxInline))
		case Read, Atomic:
		}
	}
	if p.Inline < 0 || !p.Op.inlines() {
		p.Inline = 0
	}
	return p
}

// ParamError says which parameter is wrong, and the limit.
type ParamError struct{ Text string }

// Error gives the text.
func (e *ParamError) Error() string { return e.Text }

func wrong(format string, args ...any) error { return &ParamError{fmt.Sprintf(format, args...)} }

// validate checks parameters that have no zero left, the peer's too. Its
// errors are of type *ParamError.
func (p *Params) validate() error {
	if _, err := ParseOp(string(p.Op)); err != nil {
		return wrong("%v", err)
	}
	for _, v := range []struct {
		what      string
		v, lo, hi int
	}{
		{"number of sizes", len(p.Sizes), 1, maxSizes},
		{"iterations", p.Iters, 1, maxIters},
		{"tx-depth", p.TxDepth, 1, maxDepth},
		{"rx-depth", p.RxDepth, 1, maxDepth},
		{"number of queue pairs", p.QPs, 1, maxQPs},
		{"cq-mod", p.CQMod, 1, p.TxDepth},
		{"outstanding READs and atomics", p.RDAtomic, 1, 255},
		{"inline size", p.Inline, 0, 1 << 16},
	} {
		if v.v < v.lo || v.v > v.hi {
			return wrong("%s %d is not in %d..%d", v.what, v.v, v.lo, v.hi)
		}
	}
	for _, s := range p.Sizes {
		if s < 1 || s > maxSize {
			return wrong("size %d is not in 1..%d", s, maxSize)
		}
		if p.Op == Atomic && s != atomicSize {
			return wrong("size %d: atomics have %d bytes", s, atomicSize)
		}
	}
	switch {
	case p.Duration < 0 || p.Duration > maxDuration:
		return wrong("duration %v is not in 0..%v", p.Duration, maxDuration)
	case p.Imm && (p.Op != Write || !p.Latency):
		return wrong("immediate data is for the latency of write")
	case p.Latency && p.QPs != 1:
		return wrong("latency is measured on 1 queue pair, not %d", p.QPs)
	case !p.MTU.Valid():
		return wrong("%v is not a path MTU", p.MTU)
	case p.layout().total() > maxMemory:
		return wrong("%d queue pairs with messages of %d bytes need %d bytes of memory, the limit is %d",
			p.QPs, p.layout().stride, p.layout().total(), maxMemory)
	}
	return nil
}

// Name is the test as perftest calls its programs, without "ib_".
func (p *Params) Name() string {
	if p.Latency {
		return string(p.Op) + "_lat"
	}
	return string(p.Op) + "_bw"
}

// layout is how both sides divide their memory: a local area for each queue
// pair, then for each its target areas, which the peer reaches or which
// receives name.
type layout struct {
	stride int64 // bytes of an area, a multiple of a cache line
	qps    int64
	slots  int64 // target areas of a queue pair
}

func (p *Params) layout() layout {
	size := 0
	for _, s := range p.Sizes {
		size = max(size, s)
	}
	l := layout{stride: (int64(size) + 63) &^ 63, qps: int64(p.QPs), slots: 1}
	if p.Op == Send && p.Check {
		l.slots = max(min(checkMemory/(l.stride*l.qps), int64(p.RxDepth)), 1)
	}
	return l
}

// receives says whether posted receives are taken.
func (p *Params) receives() bool { return p.Op == Send || p.Imm }

// polled says whether a message's arrival is seen by its last byte, which then
// counts.
func (p *Params) polled() bool { return p.Op == Write && p.Latency && !p.Imm }

func (l layout) total() int64 { return l.qps * l.stride * (1 + l.slots) }

func (l layout) local(qp int) int { return int(int64(qp) * l.stride) }
func (l layout) target(qp, slot int) int {
	return int((l.qps + int64(qp)*l.slots + int64(slot)) * l.stride)
}

package soak

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/softroce/softroce/internal/scenario"
	"github.com/softroce/softroce/internal/simnet"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
)

// Fault is a kind of trouble that a world makes beside its network.
type Fault uint8

// Kinds of trouble.
const (
	Restart    Fault = iota // an adapter died and came back
	Partition               // two adapters did not hear each other for a while
	ToERR                   // a program moved its queue pair to ERR
	BadRequest              // a request that cannot be carried out
	Drain                   // a program went to SQD and back
	LateRecv                // a receive was posted late
	BusySocket              // a socket took no packet for a while
	HostDown                // a packet came while the adapter was down
	Dereg                   // a region went while it was used
	NoMemory                // a request was refused for want of memory

	// Faults is the number of kinds.
	Faults
)

var faultNames = [Faults]string{
	"restarts", "partitions", "to-err", "bad-requests", "drains", "late-receives", "busy-sockets", "to-dead-hosts", "deregistrations", "posts-without-memory",
}

// String is the kind in a word.
func (f Fault) String() string { return faultNames[f] }

// Result is what a world did.
type Result struct {
	Packets     uint64 // sent
	Requests    uint64
	Completions uint64
	Deaths      uint64 // of connections

	UCSent, UCReceived uint64 // messages
	UDSent, UDReceived uint64

	BadICRC uint64 // packets dropped by the check of the ICRC
	NoQueue uint64 // packets to a queue pair that was not there
	Virtual time.Duration
	Net     simnet.Stats
	Faults  [Faults]uint64
}

// Add adds up.
func (r *Result) Add(o *Result) {
	r.Packets += o.Packets
	r.Requests += o.Requests
	r.Completions += o.Completions
	r.Deaths += o.Deaths
	r.UCSent += o.UCSent
	r.UCReceived += o.UCReceived
	r.UDSent += o.UDSent
	r.UDReceived += o.UDReceived
	r.BadICRC += o.BadICRC
	r.NoQueue += o.NoQueue
	r.Virtual += o.Virtual
	r.Net.Sent += o.Net.Sent
	r.Net.Lost += o.Net.Lost
	r.Net.Overflowed += o.Net.Overflowed
	r.Net.Duplicated += o.Net.Duplicated
	r.Net.Reordered += o.Net.Reordered
	r.Net.Corrupted += o.Net.Corrupted
	r.Net.Delivered += o.Net.Delivered
	r.Net.Blocked += o.Net.Blocked
	r.Net.Discarded += o.Net.Discarded
	for i := range r.Faults {
		r.Faults[i] += o.Faults[i]
	}
}

// String is one line: packets, requests, and faults by kind.
func (r *Result) String() string {
	var s strings.Builder
	n := &r.Net
	fmt.Fprintf(&s, "%d packets, %d requests, %d completions, %d connections died, %d of %d messages received on UC, %d of %d on UD; faults: lost %d, duplicated %d, reordered %d, corrupted %d, overflowed %d, blocked %d, discarded %d",
		r.Packets, r.Requests, r.Completions, r.Deaths, r.UCReceived, r.UCSent, r.UDReceived, r.UDSent, n.Lost, n.Duplicated, n.Reordered, n.Corrupted, n.Overflowed, n.Blocked, n.Discarded)
	for f := range Faults {
		fmt.Fprintf(&s, ", %v %d", f, r.Faults[f])
	}
	return s.String()
}

const (
	keptEvents  = 24 // of the world
	keptPackets = 24 // that something happened to
)

// faultLog keeps the last of what went wrong, for a report.
type faultLog struct {
	world   *world
	events  []string
	packets []struck
	at      int                  // where the next packet goes
	full    map[[2]int]time.Time // when a packet from one host to another met a full queue last
}

// overflow is when a packet between two hosts met a full queue last.
func (l *faultLog) overflow(a, b int) time.Time {
	t := l.full[[2]int{a, b}]
	if u := l.full[[2]int{b, a}]; u.After(t) {
		return u
	}
	return t
}

// struckBytes of a packet are kept: its headers, and a small payload.
const struckBytes = 128

// struck is a packet that something happened to.
type struck struct {
	at    time.Duration
	fault simnet.Fault
	data  [struckBytes]byte
}

func (s *struck) String() string {
	return fmt.Sprintf("%v %v %d>%d %s", s.at, s.fault.Kind, s.fault.From, s.fault.To, headText(s.fault.Data))
}

// headText writes the begin of a packet.
func headText(b []byte) string {
	var p bth.Packet
	if err := p.Parse(b); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%v of %v, psn=%#x", p.Opcode, p.BTH().DestQP(), uint32(p.BTH().PSN()))
}

// note keeps what the world did to itself.
func (l *faultLog) note(f Fault, format string, args ...any) {
	w := l.world
	w.result.Faults[f]++
	line := fmt.Sprintf("%v %v: ", w.now().Sub(start), f) + fmt.Sprintf(format, args...)
	w.trace("! %s", line)
	if len(l.events) == keptEvents {
		l.events = append(l.events[:0], l.events[keptEvents/2:]...)
	}
	l.events = append(l.events, line)
}

// packet keeps what the network did to a packet.
func (l *faultLog) packet(f simnet.Fault) {
	w := l.world
	if f.Kind == simnet.Overflowed {
		l.full[[2]int{f.From, f.To}] = w.now()
	}
	if w.cfg.Trace != nil {
		w.trace("! %v %d>%d %s", f.Kind, f.From, f.To, scenario.PacketText(f.Data))
	}
	if len(l.packets) < keptPackets {
		l.packets = append(l.packets, struck{})
	}
	// The text is made when it is needed: faults are many.
	s := &l.packets[l.at]
	s.at, s.fault = w.now().Sub(start), f
	s.fault.Data = append(s.data[:0], f.Data[:min(len(f.Data), struckBytes)]...)
	l.at = (l.at + 1) % keptPackets
}

// wrap adds to an error what went before it.
func (l *faultLog) wrap(err error, plan string) error {
	var s strings.Builder
	fmt.Fprintf(&s, "\nthe world: %s\nfaults of the world, the last ones:\n", plan)
	for _, e := range l.events {
		s.WriteString("  " + e + "\n")
	}
	s.WriteString("faults of the network, the last ones:\n")
	for i := range l.packets {
		k := i
		if len(l.packets) == keptPackets {
			k = (l.at + i) % keptPackets
		}
		s.WriteString("  " + l.packets[k].String() + "\n")
	}
	return fmt.Errorf("%w%s", err, strings.TrimRight(s.String(), "\n"))
}

func wcText(wc *cq.WC) string { return scenario.WCText(wc) }

func word(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }

func putWord(b []byte, v uint64) { binary.NativeEndian.PutUint64(b, v) }

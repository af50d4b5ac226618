package impair

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/softroce/softroce/pkg/bth"
)

// Validate reports the first thing wrong with a rule.
func (r *Rule) Validate() error {
	if _, err := compile(r.Ops); err != nil {
		return err
	}
	for _, d := range []struct {
		name string
		bad  bool
	}{
		{"delay", r.Delay < 0 || r.Delay > MaxTime || r.DelayMax < 0 || r.DelayMax > MaxTime},
		{"in", r.In < 0 || r.In > MaxTime},
		{"for", r.For < 0 || r.For > MaxTime},
	} {
		if d.bad {
			return fmt.Errorf("%s: a time must not be negative, or above %v", d.name, MaxTime)
		}
	}
	switch {
	case r.Action >= NumActions:
		return fmt.Errorf("no such action: %d", r.Action)
	case r.Action == Delay && (r.Delay == 0 || r.DelayMax != 0 && r.DelayMax <= r.Delay):
		return errors.New("delay wants a time, as 5ms, or a shorter and a longer one, as 1ms..4ms")
	case r.Action == Partition && !r.Peer.IsValid():
		return errors.New("partition wants the peer's address")
	case r.Action == Rate && (r.BitsPerSecond < minRate || r.BitsPerSecond > maxRate):
		return fmt.Errorf("rate of %d bits a second, want %d to %g", r.BitsPerSecond, uint64(minRate), float64(maxRate))
	case r.Copies < 0 || r.Copies > MaxCopies:
		return fmt.Errorf("%d copies, at most %d", r.Copies, MaxCopies)
	case r.Places < 0 || r.Places > MaxPlaces:
		return fmt.Errorf("%d places, at most %d", r.Places, MaxPlaces)
	case !(r.Percent >= 0 && r.Percent <= 100): // written so that NaN is refused
		return fmt.Errorf("%g%% is no percentage: more than 0%% and at most 100%%", r.Percent)
	case r.Change.At < -maxAt || r.Change.At > maxAt:
		return fmt.Errorf("place %d lies beyond every packet", r.Change.At)
	case r.Nth.To != 0 && r.Nth.To < r.Nth.From:
		return fmt.Errorf("nth %d..%d ends before it begins", r.Nth.From, r.Nth.To)
	case (r.QP|r.LocalQP|r.RemoteQP)&^bth.QPNMask != 0:
		return fmt.Errorf("a queue pair number has 24 bits: at most %#x", uint32(bth.QPNMask))
	case r.ByPSN && (r.PSN.From|r.PSN.To)&^uint64(bth.PSNMask) != 0:
		return fmt.Errorf("a PSN has 24 bits: at most %d", bth.PSNMask)
	}
	return nil
}

// String is the rule as Parse reads it.
func (r *Rule) String() string {
	b := new(strings.Builder)
	b.WriteString(r.Action.String())
	r.writeAction(b)
	r.writeWhich(b)
	if r.Nth.From > 0 || r.Nth.To > 0 {
		b.WriteString(" nth " + r.Nth.nth())
	}
	if r.Every > 0 {
		fmt.Fprintf(b, " every %d", r.Every)
	}
	if r.Percent > 0 {
		b.WriteString(" " + strconv.FormatFloat(r.Percent, 'g', -1, 64) + "%")
	}
	if r.Seed != 0 {
		fmt.Fprintf(b, " seed %d", r.Seed)
	}
	if r.In > 0 {
		fmt.Fprintf(b, " in %v", r.In)
	}
	if r.For > 0 {
		fmt.Fprintf(b, " for %v", r.For)
	}
	return b.String()
}

func (r *Rule) writeAction(b *strings.Builder) {
	switch r.Action {
	case Delay:
		fmt.Fprintf(b, " %v", r.Delay)
		if r.DelayMax > r.Delay {
			fmt.Fprintf(b, "..%v", r.DelayMax)
		}
	case Duplicate:
		if r.Copies > 0 {
			fmt.Fprintf(b, " %d", r.Copies)
		}
	case Reorder:
		if r.Places > 0 {
			fmt.Fprintf(b, " %d", r.Places)
		}
	case Rate:
		b.WriteString(" " + rateText(r.BitsPerSecond))
	case Partition:
		b.WriteString(" " + peerText(r))
	case Corrupt:
		switch r.Change.Unit {
		case Bit:
			fmt.Fprintf(b, " bit %d", r.Change.At)
		case Byte:
			fmt.Fprintf(b, " byte %d", r.Change.At)
		case AnyBit:
		}
		if r.Change.Sealed {
			b.WriteString(" sealed")
		}
	case Drop, Count, NumActions:
	}
}

func (r *Rule) writeWhich(b *strings.Builder) {
	peer := r.Peer.IsValid() && r.Action != Partition
	if r.Dir != Both && !peer {
		b.WriteString(map[Direction]string{Sent: " sent", Received: " received"}[r.Dir])
	}
	if len(r.Ops) > 0 {
		b.WriteString(" " + strings.Join(r.Ops, ","))
	}
	for _, q := range []struct {
		word string
		qpn  bth.QPN
	}{{"qp", r.QP}, {"local-qp", r.LocalQP}, {"remote-qp", r.RemoteQP}} {
		if q.qpn != 0 {
			fmt.Fprintf(b, " %s %#x", q.word, uint32(q.qpn))
		}
	}
	if peer {
		b.WriteString(map[Direction]string{Sent: " to ", Received: " from ", Both: " peer "}[r.Dir] + peerText(r))
	}
	if r.ByPSN {
		fmt.Fprintf(b, " psn %d", r.PSN.From)
		if r.PSN.To != r.PSN.From {
			fmt.Fprintf(b, "..%d", r.PSN.To)
		}
	}
}

func peerText(r *Rule) string {
	if r.Peer.IsSingleIP() {
		return r.Peer.Addr().String()
	}
	return r.Peer.String()
}

// nth is the range as text.
func (r Range) nth() string {
	switch {
	case r.To == 0:
		return fmt.Sprintf("%d..", max(r.From, 1))
	case r.From == r.To:
		return strconv.FormatUint(r.From, 10)
	}
	return fmt.Sprintf("%d..%d", max(r.From, 1), r.To)
}

func rateText(v uint64) string {
	for _, u := range units {
		if v%u.bits == 0 {
			return strconv.FormatUint(v/u.bits, 10) + u.name
		}
	}
	return ""
}

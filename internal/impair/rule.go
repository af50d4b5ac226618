package impair

import (
	"net/netip"
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

// Action is what a rule does to a packet.
type Action uint8

// The actions.
const (
	Drop Action = iota
	Delay
	Duplicate
	Corrupt
	Reorder
	Rate
	Partition
	Count // nothing: it is only counted
	NumActions
)

var actionNames = [NumActions]string{"drop", "delay", "duplicate", "corrupt", "reorder", "rate", "partition", "count"}

// String is the action's word in a rule.
func (a Action) String() string {
	if a < NumActions {
		return actionNames[a]
	}
	return "unknown"
}

// Direction is which way a packet goes, seen from the adapter with the rules.
type Direction uint8

// The directions.
const (
	Both Direction = iota
	Sent
	Received
)

// Range are numbers from From to To, both included.
type Range struct{ From, To uint64 }

// A Rule says which packets and what becomes of them. Its text form is what
// Parse reads and String writes; the zero value drops everything.
type Rule struct {
	Action Action

	// The packets: all that the fields say, zero meaning any.

	Dir Direction
	// Ops are opcodes or classes of them, as "ACK" or "RC-SEND-ONLY"; a packet
	// of one of them matches.
	Ops []string
	// QP is a queue pair's number on either side, LocalQP and RemoteQP on one.
	QP, LocalQP, RemoteQP bth.QPN
	// Peer is the other adapter's address, or a prefix of several.
	Peer netip.Prefix
	// PSN bounds the packet sequence number, modulo 2^24, where ByPSN is set.
	PSN   Range
	ByPSN bool

	// Of these packets, counted from 1 by the rule:

	// Nth are those with these numbers; To 0 means without an end, and From 0 all.
	Nth Range
	// Every is each with a number that it divides.
	Every uint64
	// Percent is how many of a hundred, chosen by Seed; 0: all.
	Percent float64
	Seed    uint64

	// In is how long after the rule was put in place it begins, and For how
	// long it holds then; 0: at once, for good.
	In, For time.Duration

	// What becomes of them.

	// Delay and DelayMax bound a delay; DelayMax 0 means Delay always.
	Delay, DelayMax time.Duration
	// Copies is how many further copies of a packet there are; 0 means 1.
	Copies int
	// Places is how many packets of the same queue pair and direction go first;
	// 0 means 1.
	Places int
	// Change is what a corrupted packet suffers.
	Change Change
	// BitsPerSecond is a rate of UDP payload.
	BitsPerSecond uint64
}

// Change is what is wrong with a corrupted packet, counted from the first byte
// of the BTH.
type Change struct {
	// Unit is what At counts; with AnyBit, the seed chooses a bit.
	Unit Unit
	// At is the place; negative numbers count from the end, -1 being the last
	// byte, which is of the ICRC.
	At int
	// Sealed computes the ICRC anew behind the change, so that the packet looks
	// right to its receiver.
	Sealed bool
}

// Unit is what is changed.
type Unit uint8

// The units: a bit that the seed chooses, one that At says (7 is the lowest of
// the first byte), a whole byte.
const (
	AnyBit Unit = iota
	Bit
	Byte
)

// Bounds of what a rule may say; our own choice.
const (
	// MaxTime bounds the times of a rule.
	MaxTime = time.Hour
	// MaxCopies bounds the copies of a packet.
	MaxCopies = 16
	// MaxPlaces bounds how many packets another is put behind.
	MaxPlaces = 1024
	// MaxRules bounds the rules of an adapter, and MaxText their text, in bytes.
	MaxRules = 256
	MaxText  = 15 << 10
	// maxWord bounds a word of a rule, in bytes, so that an error can show it.
	maxWord = 64
	// maxAt bounds the place of a change, in bits.
	maxAt = 8 * 16384
	// minRate and maxRate bound a rate, in bits a second.
	minRate, maxRate = 1000, 1e12
)

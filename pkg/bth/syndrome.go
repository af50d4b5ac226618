package bth

import (
	"sort"
	"strconv"
)

// Syndrome is the first byte of an AETH (IBTA Vol 1 §9.7.5.2.1): bits 6 and 5 say
// acknowledgement, RNR NAK or NAK, the low five carry credits, timer or code.
type Syndrome uint8

// NAK syndromes (IBTA Vol 1 §9.7.5.2.2), and the acknowledgement without credits.
const (
	// AckNoCredit acknowledges and says nothing about credits: no end-to-end
	// flow control.
	AckNoCredit Syndrome = 0x1F

	NAKSequence          Syndrome = 0x60 // PSN sequence error
	NAKInvalidRequest    Syndrome = 0x61 // invalid request
	NAKRemoteAccess      Syndrome = 0x62 // remote access error
	NAKRemoteOperational Syndrome = 0x63 // remote operational error
	NAKInvalidRDRequest  Syndrome = 0x64 // invalid RD request
)

const (
	syndromeTypeMask  = 0xE0
	syndromeValueMask = 0x1F
	syndromeACK       = 0x00
	syndromeRNR       = 0x20
	syndromeNAK       = 0x60
)

// IsACK reports whether s acknowledges.
func (s Syndrome) IsACK() bool { return s&syndromeTypeMask == syndromeACK }

// IsRNR reports whether s says that the receiver was not ready.
func (s Syndrome) IsRNR() bool { return s&syndromeTypeMask == syndromeRNR }

// IsNAK reports whether s refuses; the reserved codes 0x65 to 0x7F included.
func (s Syndrome) IsNAK() bool { return s&syndromeTypeMask == syndromeNAK }

// IsReserved reports whether s is none of the three, or a reserved NAK code.
func (s Syndrome) IsReserved() bool {
	return s&0x80 != 0 || s&syndromeTypeMask == 0x40 || s.IsNAK() && s > NAKInvalidRDRequest
}

// NAKCode returns the low five bits of a NAK: 0 for a PSN sequence error.
func (s Syndrome) NAKCode() uint8 { return uint8(s & syndromeValueMask) }

// RNRTimer returns the timer code of an RNR NAK; see RNRTimerDuration.
func (s Syndrome) RNRTimer() uint8 { return uint8(s & syndromeValueMask) }

// RNRSyndrome returns the RNR NAK with this timer code, of which the low five
// bits count.
func RNRSyndrome(timer uint8) Syndrome { return syndromeRNR | Syndrome(timer&syndromeValueMask) }

// AckSyndrome returns the acknowledgement with this credit code, of which the
// low five bits count; see CreditCode.
func AckSyndrome(credit uint8) Syndrome { return Syndrome(credit & syndromeValueMask) }

// creditTable holds the number of receive requests that each credit code stands
// for (IBTA Vol 1 §9.7.7.2.1).
var creditTable = [...]int{
	0, 1, 2, 3, 4, 6, 8, 12,
	16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072,
	4096, 6144, 8192, 12288, 16384, 24576, 32768,
}

// Credits returns how many receive requests an acknowledgement announces. ok is
// false when s is no acknowledgement or carries no credit information.
func (s Syndrome) Credits() (n int, ok bool) {
	if !s.IsACK() || s == AckNoCredit {
		return 0, false
	}
	return creditTable[s], true
}

// CreditCode returns the credit code for n posted receive requests, rounding
// down; code 30 for 32,768 and more, 0 for a negative n.
func CreditCode(n int) uint8 {
	i := sort.Search(len(creditTable), func(i int) bool { return creditTable[i] > n })
	return uint8(max(i-1, 0))
}

// String names the syndrome, as "ACK", "ACK, 12 credits", "RNR NAK, 10.24ms",
// "NAK PSN sequence error" or "reserved 0x40".
func (s Syndrome) String() string {
	switch {
	case s.IsACK():
		if n, ok := s.Credits(); ok {
			return "ACK, " + strconv.Itoa(n) + " credits"
		}
		return "ACK"
	case s.IsRNR():
		return "RNR NAK, " + RNRTimerDuration(s.RNRTimer()).String()
	case s.IsReserved():
		return "reserved 0x" + strconv.FormatUint(uint64(s), 16)
	}
	return "NAK " + [...]string{
		"PSN sequence error", "invalid request", "remote access error",
		"remote operational error", "invalid RD request",
	}[s.NAKCode()]
}

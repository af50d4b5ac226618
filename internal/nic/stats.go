package nic

import (
	"errors"
	"syscall"

	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/udp4791"
)

// Drop is the reason for which a packet was dropped before it reached a queue
// pair's engine; the engine's own reasons are transport.Verdict.
type Drop uint8

// The reasons, in the order of the checks.
const (
	DropTruncated   Drop = iota // longer than the receive buffer
	DropIPLength                // a length in its IP or UDP header is wrong (backends that see them)
	DropIPChecksum              // its IPv4 header checksum is wrong
	DropIPOptions               // it has IPv4 options or IPv6 extension headers
	DropIPFragment              // it is a fragment
	DropUDPChecksum             // its UDP checksum is wrong
	DropShort                   // shorter than its headers, pad and ICRC
	DropVersion                 // TVer is not 0
	DropOpcode                  // a reserved opcode
	DropPad                     // PadCnt exceeds what follows the headers
	DropMalformed               // malformed in another way
	DropHandover                // steered to another worker, whose lane was full
	DropNoQP                    // no queue pair of that number
	DropNoGroup                 // to a multicast group that is not joined, or with a QPN that does not go with the address
	DropICRC                    // the ICRC is wrong
	DropMAD                     // to queue pair 1, and no datagram of 256 bytes
	DropImpaired                // by a rule that was put in place for it
	NumDrops
)

// dropOfFault names the reason of a fault that the backend saw.
func dropOfFault(f udp4791.Fault) Drop {
	switch f {
	case udp4791.FaultChecksum:
		return DropIPChecksum
	case udp4791.FaultOptions:
		return DropIPOptions
	case udp4791.FaultFragment:
		return DropIPFragment
	case udp4791.FaultUDPSum:
		return DropUDPChecksum
	case udp4791.FaultNone, udp4791.FaultLength, udp4791.NumFaults:
	}
	return DropIPLength
}

var dropNames = [NumDrops]string{
	"truncated", "ip_length", "ip_checksum", "ip_options", "ip_fragment", "udp_checksum",
	"short", "version", "opcode", "pad", "malformed", "handover", "no_qp", "no_group", "icrc", "mad", "impaired",
}

// String is the reason as metrics name it.
func (d Drop) String() string {
	if d < NumDrops {
		return dropNames[d]
	}
	return "unknown"
}

// WorkerStats is what one worker counted since the adapter started.
type WorkerStats struct {
	PacketsIn, BytesIn   uint64 // datagrams and UDP payload bytes received
	PacketsOut, BytesOut uint64 // the same, sent
	Receives             uint64 // buffers received, each one or more datagrams
	Local                uint64 // packets handed to a queue pair of this adapter, in both counts
	Sends                uint64 // sends, each of one or more datagrams
	SegmentsStopped      uint64 // routes on which segmentation turned out not to work
	Drops                [NumDrops]uint64
	Relearned            uint64 // a peer's identifications were learned anew
	Handovers            uint64 // packets handed to another worker
	RecvErrors           uint64 // failed receive calls
	SendBlocked          uint64 // times a send socket was full
	SendErrors           [maxErrno]uint64
	Turns, Sleeps        uint64
	Crowded              uint64 // yields that took long
	Faults               uint64 // memory faults on programs' memory
	BadSlots             uint64 // send queue slots that no library writes
	CQEvents             uint64 // completion events written
	EventsLost           uint64 // events a program's full pipe did not take
	CQOverflows          uint64
	CQLost               uint64 // completions lost to overflown queues
	ImpairFull           uint64 // packets lost since too many waited for a rule
}

// maxErrno bounds the errno values that are counted apart; 0 counts others.
const maxErrno = 134

func (s *WorkerStats) sendError(err error) {
	var se *udp4791.SendError
	n := syscall.Errno(0)
	if errors.As(err, &se) && se.Errno > 0 && se.Errno < maxErrno {
		n = se.Errno
	}
	s.SendErrors[n]++
}

// WorkerSnapshot is one worker at one moment.
type WorkerSnapshot struct {
	Stats     WorkerStats
	Transport transport.Counters
	QPs       [qpstate.Err + 1]int // by state
	Timers    int
	SlabBytes int
}

// snapshot reads everything between two turns.
func (w *worker) snapshot() (s WorkerSnapshot) {
	w.do(func() {
		s = w.counts()
		for _, q := range w.byQPN {
			s.QPs[q.engine.State()]++
		}
		s.Timers = len(w.timers.q)
		for _, l := range w.links {
			s.SlabBytes += l.slab.InUse()
		}
	})
	return s
}

// counts is the part of a snapshot that costs the same however many queue pairs
// there are; on the worker's goroutine.
func (w *worker) counts() WorkerSnapshot {
	return WorkerSnapshot{Stats: w.stats, Transport: w.counters}
}

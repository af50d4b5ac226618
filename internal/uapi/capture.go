package uapi

import (
	"encoding/binary"

	"github.com/softroce/softroce/pkg/bth"
)

// MaxCaptureQPs is how many queue pairs a capture chooses at most.
const MaxCaptureQPs = 64

// StartCaptureRequest asks for the packets of this program's user, or as root or
// the adapter's own user for those of all. It is answered with a HandleReply and
// the reading end of a pipe of pcapng as descriptor.
//
//	0 count of QPNs u32    4 peer's GID    20 QPNs u32
type StartCaptureRequest struct {
	QPNs []uint32 // only packets of these queue pairs of the adapter; none: of all
	Peer bth.GID  // only packets from and to this address; zero: any
}

// Append encodes the request.
func (m *StartCaptureRequest) Append(b []byte) []byte {
	b = append(appendU32s(b, uint32(len(m.QPNs))), m.Peer[:]...)
	return appendU32s(b, m.QPNs...)
}

// Decode reads the request. Error: ErrMalformed.
func (m *StartCaptureRequest) Decode(b []byte) error {
	r := reader{b: b}
	n := r.u32()
	m.Peer = bth.GID(r.take(16))
	if n > MaxCaptureQPs {
		r.fail("%d queue pairs, at most %d", n, MaxCaptureQPs)
		n = 0
	}
	m.QPNs = nil
	for range n {
		m.QPNs = append(m.QPNs, r.u32())
	}
	return r.end()
}

// CaptureReply counts a capture's packets: StopCapture, QueryCapture.
//
//	0 written u64    8 lost u64
type CaptureReply struct {
	Written uint64 // into the pipe, or on the way
	Lost    uint64 // because the reader was too slow
}

// Append encodes the reply.
func (m *CaptureReply) Append(b []byte) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, m.Written), m.Lost)
}

// Decode reads the reply. Error: ErrMalformed.
func (m *CaptureReply) Decode(b []byte) error {
	r := reader{b: b}
	m.Written, m.Lost = r.u64(), r.u64()
	return r.end()
}

package uapi

import "encoding/binary"

// CreateChannelRequest asks for a completion channel. It has no body; the
// answer is a HandleReply with the reading end of the channel's pipe.
type CreateChannelRequest struct{ Empty }

// RingRef says where a ring is and what one slot of it holds; 28 bytes. When
// its segment is new to the program, the segment's descriptor comes with the
// message; two new segments come in the order of the references.
//
//	0 segment u32    4 offset u64    12 slots u32    16 max_sge u32    20 max_inline u32    24 zero
type RingRef struct {
	Segment   uint32 // index among the program's ring segments
	Offset    uint64 // bytes
	Slots     uint32 // a power of two
	MaxSGE    uint32 // elements in one slot; 0 in a completion ring
	MaxInline uint32 // inline bytes in one slot; send rings only
}

func (f *RingRef) append(b []byte) []byte {
	b = appendU32s(b, f.Segment)
	b = binary.LittleEndian.AppendUint64(b, f.Offset)
	return appendU32s(b, f.Slots, f.MaxSGE, f.MaxInline, 0)
}

func (f *RingRef) read(r *reader) {
	*f = RingRef{Segment: r.u32(), Offset: r.u64(), Slots: r.u32(), MaxSGE: r.u32(), MaxInline: r.u32()}
	_ = r.u32()
}

// CreateCQRequest asks for a completion queue.
//
//	0 cqe u32    4 channel u32    8 vector u32
type CreateCQRequest struct {
	CQE     uint32 // completions that it must hold
	Channel uint32 // handle, 0 for none
	Vector  uint32
}

// Append encodes the request.
func (m *CreateCQRequest) Append(b []byte) []byte { return appendU32s(b, m.CQE, m.Channel, m.Vector) }

// Decode reads the request. Error: ErrMalformed.
func (m *CreateCQRequest) Decode(b []byte) error {
	r := reader{b: b}
	*m = CreateCQRequest{CQE: r.u32(), Channel: r.u32(), Vector: r.u32()}
	return r.end()
}

// CreateCQReply gives the queue's handle and ring.
//
//	0 handle u32    4 cqe u32    8 ring
type CreateCQReply struct {
	Handle uint32
	CQE    uint32 // completions that it holds
	Ring   RingRef
}

// Append encodes the reply.
func (m *CreateCQReply) Append(b []byte) []byte {
	return m.Ring.append(appendU32s(b, m.Handle, m.CQE))
}

// Decode reads the reply. Error: ErrMalformed.
func (m *CreateCQReply) Decode(b []byte) error {
	r := reader{b: b}
	m.Handle, m.CQE = r.u32(), r.u32()
	m.Ring.read(&r)
	return r.end()
}

// DestroyReply answers DestroyCQ and DestroyQP: how many events of the object
// were written to the pipes in its life, so that the library knows which are
// still unread.
//
//	0 completion events u32    4 async events u32
type DestroyReply struct{ CompEvents, AsyncEvents uint32 }

// Append encodes the reply.
func (m *DestroyReply) Append(b []byte) []byte { return appendU32s(b, m.CompEvents, m.AsyncEvents) }

// Decode reads the reply. Error: ErrMalformed.
func (m *DestroyReply) Decode(b []byte) error {
	r := reader{b: b}
	*m = DestroyReply{CompEvents: r.u32(), AsyncEvents: r.u32()}
	return r.end()
}

// ResizeCQRequest asks for another size of a completion queue. The answer is a
// CreateCQReply: the ring is a new one, into which the adapter moved what the
// program had not polled; the program does not poll between its request and the
// reply.
//
//	0 handle u32    4 cqe u32
type ResizeCQRequest struct{ Handle, CQE uint32 }

// Append encodes the request.
func (m *ResizeCQRequest) Append(b []byte) []byte { return appendU32s(b, m.Handle, m.CQE) }

// Decode reads the request. Error: ErrMalformed.
func (m *ResizeCQRequest) Decode(b []byte) error {
	r := reader{b: b}
	*m = ResizeCQRequest{Handle: r.u32(), CQE: r.u32()}
	return r.end()
}

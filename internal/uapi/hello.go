package uapi

import "encoding/binary"

// HelloRequest is the first message of a program. A version that is not the
// adapter's is refused with EPROTONOSUPPORT and a text that names both.
//
//	version u16, program text
type HelloRequest struct {
	Version uint16
	Program string // the program's name, for people
}

// Append encodes the request.
func (m *HelloRequest) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, m.Version)
	return appendText(b, m.Program)
}

// Decode reads the request. A version other than ours ends it: what follows is
// not known. Error: ErrMalformed.
func (m *HelloRequest) Decode(b []byte) error {
	r := reader{b: b}
	m.Version, m.Program = r.u16(), ""
	if r.err == nil && m.Version != Version {
		return nil
	}
	m.Program = r.text()
	return r.end()
}

// HelloReply opens the device. With it come these descriptors, in order: status
// page, doorbell segment, reading end of the async event pipe, and one eventfd
// for each worker.
//
//	version u16, workers u32, pid u32, limits, name text
type HelloReply struct {
	Version uint16
	Workers uint32
	PID     uint32 // the adapter's process, as it sees itself; see also the peer credentials
	Limits  Limits
	Name    string // the adapter's
}

// Limits are what one object may ask for; u32 each, in this order.
type Limits struct {
	MaxSendWR, MaxRecvWR uint32 // of one queue
	MaxSGE               uint32 // of one request
	MaxInline            uint32 // bytes
	MaxCQE               uint32
	MaxRDAtomic          uint32 // in either direction
}

// Append encodes the reply.
func (m *HelloReply) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, m.Version)
	l := &m.Limits
	b = appendU32s(b, m.Workers, m.PID, l.MaxSendWR, l.MaxRecvWR, l.MaxSGE, l.MaxInline, l.MaxCQE, l.MaxRDAtomic)
	return appendText(b, m.Name)
}

// Decode reads the reply. Error: ErrMalformed.
func (m *HelloReply) Decode(b []byte) error {
	r := reader{b: b}
	m.Version, m.Workers, m.PID = r.u16(), r.u32(), r.u32()
	m.Limits = Limits{
		MaxSendWR: r.u32(), MaxRecvWR: r.u32(), MaxSGE: r.u32(), MaxInline: r.u32(), MaxCQE: r.u32(), MaxRDAtomic: r.u32(),
	}
	m.Name = r.text()
	if m.Workers == 0 || m.Workers > MaxWorkers {
		r.fail("%d workers (between 1 and %d)", m.Workers, MaxWorkers)
	}
	return r.end()
}

package uapi

import (
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// CreateAHRequest asks for an address handle; the answer is a HandleReply. A UD
// request names the handle in its slot.
//
//	0 pd u32    4 address vector
type CreateAHRequest struct {
	PD   uint32
	Attr qpstate.AHAttr
}

// Append encodes the request.
func (m *CreateAHRequest) Append(b []byte) []byte { return appendAH(appendU32s(b, m.PD), &m.Attr) }

// Decode reads the request. Error: ErrMalformed.
func (m *CreateAHRequest) Decode(b []byte) error {
	r := reader{b: b}
	m.PD = r.u32()
	readAH(&r, &m.Attr)
	return r.end()
}

// McastRequest attaches a UD queue pair to a multicast group, or detaches it.
//
//	0 qp handle u32    4 gid    20 lid u32
type McastRequest struct {
	QP  uint32
	GID bth.GID // ff00::/8, or an IPv4-mapped group
	LID uint32  // not looked at on RoCE
}

// Append encodes the request.
func (m *McastRequest) Append(b []byte) []byte {
	b = appendU32s(b, m.QP)
	b = append(b, m.GID[:]...)
	return appendU32s(b, m.LID)
}

// Decode reads the request. Error: ErrMalformed.
func (m *McastRequest) Decode(b []byte) error {
	r := reader{b: b}
	m.QP = r.u32()
	copy(m.GID[:], r.take(16))
	m.LID = r.u32()
	return r.end()
}

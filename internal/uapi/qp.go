package uapi

import (
	"encoding/binary"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// CreateQPRequest asks for a queue pair.
//
//	0 pd u32    4 send cq u32    8 recv cq u32    12 srq u32    16 type u8    17 sq_sig_all u8    18 zero u16    20 cap
type CreateQPRequest struct {
	PD             uint32
	SendCQ, RecvCQ uint32 // handles
	SRQ            uint32 // handle, 0 for none
	Type           qpstate.Type
	SQSigAll       bool
	Cap            qpstate.Cap
}

// Append encodes the request.
func (m *CreateQPRequest) Append(b []byte) []byte {
	b = appendU32s(b, m.PD, m.SendCQ, m.RecvCQ, m.SRQ)
	b = appendFlag(append(b, byte(m.Type)), m.SQSigAll)
	return appendCap(append(b, 0, 0), &m.Cap)
}

// Decode reads the request. Error: ErrMalformed.
func (m *CreateQPRequest) Decode(b []byte) error {
	r := reader{b: b}
	*m = CreateQPRequest{PD: r.u32(), SendCQ: r.u32(), RecvCQ: r.u32(), SRQ: r.u32(), Type: qpstate.Type(r.u8()), SQSigAll: r.flag()}
	_ = r.u16()
	readCap(&r, &m.Cap)
	return r.end()
}

// CreateQPReply gives the queue pair's numbers and rings.
//
//	0 handle u32    4 qpn u32    8 doorbell index u32    12 worker u32    16 cap    36 send ring    64 receive ring
type CreateQPReply struct {
	Handle        uint32
	QPN           bth.QPN
	DoorbellIndex uint32 // in that worker's block of the doorbell segment
	Worker        uint32
	Cap           qpstate.Cap // at least what was asked for
	SQ, RQ        RingRef     // RQ is zero with an SRQ
}

// Append encodes the reply.
func (m *CreateQPReply) Append(b []byte) []byte {
	b = appendU32s(b, m.Handle, uint32(m.QPN), m.DoorbellIndex, m.Worker)
	return m.RQ.append(m.SQ.append(appendCap(b, &m.Cap)))
}

// Decode reads the reply. Error: ErrMalformed.
func (m *CreateQPReply) Decode(b []byte) error {
	r := reader{b: b}
	m.Handle, m.QPN, m.DoorbellIndex, m.Worker = r.u32(), bth.QPN(r.u32()), r.u32(), r.u32()
	readCap(&r, &m.Cap)
	m.SQ.read(&r)
	m.RQ.read(&r)
	if m.DoorbellIndex >= DoorbellIndices {
		r.fail("doorbell index %d (limit %d)", m.DoorbellIndex, DoorbellIndices)
	}
	return r.end()
}

// ModifyQPRequest changes a queue pair's attributes.
//
//	0 handle u32    4 mask u32    8 attributes
type ModifyQPRequest struct {
	Handle uint32
	Mask   qpstate.Mask
	Attr   qpstate.Attr
}

// Append encodes the request.
func (m *ModifyQPRequest) Append(b []byte) []byte {
	return appendAttr(appendU32s(b, m.Handle, uint32(m.Mask)), &m.Attr)
}

// Decode reads the request. Error: ErrMalformed.
func (m *ModifyQPRequest) Decode(b []byte) error {
	r := reader{b: b}
	m.Handle, m.Mask = r.u32(), qpstate.Mask(r.u32())
	readAttr(&r, &m.Attr)
	return r.end()
}

// ModifyQPReply tells the state that the queue pair is in now.
type ModifyQPReply struct{ State qpstate.State }

// Append encodes the reply.
func (m *ModifyQPReply) Append(b []byte) []byte { return append(b, byte(m.State)) }

// Decode reads the reply. Error: ErrMalformed.
func (m *ModifyQPReply) Decode(b []byte) error {
	r := reader{b: b}
	m.State = qpstate.State(r.u8())
	return r.end()
}

// QueryQPReply answers a HandleRequest of OpQueryQP with all attributes.
type QueryQPReply struct{ Attr qpstate.Attr }

// Append encodes the reply.
func (m *QueryQPReply) Append(b []byte) []byte { return appendAttr(b, &m.Attr) }

// Decode reads the reply. Error: ErrMalformed.
func (m *QueryQPReply) Decode(b []byte) error {
	r := reader{b: b}
	readAttr(&r, &m.Attr)
	return r.end()
}

// appendCap appends 20 bytes: max_send_wr, max_recv_wr, max_send_sge,
// max_recv_sge, max_inline_data, u32 each.
func appendCap(b []byte, c *qpstate.Cap) []byte {
	return appendU32s(b, c.MaxSendWR, c.MaxRecvWR, c.MaxSendSGE, c.MaxRecvSGE, c.MaxInlineData)
}

func readCap(r *reader, c *qpstate.Cap) {
	*c = qpstate.Cap{MaxSendWR: r.u32(), MaxRecvWR: r.u32(), MaxSendSGE: r.u32(), MaxRecvSGE: r.u32(), MaxInlineData: r.u32()}
}

// appendAttr appends 128 bytes: u32 fields, cap, both address vectors, u16
// fields, then the bytes.
func appendAttr(b []byte, a *qpstate.Attr) []byte {
	b = appendU32s(b, uint32(a.QKey), uint32(a.RQPSN), uint32(a.SQPSN), uint32(a.DestQPN), a.AccessFlags, a.RateLimit)
	b = appendCap(b, &a.Cap)
	b = appendAH(appendAH(b, &a.AH), &a.AltAH)
	b = binary.LittleEndian.AppendUint16(b, a.PKeyIndex)
	b = binary.LittleEndian.AppendUint16(b, a.AltPKeyIndex)
	b = append(b, byte(a.State), byte(a.CurState), byte(a.PathMTU), a.PathMigState)
	b = appendFlag(appendFlag(b, a.EnSQDAsyncNotify), a.SQDraining)
	b = append(b, a.MaxRDAtomic, a.MaxDestRDAtomic, a.MinRNRTimer, a.PortNum, a.Timeout, a.RetryCnt, a.RNRRetry)
	return append(b, a.AltPortNum, a.AltTimeout, 0)
}

func readAttr(r *reader, a *qpstate.Attr) {
	*a = qpstate.Attr{
		QKey: bth.QKey(r.u32()), RQPSN: bth.PSN(r.u32()), SQPSN: bth.PSN(r.u32()), DestQPN: bth.QPN(r.u32()),
		AccessFlags: r.u32(), RateLimit: r.u32(),
	}
	readCap(r, &a.Cap)
	readAH(r, &a.AH)
	readAH(r, &a.AltAH)
	a.PKeyIndex, a.AltPKeyIndex = r.u16(), r.u16()
	a.State, a.CurState, a.PathMTU, a.PathMigState = qpstate.State(r.u8()), qpstate.State(r.u8()), bth.MTU(r.u8()), r.u8()
	a.EnSQDAsyncNotify, a.SQDraining = r.flag(), r.flag()
	a.MaxRDAtomic, a.MaxDestRDAtomic, a.MinRNRTimer, a.PortNum = r.u8(), r.u8(), r.u8(), r.u8()
	a.Timeout, a.RetryCnt, a.RNRRetry = r.u8(), r.u8(), r.u8()
	a.AltPortNum, a.AltTimeout, _ = r.u8(), r.u8(), r.u8()
}

// appendAH appends 32 bytes.
//
//	0 dgid    16 flow label u32    20 dlid u16    22 sgid index, hop limit, traffic class, is_global, sl, rate, port u8    29 zero
func appendAH(b []byte, a *qpstate.AHAttr) []byte {
	b = append(b, a.DGID[:]...)
	b = appendU32s(b, a.FlowLabel)
	b = binary.LittleEndian.AppendUint16(b, a.DLID)
	b = append(b, a.SGIDIndex, a.HopLimit, a.TrafficClass)
	b = append(appendFlag(b, a.IsGlobal), a.SL, a.StaticRate, a.PortNum)
	return append(b, 0, 0, 0)
}

func readAH(r *reader, a *qpstate.AHAttr) {
	copy(a.DGID[:], r.take(16))
	a.FlowLabel, a.DLID = r.u32(), r.u16()
	a.SGIDIndex, a.HopLimit, a.TrafficClass, a.IsGlobal = r.u8(), r.u8(), r.u8(), r.flag()
	a.SL, a.StaticRate, a.PortNum = r.u8(), r.u8(), r.u8()
	_ = r.take(3)
}

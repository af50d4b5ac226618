package uapi

import (
	"encoding/binary"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// The connection manager's part: identifiers as those of librdmacm, whose
// connection is the adapter's, and channels that tell of them. The adapter does
// not touch the program's queue pair: it says with what to modify it.

// CreateCMChannelRequest asks for an event channel. It has no body; the answer
// is a HandleReply with the reading end of the channel's pipe, on which come
// records of CMRecordSize.
type CreateCMChannelRequest struct{ Empty }

// CreateCMIDRequest asks for an identifier; the answer is a HandleReply.
//
//	0 channel u32    4 port space u32
type CreateCMIDRequest struct {
	Channel uint32
	Space   uint32 // rdma_port_space: 0x0106 TCP, 0x0111 UDP
}

// Append encodes the request.
func (m *CreateCMIDRequest) Append(b []byte) []byte { return appendU32s(b, m.Channel, m.Space) }

// Decode reads the request. Error: ErrMalformed.
func (m *CreateCMIDRequest) Decode(b []byte) error {
	r := reader{b: b}
	*m = CreateCMIDRequest{Channel: r.u32(), Space: r.u32()}
	return r.end()
}

// CMAddr is an address and a port of the connection manager's port space; an
// IPv4 address is mapped, all zero is the wildcard of both families. 20 bytes.
//
//	0 address    16 port u16    18 zero
type CMAddr struct {
	GID  bth.GID
	Port uint16
}

func (a *CMAddr) append(b []byte) []byte {
	b = append(b, a.GID[:]...)
	b = binary.LittleEndian.AppendUint16(b, a.Port)
	return append(b, 0, 0)
}

func (a *CMAddr) read(r *reader) {
	copy(a.GID[:], r.take(16))
	a.Port = r.u16()
	_ = r.u16()
}

// CMAddrRequest binds an identifier to its own address (BindCM; Peer is not
// looked at), or resolves the way to a peer (ResolveCMAddr): Own all zero lets
// the host's routing table choose.
//
//	0 id u32    4 timeout in milliseconds u32    8 own    28 peer
type CMAddrRequest struct {
	ID      uint32
	Timeout uint32
	Own     CMAddr
	Peer    CMAddr
}

// Append encodes the request.
func (m *CMAddrRequest) Append(b []byte) []byte {
	return m.Peer.append(m.Own.append(appendU32s(b, m.ID, m.Timeout)))
}

// Decode reads the request. Error: ErrMalformed.
func (m *CMAddrRequest) Decode(b []byte) error {
	r := reader{b: b}
	m.ID, m.Timeout = r.u32(), r.u32()
	m.Own.read(&r)
	m.Peer.read(&r)
	return r.end()
}

// CMAddrReply tells an identifier's addresses as they are now: the answer to
// BindCM, ResolveCMAddr and QueryCM.
//
//	0 own    20 peer    40 address vector    72 mtu u8    73 zero
type CMAddrReply struct {
	Own, Peer CMAddr
	AH        qpstate.AHAttr // to the peer, once it is resolved
	MTU       bth.MTU        // of the path; 0 before
}

// Append encodes the reply.
func (m *CMAddrReply) Append(b []byte) []byte {
	b = appendAH(m.Peer.append(m.Own.append(b)), &m.AH)
	return append(b, byte(m.MTU), 0, 0, 0)
}

// Decode reads the reply. Error: ErrMalformed.
func (m *CMAddrReply) Decode(b []byte) error {
	r := reader{b: b}
	m.Own.read(&r)
	m.Peer.read(&r)
	readAH(&r, &m.AH)
	m.MTU = bth.MTU(r.u8())
	_ = r.take(3)
	return r.end()
}

// CMValueRequest is about one identifier and one number: the backlog of
// ListenCM, the channel of MigrateCM, the state of QPAttrCM, the event of
// NotifyCM (ibv_event_type), an option's value of SetCMOption. EstablishCM,
// DisconnectCM, QueryCM, ResolveCMRoute and DestroyCMID take a HandleRequest.
//
//	0 id u32    4 value u32    8 option u32
type CMValueRequest struct{ ID, Value, Option uint32 }

// Options of SetCMOption (specification values: RDMA_OPTION_ID_*).
const (
	CMOptionTOS        = 0 // traffic class
	CMOptionReuseAddr  = 1 // 0 or 1
	CMOptionAFOnly     = 2 // 0 or 1
	CMOptionAckTimeout = 3 // 4.096 µs × 2^n
)

// Append encodes the request.
func (m *CMValueRequest) Append(b []byte) []byte { return appendU32s(b, m.ID, m.Value, m.Option) }

// Decode reads the request. Error: ErrMalformed.
func (m *CMValueRequest) Decode(b []byte) error {
	r := reader{b: b}
	*m = CMValueRequest{ID: r.u32(), Value: r.u32(), Option: r.u32()}
	return r.end()
}

// CMParam are the parameters of a connection (rdma_conn_param), and what UD has
// instead (rdma_ud_param); 64 bytes.
//
//	0 qpn u32    4 qkey u32    8 address vector (UD)    40 responder resources, initiator depth, flow control,
//	  retry count, rnr retry count, srq u8    46 zero
type CMParam struct {
	QPN                bth.QPN // the sender's; in an event the peer's
	QKey               bth.QKey
	AH                 qpstate.AHAttr // of UD: to the peer
	ResponderResources uint8
	InitiatorDepth     uint8
	FlowControl        bool
	RetryCount         uint8
	RNRRetryCount      uint8
	SRQ                bool
}

const cmParamSize = 64

func (p *CMParam) append(b []byte) []byte {
	n := len(b)
	b = appendAH(appendU32s(b, uint32(p.QPN), uint32(p.QKey)), &p.AH)
	b = appendFlag(append(b, p.ResponderResources, p.InitiatorDepth), p.FlowControl)
	b = appendFlag(append(b, p.RetryCount, p.RNRRetryCount), p.SRQ)
	return append(b, make([]byte, cmParamSize-(len(b)-n))...)
}

func (p *CMParam) read(r *reader) {
	p.QPN, p.QKey = bth.QPN(r.u32()), bth.QKey(r.u32())
	readAH(r, &p.AH)
	p.ResponderResources, p.InitiatorDepth, p.FlowControl = r.u8(), r.u8(), r.flag()
	p.RetryCount, p.RNRRetryCount, p.SRQ = r.u8(), r.u8(), r.flag()
	_ = r.take(cmParamSize - 46)
}

// MaxCMPrivate is the most private data of any message of the connection
// manager, in bytes.
const MaxCMPrivate = 224

// CMCallRequest connects, accepts or rejects (ConnectCM, AcceptCM, RejectCM).
//
//	0 id u32    4 reason u32    8 parameters    72 length u16    74 private data
type CMCallRequest struct {
	ID      uint32
	Reason  uint32 // RejectCM
	Param   CMParam
	Private []byte
}

// Append encodes the request.
func (m *CMCallRequest) Append(b []byte) []byte {
	b = m.Param.append(appendU32s(b, m.ID, m.Reason))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(m.Private)))
	return append(b, m.Private...)
}

// Decode reads the request. Error: ErrMalformed, also for more private data
// than any message has.
func (m *CMCallRequest) Decode(b []byte) error {
	r := reader{b: b}
	m.ID, m.Reason = r.u32(), r.u32()
	m.Param.read(&r)
	n := int(r.u16())
	if n > MaxCMPrivate || n > len(r.b) {
		r.fail("%d bytes of private data", n)
		return r.end()
	}
	m.Private = append([]byte(nil), r.b[:n]...)
	r.b = r.b[n:]
	return r.end()
}

// QPAttrCMReply says with what to modify a queue pair for a state of its
// connection (rdma_init_qp_attr).
//
//	0 mask u32    4 attributes
type QPAttrCMReply struct {
	Mask qpstate.Mask
	Attr qpstate.Attr
}

// Append encodes the reply.
func (m *QPAttrCMReply) Append(b []byte) []byte {
	return appendAttr(appendU32s(b, uint32(m.Mask)), &m.Attr)
}

// Decode reads the reply. Error: ErrMalformed.
func (m *QPAttrCMReply) Decode(b []byte) error {
	r := reader{b: b}
	m.Mask = qpstate.Mask(r.u32())
	readAttr(&r, &m.Attr)
	return r.end()
}

// CMEventsReply answers DestroyCMID and MigrateCM: how many events of the
// identifier were written to its channel.
type CMEventsReply struct{ Events uint32 }

// Append encodes the reply.
func (m *CMEventsReply) Append(b []byte) []byte { return appendU32s(b, m.Events) }

// Decode reads the reply. Error: ErrMalformed.
func (m *CMEventsReply) Decode(b []byte) error {
	r := reader{b: b}
	m.Events = r.u32()
	return r.end()
}

// CMMcastRequest joins a multicast group, or leaves it (JoinCM, LeaveCM). The
// event of a join has the address vector, the group's QPN and the queue key.
//
//	0 id u32    4 flags u32    8 group
type CMMcastRequest struct {
	ID    uint32
	Flags uint32 // 1: send only
	Group bth.GID
}

// Append encodes the request.
func (m *CMMcastRequest) Append(b []byte) []byte {
	return append(appendU32s(b, m.ID, m.Flags), m.Group[:]...)
}

// Decode reads the request. Error: ErrMalformed.
func (m *CMMcastRequest) Decode(b []byte) error {
	r := reader{b: b}
	m.ID, m.Flags = r.u32(), r.u32()
	copy(m.Group[:], r.take(16))
	return r.end()
}

// CMEvent is the kind of an event, with the values of rdma_cm_event_type.
type CMEvent uint32

// Events (specification values: rdma_cm_event_type).
const (
	CMAddrResolved    CMEvent = 0
	CMAddrError       CMEvent = 1
	CMRouteResolved   CMEvent = 2
	CMRouteError      CMEvent = 3
	CMConnectRequest  CMEvent = 4
	CMConnectResponse CMEvent = 5
	CMConnectError    CMEvent = 6
	CMUnreachable     CMEvent = 7
	CMRejected        CMEvent = 8
	CMEstablished     CMEvent = 9
	CMDisconnected    CMEvent = 10
	CMDeviceRemoval   CMEvent = 11
	CMMulticastJoin   CMEvent = 12
	CMMulticastError  CMEvent = 13
	CMAddrChange      CMEvent = 14
	CMTimewaitExit    CMEvent = 15
)

// CMRecordSize is the length of a record on a channel's pipe: one event.
const CMRecordSize = 384

// CMRecord is one event.
//
//	0 event u32    4 id u32    8 listening id u32    12 status i32    16 parameters    80 own    100 peer
//	120 length u16    122 private data, zero up to 384
type CMRecord struct {
	Event   CMEvent
	ID      uint32 // handle; of a CONNECT_REQUEST a new one
	Listen  uint32 // of a CONNECT_REQUEST: the listening identifier
	Status  int32  // a negative errno, a reject reason, or a SIDR status
	Param   CMParam
	Own     CMAddr
	Peer    CMAddr
	Private []byte
}

// Append appends the record.
func (c *CMRecord) Append(b []byte) []byte {
	n := len(b)
	b = appendU32s(b, uint32(c.Event), c.ID, c.Listen, uint32(c.Status))
	b = c.Peer.append(c.Own.append(c.Param.append(b)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(c.Private)))
	b = append(b, c.Private[:min(len(c.Private), MaxCMPrivate)]...)
	return append(b, make([]byte, CMRecordSize-(len(b)-n))...)
}

// DecodeCMRecord reads a record; false for bytes that are none.
func DecodeCMRecord(b []byte) (c CMRecord, ok bool) {
	if len(b) != CMRecordSize {
		return c, false
	}
	r := reader{b: b}
	c.Event, c.ID, c.Listen, c.Status = CMEvent(r.u32()), r.u32(), r.u32(), int32(r.u32())
	c.Param.read(&r)
	c.Own.read(&r)
	c.Peer.read(&r)
	n := int(r.u16())
	if n > MaxCMPrivate || r.err != nil {
		return c, false
	}
	c.Private = append([]byte(nil), r.take(n)...)
	return c, r.err == nil
}

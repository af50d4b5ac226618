package uapi

// SRQAttr are the sizes and the limit of a shared receive queue (ibv_srq_attr).
//
//	0 max_wr u32    4 max_sge u32    8 srq_limit u32
type SRQAttr struct {
	MaxWR  uint32 `json:"max_wr"`
	MaxSGE uint32 `json:"max_sge"`
	Limit  uint32 `json:"srq_limit"` // SRQ_LIMIT_REACHED below so many requests; 0: not armed
}

func (a *SRQAttr) append(b []byte) []byte { return appendU32s(b, a.MaxWR, a.MaxSGE, a.Limit) }

func (a *SRQAttr) read(r *reader) { *a = SRQAttr{MaxWR: r.u32(), MaxSGE: r.u32(), Limit: r.u32()} }

// SRQMask says which attributes a modify sets (ibv_srq_attr_mask).
type SRQMask uint32

// Attributes (specification values: ibv_srq_attr_mask).
const (
	SRQMaxWR SRQMask = 1 << 0
	SRQLimit SRQMask = 1 << 1
)

// CreateSRQRequest asks for a shared receive queue.
//
//	0 pd u32    4 attributes
type CreateSRQRequest struct {
	PD   uint32
	Attr SRQAttr
}

// Append encodes the request.
func (m *CreateSRQRequest) Append(b []byte) []byte { return m.Attr.append(appendU32s(b, m.PD)) }

// Decode reads the request. Error: ErrMalformed.
func (m *CreateSRQRequest) Decode(b []byte) error {
	r := reader{b: b}
	m.PD = r.u32()
	m.Attr.read(&r)
	return r.end()
}

// CreateSRQReply gives the queue's handle, number and ring, whose slots are
// those of a receive queue.
//
//	0 handle u32    4 srq number u32    8 attributes    20 ring
type CreateSRQReply struct {
	Handle uint32
	Number uint32
	Attr   SRQAttr // sizes at least what was asked for
	Ring   RingRef
}

// Append encodes the reply.
func (m *CreateSRQReply) Append(b []byte) []byte {
	return m.Ring.append(m.Attr.append(appendU32s(b, m.Handle, m.Number)))
}

// Decode reads the reply. Error: ErrMalformed.
func (m *CreateSRQReply) Decode(b []byte) error {
	r := reader{b: b}
	m.Handle, m.Number = r.u32(), r.u32()
	m.Attr.read(&r)
	m.Ring.read(&r)
	return r.end()
}

// ModifySRQRequest changes the limit, the size, or both.
//
//	0 handle u32    4 mask u32    8 attributes
type ModifySRQRequest struct {
	Handle uint32
	Mask   SRQMask
	Attr   SRQAttr
}

// Append encodes the request.
func (m *ModifySRQRequest) Append(b []byte) []byte {
	return m.Attr.append(appendU32s(b, m.Handle, uint32(m.Mask)))
}

// Decode reads the request. Error: ErrMalformed.
func (m *ModifySRQRequest) Decode(b []byte) error {
	r := reader{b: b}
	m.Handle, m.Mask = r.u32(), SRQMask(r.u32())
	m.Attr.read(&r)
	return r.end()
}

// ModifySRQReply tells what the queue is now. After a resize the ring is a new
// one, into which the adapter moved what waited in the old; the program posts
// nothing between its request and this reply. Without a resize Ring is zero.
//
//	0 attributes    12 ring
type ModifySRQReply struct {
	Attr SRQAttr
	Ring RingRef
}

// Append encodes the reply.
func (m *ModifySRQReply) Append(b []byte) []byte { return m.Ring.append(m.Attr.append(b)) }

// Decode reads the reply. Error: ErrMalformed.
func (m *ModifySRQReply) Decode(b []byte) error {
	r := reader{b: b}
	m.Attr.read(&r)
	m.Ring.read(&r)
	return r.end()
}

// QuerySRQReply answers a HandleRequest of OpQuerySRQ.
type QuerySRQReply struct{ Attr SRQAttr }

// Append encodes the reply.
func (m *QuerySRQReply) Append(b []byte) []byte { return m.Attr.append(b) }

// Decode reads the reply. Error: ErrMalformed.
func (m *QuerySRQReply) Decode(b []byte) error {
	r := reader{b: b}
	m.Attr.read(&r)
	return r.end()
}

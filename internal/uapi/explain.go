package uapi

// ExplainQPRequest asks for what the adapter remembers of queue pairs: of one by
// its number, or of those that failed last.
//
//	0 qpn u32    4 zero
type ExplainQPRequest struct {
	QPN uint32 // 0: the failures, newest first
}

// Append encodes the request.
func (m *ExplainQPRequest) Append(b []byte) []byte { return appendU32s(b, m.QPN, 0) }

// Decode reads the request. Error: ErrMalformed.
func (m *ExplainQPRequest) Decode(b []byte) error {
	r := reader{b: b}
	m.QPN = r.u32()
	_ = r.u32()
	return r.end()
}

// ExplainQPReply has the stories, as JSON.
type ExplainQPReply struct{ Stories []Story }

// Append encodes the reply.
func (m *ExplainQPReply) Append(b []byte) []byte { return appendJSON(b, m.Stories) }

// Decode reads the reply. Error: ErrMalformed.
func (m *ExplainQPReply) Decode(b []byte) error {
	r := reader{b: b}
	m.Stories = nil
	r.json(&m.Stories)
	return r.end()
}

// Story is what an adapter remembers of a queue pair: as it is now, or as it was
// when it failed.
type Story struct {
	QP     Resource `json:"qp"`
	Past   bool     `json:"past,omitempty"`            // as it was when it failed
	GoneNS uint64   `json:"program_gone_ns,omitempty"` // how long its program has been gone; 0: it is there
	Attr   QPTuning `json:"attr"`
	Faults uint32   `json:"faults,omitempty"` // how often something went wrong
	First  Trouble  `json:"trouble,omitzero"`

	NAKRcvd NAK   `json:"nak_received,omitzero"`
	NAKSent NAK   `json:"nak_sent,omitzero"`
	PeerMTU int   `json:"peer_mtu,omitempty"` // bytes, where packets showed another one
	Odd     []Odd `json:"odd_packets,omitempty"`
}

// QPTuning are the attributes that an explanation names.
type QPTuning struct {
	RetryCnt        uint8  `json:"retry_cnt"`
	Timeout         uint8  `json:"timeout"`
	RNRRetry        uint8  `json:"rnr_retry"`
	MinRNRTimer     uint8  `json:"min_rnr_timer"`
	MaxRDAtomic     uint8  `json:"max_rd_atomic"`
	MaxDestRDAtomic uint8  `json:"max_dest_rd_atomic"`
	AccessFlags     uint32 `json:"qp_access_flags"`
	SGIDIndex       uint8  `json:"sgid_index"`
}

// Trouble is what went wrong first. Kind and Why are words of the engine's; what
// means nothing for them is left out.
type Trouble struct {
	Kind     string `json:"kind"`
	Why      string `json:"why,omitempty"`
	Status   uint8  `json:"status,omitempty"` // ibv_wc_status of the completion that told of it
	Syndrome uint8  `json:"syndrome,omitempty"`
	RNRTimer uint8  `json:"rnr_timer,omitempty"`
	Retries  uint8  `json:"retries,omitempty"`
	Op       string `json:"op,omitempty"`     // verb of the request of this end
	Opcode   string `json:"opcode,omitempty"` // of the peer's packet
	PSN      uint32 `json:"psn"`
	AgoNS    uint64 `json:"ago_ns"`
	Key      uint32 `json:"key,omitempty"` // only to the owner's own user
	Need     uint32 `json:"need,omitempty"`
	Has      uint32 `json:"has,omitempty"`
	Addr     uint64 `json:"addr,omitempty"` // asked for
	Length   uint64 `json:"length,omitempty"`
	Base     uint64 `json:"base,omitempty"` // what the key covers
	Covers   uint64 `json:"covers,omitempty"`
	Size     uint32 `json:"size,omitempty"`
	Room     uint32 `json:"room,omitempty"`
	Heard    uint64 `json:"heard,omitempty"` // packets received before
}

// NAK is the last refusal of a direction.
type NAK struct {
	Syndrome uint8  `json:"syndrome"`
	PSN      uint32 `json:"psn"`
	AgoNS    uint64 `json:"ago_ns"`
}

// Odd is a packet that was received and not simply accepted.
type Odd struct {
	Verdict string `json:"verdict"`
	Opcode  string `json:"opcode"`
	PSN     uint32 `json:"psn"` // of the last of Count in a row
	Size    uint32 `json:"size"`
	Count   uint32 `json:"count"`
	AgoNS   uint64 `json:"ago_ns"`
}

// ListGIDsRequest asks for every address of the adapter and whether it can be
// used. It has no body.
type ListGIDsRequest struct{ Empty }

// ListGIDsReply answers it, as JSON.
type ListGIDsReply struct{ GIDs []GIDStatus }

// Append encodes the reply.
func (m *ListGIDsReply) Append(b []byte) []byte { return appendJSON(b, m.GIDs) }

// Decode reads the reply. Error: ErrMalformed.
func (m *ListGIDsReply) Decode(b []byte) error {
	r := reader{b: b}
	m.GIDs = nil
	r.json(&m.GIDs)
	return r.end()
}

// GIDStatus is one address of the adapter.
type GIDStatus struct {
	Index     int    `json:"index"` // -1: not in the table
	GID       string `json:"gid"`
	Address   string `json:"address"`
	Type      string `json:"type"`
	Interface string `json:"interface,omitempty"`
	LinkMTU   int    `json:"link_mtu,omitempty"`
	Usable    bool   `json:"usable"`
	Why       string `json:"why,omitempty"` // where it is not usable, or not by everybody
}

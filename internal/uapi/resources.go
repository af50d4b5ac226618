package uapi

import (
	"encoding/binary"
	"encoding/json"
)

// ResourceKind is a kind of object in a listing.
type ResourceKind uint32

// Kinds of objects.
const (
	ResourceQP      ResourceKind = 1
	ResourceCQ      ResourceKind = 2
	ResourceMR      ResourceKind = 3
	ResourcePD      ResourceKind = 4
	ResourceSRQ     ResourceKind = 5
	ResourceMW      ResourceKind = 6
	ResourceAH      ResourceKind = 7
	ResourceProgram ResourceKind = 8
	ResourceCMID    ResourceKind = 9
)

// Resource is one object of a listing: of any program when the asker is root or
// the adapter's own user, else of its own user's programs. Fields that mean
// nothing for the kind are zero.
type Resource struct {
	Number  uint32 `json:"number"` // QP and SRQ: its number; else the handle in its program
	Program uint32 `json:"program"`
	PID     int    `json:"pid"`
	Name    string `json:"comm"` // the program's

	PD     uint32 `json:"pd,omitempty"` // handle
	Users  int    `json:"users,omitempty"`
	Worker int    `json:"worker,omitempty"`

	Type       string `json:"type,omitempty"`  // QP: RC, UC, UD; MW: 1, 2B; CM identifier: its port space, TCP, UDP
	State      string `json:"state,omitempty"` // QP; CM identifier
	PeerQPN    uint32 `json:"peer_qpn,omitempty"`
	Peer       string `json:"peer,omitempty"` // GID
	SQPSN      uint32 `json:"sq_psn,omitempty"`
	RQPSN      uint32 `json:"rq_psn,omitempty"`
	SendCQ     uint32 `json:"send_cq,omitempty"`
	RecvCQ     uint32 `json:"recv_cq,omitempty"`
	SRQ        uint32 `json:"srq,omitempty"`
	PathMTU    int    `json:"path_mtu,omitempty"` // bytes
	SentBytes  uint64 `json:"sent_bytes,omitempty"`
	RcvdBytes  uint64 `json:"rcvd_bytes,omitempty"`
	Resent     uint64 `json:"resent_pkts,omitempty"`
	Timeouts   uint64 `json:"timeouts,omitempty"`
	RNRWaits   uint64 `json:"rnr_waits,omitempty"`
	SendQueued int    `json:"send_queued,omitempty"`

	SentMsgs  uint64 `json:"sent_msgs,omitempty"`
	RcvdMsgs  uint64 `json:"rcvd_msgs,omitempty"`
	SentPkts  uint64 `json:"sent_pkts,omitempty"`
	RcvdPkts  uint64 `json:"rcvd_pkts,omitempty"`
	SeqNAKs   uint64 `json:"seq_naks,omitempty"` // received
	SentNAKs  uint64 `json:"sent_seq_naks,omitempty"`
	SentRNRs  uint64 `json:"sent_rnr_naks,omitempty"`
	RNRWaitNS uint64 `json:"rnr_wait_ns,omitempty"` // time asked for in all
	// Requests received that had been taken before, and packets that came behind a gap.
	Duplicates    uint64 `json:"duplicate_pkts,omitempty"`
	OutOfSequence uint64 `json:"out_of_sequence_pkts,omitempty"`

	Faults    uint32 `json:"faults,omitempty"`
	LastFault string `json:"last_fault,omitempty"` // kind of the first trouble

	CQE    uint32 `json:"cqe,omitempty"`
	Length uint64 `json:"length,omitempty"` // MR, MW: bytes
	IOVA   uint64 `json:"iova,omitempty"`
	LKey   uint32 `json:"lkey,omitempty"` // only to the owner's own user
	RKey   uint32 `json:"rkey,omitempty"`
	Access uint32 `json:"access,omitempty"`
	MaxWR  uint32 `json:"max_wr,omitempty"` // SRQ
	MaxSGE uint32 `json:"max_sge,omitempty"`
	Limit  uint32 `json:"srq_limit,omitempty"`

	// Of a CM identifier: its queue pair, and the ends' addresses as "ip:port".
	QPN  uint32 `json:"qpn,omitempty"`
	From string `json:"src_addr,omitempty"`
	To   string `json:"dst_addr,omitempty"`
}

// ListResourcesRequest asks for a part of a listing.
//
//	0 kind u32    4 zero    8 after u64
type ListResourcesRequest struct {
	Kind  ResourceKind
	After uint64 // the cursor of the part before, 0 for the first
}

// Append encodes the request.
func (m *ListResourcesRequest) Append(b []byte) []byte {
	return binary.LittleEndian.AppendUint64(appendU32s(b, uint32(m.Kind), 0), m.After)
}

// Decode reads the request. Error: ErrMalformed.
func (m *ListResourcesRequest) Decode(b []byte) error {
	r := reader{b: b}
	m.Kind = ResourceKind(r.u32())
	_ = r.u32()
	m.After = r.u64()
	return r.end()
}

// ListResourcesReply is a part of a listing, ordered by cursor.
//
//	0 next u64    8 objects as JSON
type ListResourcesReply struct {
	Next      uint64 // cursor for the next part; 0: this was the last
	Resources []Resource
}

// Append encodes the reply.
func (m *ListResourcesReply) Append(b []byte) []byte {
	return appendJSON(binary.LittleEndian.AppendUint64(b, m.Next), m.Resources)
}

// Decode reads the reply. Error: ErrMalformed.
func (m *ListResourcesReply) Decode(b []byte) error {
	r := reader{b: b}
	m.Next = r.u64()
	m.Resources = nil
	r.json(&m.Resources)
	return r.end()
}

// Counter is one of the adapter's counters under its short name.
type Counter struct {
	Name  string `json:"name"`
	Help  string `json:"help"`
	Value uint64 `json:"value"`
}

// ListCountersRequest asks for the adapter's counters. It has no body.
type ListCountersRequest struct{ Empty }

// ListCountersReply answers it, as JSON.
type ListCountersReply struct{ Counters []Counter }

// Append encodes the reply.
func (m *ListCountersReply) Append(b []byte) []byte { return appendJSON(b, m.Counters) }

// Decode reads the reply. Error: ErrMalformed.
func (m *ListCountersReply) Decode(b []byte) error {
	r := reader{b: b}
	m.Counters = nil
	r.json(&m.Counters)
	return r.end()
}

func appendJSON(b []byte, v any) []byte {
	j, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain structs of numbers and texts have no other way
	}
	return append(b, j...)
}

// json takes the rest of the body.
func (r *reader) json(v any) {
	if r.err != nil {
		return
	}
	if err := json.Unmarshal(r.b, v); err != nil {
		r.fail("JSON: %v", err)
	}
	r.b = nil
}

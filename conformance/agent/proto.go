// Package agent is the word between the conformance tester and the target's side: a line of JSON asks, a line of JSON answers,
// over TCP. The tester sends packets by itself; by an agent it makes the target's queue pairs and memory, posts requests
// and reads what came of them. docs/conformance-agent.md describes the protocol for whoever writes another agent.
//
// It owns the messages, the tester's client and the server's rules about who may connect. What the requests do on a target
// is the business of package agent/verbsagent and of agent.py beside it.
package agent

import (
	"errors"
	"fmt"
)

// Version is the protocol's.
const Version = 1

// Hello answers the first request: what the target is and can.
type Hello struct {
	Version  int      `json:"version"`
	Agent    string   `json:"agent"`  // program and version
	Device   string   `json:"device"` // the RDMA device's name
	GIDs     []GID    `json:"gids"`
	Features []string `json:"features"`
	// MaxRDAtomic is max_qp_rd_atom, MaxSGE max_sge.
	MaxRDAtomic int `json:"max_rd_atomic"`
	MaxSGE      int `json:"max_sge"`
	MaxInline   int `json:"max_inline"`
}

// plausible is nil when the limits are some that a device can have: cases make requests and memory of that size.
func (h *Hello) plausible() error {
	for _, l := range []struct {
		name string
		n    int
	}{{"max_rd_atomic", h.MaxRDAtomic}, {"max_sge", h.MaxSGE}, {"max_inline", h.MaxInline}} {
		if l.n < 0 || l.n > maxLimit {
			return fmt.Errorf("its %s is %d, must be 0 to %d", l.name, l.n, maxLimit)
		}
	}
	return nil
}

// GID is an entry of the target's GID table that is of RoCEv2.
type GID struct {
	Index int    `json:"index"`
	Addr  string `json:"addr"` // as an IP address, an IPv4 one in IPv4's form
}

// Features that an agent may name.
const (
	FeatureUC          = "uc"
	FeatureUD          = "ud"
	FeatureSRQ         = "srq"
	FeatureMW1         = "mw1"
	FeatureMW2         = "mw2" // type 2B
	FeatureInv         = "inv" // SEND with Invalidate, LOCAL_INV
	FeatureZeroBased   = "zero_based"
	FeatureIova        = "iova"
	FeatureRereg       = "rereg"
	FeatureMulticast   = "multicast"
	FeatureQP1         = "qp1" // QP1 answers the connection manager's messages
	FeatureFlush       = "flush"
	FeatureAtomicWrite = "atomic_write"
	FeatureEvents      = "events" // asynchronous events
	FeatureCounters    = "counters"
	FeatureSQD         = "sqd"
	FeatureEmptyRD     = "rd_atomic_0" // max_dest_rd_atomic 0
)

// Request is any request; which fields count is said by Do. Handles are numbers above 0 that the agent gave out.
type Request struct {
	Do string `json:"do"`

	Version int    `json:"version,omitempty"` // hello
	Token   string `json:"token,omitempty"`   // hello: a word that the agent was started with, if it was

	PD  int `json:"pd,omitempty"`
	MR  int `json:"mr,omitempty"`
	MW  int `json:"mw,omitempty"`
	CQ  int `json:"cq,omitempty"`
	SRQ int `json:"srq,omitempty"`
	QP  int `json:"qp,omitempty"`
	AH  int `json:"ah,omitempty"`

	Type      string   `json:"type,omitempty"` // qp: RC, UC, UD, GSI; mw: 1, 2
	Length    int      `json:"length,omitempty"`
	Access    []string `json:"access,omitempty"` // LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC, MW_BIND, ZERO_BASED, ...
	Iova      *uint64  `json:"iova,omitempty"`
	Off       int      `json:"off,omitempty"`
	Data      []byte   `json:"data,omitempty"` // base64
	CQE       int      `json:"cqe,omitempty"`
	Channel   bool     `json:"channel,omitempty"`
	Solicited bool     `json:"solicited,omitempty"`
	N         int      `json:"n,omitempty"`  // how many at most; 0: 1
	MS        int      `json:"ms,omitempty"` // how long to wait, in ms

	// Sizes that are 0 are the agent's choice: at least 64 requests, 2 elements, 256 completions; no inline data.
	SendCQ   int  `json:"send_cq,omitempty"`
	RecvCQ   int  `json:"recv_cq,omitempty"`
	SendWRs  int  `json:"send_wrs,omitempty"`
	RecvWRs  int  `json:"recv_wrs,omitempty"`
	SendSGEs int  `json:"send_sges,omitempty"`
	RecvSGEs int  `json:"recv_sges,omitempty"`
	Inline   int  `json:"inline,omitempty"`
	SigAll   bool `json:"sig_all,omitempty"`
	Limit    int  `json:"limit,omitempty"` // of an SRQ

	Attrs *Attrs   `json:"attrs,omitempty"`
	Sends []SendWR `json:"sends,omitempty"`
	Recvs []RecvWR `json:"recvs,omitempty"`
	Bind  *Bind    `json:"bind,omitempty"` // type 1
	ID    uint64   `json:"id,omitempty"`   // of the bind
	GID   string   `json:"gid,omitempty"`  // multicast: an IP address
	Path  *Path    `json:"path,omitempty"` // ah
}

// The requests ("do"), what they take, and what they answer.
const (
	DoHello    = "hello"     // version -> Hello
	DoReset    = "reset"     // destroys every object of this connection
	DoPD       = "pd"        // -> pd
	DoMR       = "mr"        // pd, length, access, iova -> mr, addr, lkey, rkey; the memory is zero
	DoRereg    = "rereg"     // mr, access -> lkey, rkey
	DoWrite    = "write"     // mr, off, data
	DoRead     = "read"      // mr, off, length -> data
	DoCQ       = "cq"        // cqe, channel -> cq
	DoArm      = "arm"       // cq, solicited
	DoEvent    = "event"     // cq, ms -> event (of the completion channel, acknowledged)
	DoPoll     = "poll"      // cq, n, ms -> wcs: as soon as n are there, or what is there after ms
	DoSRQ      = "srq"       // pd, recv_wrs, recv_sges -> srq
	DoSRQLimit = "srq_limit" // srq, limit
	DoQP       = "qp"        // type, pd, send_cq, recv_cq, srq, send_wrs, recv_wrs, send_sges, recv_sges, inline, sig_all -> qp, qpn
	DoModify   = "modify"    // qp, attrs: each attribute that is there is in the mask
	DoQuery    = "query"     // qp -> attrs
	DoSend     = "send"      // qp, sends -> posted; with BIND_MW rkey, the last window's new key
	DoRecv     = "recv"      // qp or srq, recvs -> posted
	DoMW       = "mw"        // pd, type -> mw, rkey
	DoBind     = "bind"      // qp, mw, id, bind -> rkey (windows of type 1); signaled
	DoAH       = "ah"        // pd, path -> ah
	DoAttach   = "attach"    // qp, gid
	DoDetach   = "detach"    // qp, gid
	DoAsync    = "async"     // ms -> events: those that wait, or the first within ms
	DoCounters = "counters"  // -> counters
	DoDestroy  = "destroy"   // one of mr, mw, cq, srq, qp, ah, pd
)

// Attrs are attributes of a queue pair; those that are there are in the mask. Numbers are the verbs API's.
type Attrs struct {
	State            *string   `json:"state,omitempty"` // RESET, INIT, RTR, RTS, SQD, SQE, ERR
	CurState         *string   `json:"cur_state,omitempty"`
	PathMTU          *int      `json:"path_mtu,omitempty"` // bytes
	QKey             *uint32   `json:"qkey,omitempty"`
	RQPSN            *uint32   `json:"rq_psn,omitempty"`
	SQPSN            *uint32   `json:"sq_psn,omitempty"`
	DestQPN          *uint32   `json:"dest_qpn,omitempty"`
	Access           *[]string `json:"access,omitempty"`
	PKeyIndex        *int      `json:"pkey_index,omitempty"`
	Port             *int      `json:"port,omitempty"`
	Path             *Path     `json:"path,omitempty"`
	Timeout          *int      `json:"timeout,omitempty"`
	RetryCnt         *int      `json:"retry_cnt,omitempty"`
	RNRRetry         *int      `json:"rnr_retry,omitempty"`
	MinRNRTimer      *int      `json:"min_rnr_timer,omitempty"`
	MaxRDAtomic      *int      `json:"max_rd_atomic,omitempty"`
	MaxDestRDAtomic  *int      `json:"max_dest_rd_atomic,omitempty"`
	EnSQDAsyncNotify *bool     `json:"en_sqd_async_notify,omitempty"`
}

// Path is where packets go: an address handle's attributes.
type Path struct {
	Addr     string `json:"addr"`                // the peer's IP address
	GIDIndex int    `json:"gid_index"`           // of the own GID table
	HopLimit int    `json:"hop_limit,omitempty"` // 0: 64
	TClass   int    `json:"tclass,omitempty"`
}

// SGE is a piece of memory.
type SGE struct {
	Addr   uint64 `json:"addr"`
	Length uint32 `json:"length"`
	LKey   uint32 `json:"lkey"`
}

// SendWR is a send request. Op is SEND, SEND_WITH_IMM, SEND_WITH_INV, RDMA_WRITE, RDMA_WRITE_WITH_IMM, RDMA_READ,
// ATOMIC_CMP_AND_SWP, ATOMIC_FETCH_AND_ADD, LOCAL_INV, BIND_MW, FLUSH, ATOMIC_WRITE; flags are SIGNALED, SOLICITED, FENCE, INLINE.
type SendWR struct {
	ID         uint64   `json:"id"`
	Op         string   `json:"op"`
	Flags      []string `json:"flags,omitempty"`
	SGEs       []SGE    `json:"sges,omitempty"`
	Inline     []byte   `json:"inline,omitempty"` // base64; the payload with INLINE
	Imm        uint32   `json:"imm,omitempty"`    // its value as a number: 0x01020304 goes as 01 02 03 04
	Inv        uint32   `json:"inv,omitempty"`    // key to invalidate
	Addr       uint64   `json:"addr,omitempty"`   // remote
	RKey       uint32   `json:"rkey,omitempty"`
	CompareAdd uint64   `json:"compare_add,omitempty"`
	Swap       uint64   `json:"swap,omitempty"`
	AH         int      `json:"ah,omitempty"`
	RemoteQPN  uint32   `json:"remote_qpn,omitempty"`
	RemoteQKey uint32   `json:"remote_qkey,omitempty"`
	Bind       *Bind    `json:"bind,omitempty"`
	MW         int      `json:"mw,omitempty"` // BIND_MW
}

// RecvWR is a receive request.
type RecvWR struct {
	ID   uint64 `json:"id"`
	SGEs []SGE  `json:"sges,omitempty"`
}

// Bind says what a memory window is bound to.
type Bind struct {
	MR     int      `json:"mr"`
	Addr   uint64   `json:"addr"`
	Length uint64   `json:"length"`
	Access []string `json:"access"`
	RKey   uint32   `json:"rkey,omitempty"` // the new key of a type 2 window; 0: the next
}

// WC is a work completion. Status and Op are names without IBV_WC_: SUCCESS, REM_ACCESS_ERR; SEND, RECV, RECV_RDMA_WITH_IMM.
// On failure there are ID, Status and QPN only, as the verbs API has it.
type WC struct {
	ID      uint64 `json:"id"`
	Status  string `json:"status"`
	Op      string `json:"op,omitempty"`
	ByteLen uint32 `json:"byte_len,omitempty"` // of receives, READs and atomics
	QPN     uint32 `json:"qpn"`
	SrcQP   uint32 `json:"src_qp,omitempty"`
	Imm     uint32 `json:"imm,omitempty"` // as SendWR.Imm
	Inv     uint32 `json:"inv,omitempty"`
	WithImm bool   `json:"with_imm,omitempty"`
	WithInv bool   `json:"with_inv,omitempty"`
	GRH     bool   `json:"grh,omitempty"` // of datagrams
}

// Event is an asynchronous event, its type without IBV_EVENT_: QP_ACCESS_ERR, COMM_EST. QP, CQ and SRQ are handles.
type Event struct {
	Type string `json:"type"`
	QP   int    `json:"qp,omitempty"`
	CQ   int    `json:"cq,omitempty"`
	SRQ  int    `json:"srq,omitempty"`
}

// Answer is any answer. Error is empty when the request was done.
type Answer struct {
	Error string `json:"error,omitempty"`
	Errno string `json:"errno,omitempty"` // EINVAL

	*Hello

	PD  int `json:"pd,omitempty"`
	MR  int `json:"mr,omitempty"`
	MW  int `json:"mw,omitempty"`
	CQ  int `json:"cq,omitempty"`
	SRQ int `json:"srq,omitempty"`
	QP  int `json:"qp,omitempty"`
	AH  int `json:"ah,omitempty"`

	QPN      uint32            `json:"qpn,omitempty"`
	Addr     uint64            `json:"addr,omitempty"` // what a SGE and a RETH call the region's first byte
	LKey     uint32            `json:"lkey,omitempty"`
	RKey     uint32            `json:"rkey,omitempty"`
	Data     []byte            `json:"data,omitempty"`
	Event    bool              `json:"event,omitempty"`
	WCs      []WC              `json:"wcs,omitempty"`
	Posted   int               `json:"posted,omitempty"`
	Attrs    *Attrs            `json:"attrs,omitempty"`
	Events   []Event           `json:"events,omitempty"`
	Counters map[string]uint64 `json:"counters,omitempty"`
}

// Error is an agent's refusal.
type Error struct {
	Do    string // the request
	Text  string
	Errno string // EINVAL; empty when the agent has none
}

func (e *Error) Error() string {
	if e.Errno != "" {
		return e.Do + ": " + e.Text + " (" + e.Errno + ")"
	}
	return e.Do + ": " + e.Text
}

// Refusal returns err as a refusal, and whether it is one.
func Refusal(err error) (*Error, bool) {
	var e *Error
	ok := errors.As(err, &e)
	return e, ok
}

package main

import "fmt"

// The numbers of the verbs API (enum ibv_wr_opcode, ibv_send_flags, ibv_wc_status, ibv_wc_opcode, ibv_wc_flags,
// ibv_access_flags, ibv_qp_state), written down here once more on purpose: the lab is a second opinion, so softroce's
// own constants are not its measure.
const (
	opWrite    = 0
	opWriteImm = 1
	opSend     = 2
	opSendImm  = 3
	opRead     = 4
	opCmpSwap  = 5
	opFetchAdd = 6
	opLocalInv = 7
	opBindMW   = 8
	opSendInv  = 9
)

// Queue pair types (enum ibv_qp_type) and window types (enum ibv_mw_type).
const (
	typeRC  = 2
	typeUC  = 3
	typeUD  = 4
	window1 = 1
	window2 = 2
)

// eventSRQLimit is IBV_EVENT_SRQ_LIMIT_REACHED.
const eventSRQLimit = 15

const (
	flagFence     = 1
	flagSignaled  = 2
	flagSolicited = 4
	flagInline    = 8
)

const (
	statusSuccess     = 0
	statusLocLen      = 1
	statusLocQPOp     = 2
	statusFlushed     = 5
	statusBind        = 6
	statusRemInvReq   = 9
	statusRemAccess   = 10
	statusRemOp       = 11
	statusRetryExc    = 12
	statusRNRRetryExc = 13
)

const (
	wcSend       = 0
	wcWrite      = 1
	wcRead       = 2
	wcCmpSwap    = 3
	wcFetchAdd   = 4
	wcBindMW     = 5
	wcLocalInv   = 6
	wcRecv       = 128
	wcRecvImm    = 129
	wcFlagGRH    = 1
	wcFlagImm    = 2
	wcFlagInv    = 8
	stateErr     = 6
	accessLocal  = 1
	accessWrite  = 2
	accessRead   = 4
	accessAtomic = 8
	accessBind   = 16
	accessAll    = accessLocal | accessWrite | accessRead | accessAtomic
)

// Path MTU as the verbs API counts it: 256 bytes is 1, 4096 is 5.
var mtuCode = map[int]int{256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}

var statusNames = map[int]string{
	0: "SUCCESS", 1: "LOC_LEN_ERR", 2: "LOC_QP_OP_ERR", 3: "LOC_EEC_OP_ERR", 4: "LOC_PROT_ERR", 5: "WR_FLUSH_ERR",
	6: "MW_BIND_ERR", 7: "BAD_RESP_ERR", 8: "LOC_ACCESS_ERR", 9: "REM_INV_REQ_ERR", 10: "REM_ACCESS_ERR",
	11: "REM_OP_ERR", 12: "RETRY_EXC_ERR", 13: "RNR_RETRY_EXC_ERR", 21: "GENERAL_ERR",
}

func statusName(s int) string {
	if n, ok := statusNames[s]; ok {
		return n
	}
	return fmt.Sprintf("status %d", s)
}

// wcOpcode is the completion opcode of a request, by its operation.
var wcOpcode = map[int]int{
	opWrite: wcWrite, opWriteImm: wcWrite, opSend: wcSend, opSendImm: wcSend, opRead: wcRead,
	opCmpSwap: wcCmpSwap, opFetchAdd: wcFetchAdd, opLocalInv: wcLocalInv, opBindMW: wcBindMW, opSendInv: wcSend,
}

var wcNames = map[int]string{
	wcSend: "SEND", wcWrite: "RDMA_WRITE", wcRead: "RDMA_READ", wcCmpSwap: "COMP_SWAP", wcFetchAdd: "FETCH_ADD",
	wcBindMW: "BIND_MW", wcLocalInv: "LOCAL_INV", wcRecv: "RECV", wcRecvImm: "RECV_RDMA_WITH_IMM",
}

// An End is one end of a connection or one that sends datagrams: a queue pair with its completion queue and one memory
// region, whose bytes every offset counts into. With a shared receive queue it may have several queue pairs. Two kinds are
// there: one in a guest, told what to do over TCP, and one on softroce.
type End interface {
	Open(o openRequest) (identity, error)
	Connect(c connectRequest) error
	PostRecv(wrs []recvWR) error
	PostSend(wrs []sendWR) error
	// Poll returns at most count completions, fewer when ms milliseconds passed first.
	Poll(count, ms int) ([]completion, error)
	WriteMem(off int, b []byte) error
	ReadMem(off, n int) ([]byte, error)
	State() (int, error)
	// Break moves the queue pair to the error state.
	Break() error
	Close()

	// Handle makes an address handle to a GID, Answer one that answers the datagram which completed a receive, by its
	// completion and the header area at off, as the end's own library reads them. Both return its index.
	Handle(gid string) (int, error)
	Answer(id uint64, off int) (int, error)
	// Group attaches the queue pair to a multicast group, or detaches it.
	Group(gid string, join bool) error
	// Window allocates a memory window; its index and first key.
	Window(typ int) (mw int, rkey uint32, err error)
	// Bind posts the request that binds a window and returns the new key.
	Bind(b bindWR) (rkey uint32, err error)
	// Rereg changes the region's rights and returns its key.
	Rereg(access int) (rkey uint32, err error)
	// Limit arms the shared receive queue.
	Limit(limit int) error
	// Event waits for an asynchronous event; -1: none came in ms milliseconds.
	Event(ms int) (int, error)
}

type openRequest struct {
	IPv6   bool `json:"-"`      // which of the end's GIDs
	GID    int  `json:"gid"`    // its index, filled in by the end
	Size   int  `json:"size"`   // bytes in the region
	Access int  `json:"access"` // the region's rights
	Inline int  `json:"inline"` // max_inline_data
	// Foreign memory: softroce's end registers memory of the program instead of having the adapter allocate it.
	Foreign bool   `json:"-"`
	Type    int    `json:"type"`
	QPs     int    `json:"qps"` // queue pairs
	SRQ     int    `json:"srq"` // receives in a queue shared by them; 0: none is shared
	QKey    uint32 `json:"qkey"`
}

// An identity is what an end must know of the other: the exchange that real programs do out of band.
type identity struct {
	QPNs []uint32 `json:"qpns"`
	GID  string   `json:"gid"`
	Addr uint64   `json:"addr"` // of the region's first byte
	RKey uint32   `json:"rkey"`
}

// connectRequest: timers as the verbs API codes them.
type connectRequest struct {
	QP       int    `json:"qp"` // which of the end's
	QPN      uint32 `json:"qpn"`
	GID      string `json:"gid"`
	SQPSN    uint32 `json:"sq_psn"`
	RQPSN    uint32 `json:"rq_psn"`
	MTU      int    `json:"mtu"`
	RDAtomic int    `json:"rd_atomic"`
	Timeout  int    `json:"timeout"`
	Retry    int    `json:"retry"`
	RNRRetry int    `json:"rnr_retry"`
	RNRTimer int    `json:"rnr_timer"`
}

// A span is a piece of the end's region: offset and length.
type span [2]int

type recvWR struct {
	ID   uint64 `json:"id"`
	SGEs []span `json:"sges"`
}

type sendWR struct {
	ID         uint64 `json:"id"`
	QP         int    `json:"qp"` // which of the end's
	Op         int    `json:"op"`
	Flags      int    `json:"flags"`
	SGEs       []span `json:"sges"`
	Addr       uint64 `json:"addr"`
	RKey       uint32 `json:"rkey"`
	Imm        uint32 `json:"imm"`
	CompareAdd uint64 `json:"compare_add"`
	Swap       uint64 `json:"swap"`
	Inv        uint32 `json:"inv"` // the key to invalidate
	AH         int    `json:"ah"`
	RemoteQPN  uint32 `json:"remote_qpn"` // of a datagram
	QKey       uint32 `json:"qkey"`
}

// A bindWR opens a piece of the end's region by a window.
type bindWR struct {
	ID     uint64 `json:"id"`
	MW     int    `json:"mw"`
	Off    int    `json:"off"`
	Len    int    `json:"len"`
	Access int    `json:"access"`
	Flags  int    `json:"flags"`
}

func (w sendWR) imm() bool { return w.Op == opSendImm || w.Op == opWriteImm }

type completion struct {
	ID     uint64 `json:"id"`
	Status int    `json:"status"`
	Op     int    `json:"op"`
	Len    int    `json:"len"`
	Flags  int    `json:"flags"`
	Imm    uint32 `json:"imm"`
	QPN    uint32 `json:"qpn"`
	SrcQP  uint32 `json:"src_qp"` // of a datagram
	Inv    uint32 `json:"inv"`    // with wcFlagInv
}

func (c completion) String() string {
	s := fmt.Sprintf("id %d %s", c.ID, statusName(c.Status))
	if c.Status != statusSuccess {
		return s
	}
	s += " " + wcNames[c.Op]
	if c.Op >= wcRecv {
		s += fmt.Sprintf(" %d bytes", c.Len)
	}
	if c.Op >= wcRecv && c.Flags&wcFlagImm != 0 {
		s += fmt.Sprintf(" imm %#x", c.Imm)
	}
	if c.Op >= wcRecv && c.Flags&wcFlagInv != 0 {
		s += fmt.Sprintf(" inv %#x", c.Inv)
	}
	if c.SrcQP != 0 {
		s += fmt.Sprintf(" from %#x", c.SrcQP)
	}
	return s
}

func total(sges []span) int {
	n := 0
	for _, s := range sges {
		n += s[1]
	}
	return n
}

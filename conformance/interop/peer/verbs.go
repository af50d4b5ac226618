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
)

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
	wcRecv       = 128
	wcRecvImm    = 129
	wcFlagImm    = 2
	stateErr     = 6
	accessLocal  = 1
	accessWrite  = 2
	accessRead   = 4
	accessAtomic = 8
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
	opCmpSwap: wcCmpSwap, opFetchAdd: wcFetchAdd,
}

var wcNames = map[int]string{
	wcSend: "SEND", wcWrite: "RDMA_WRITE", wcRead: "RDMA_READ", wcCmpSwap: "COMP_SWAP", wcFetchAdd: "FETCH_ADD",
	wcRecv: "RECV", wcRecvImm: "RECV_RDMA_WITH_IMM",
}

// An End is one end of a reliable connection: one queue pair with its completion queue and one memory region, whose bytes
// every offset counts into. Two kinds are there: one in a guest, told what to do over TCP, and one on softroce.
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
}

type openRequest struct {
	IPv6   bool `json:"-"`      // which of the end's GIDs
	GID    int  `json:"gid"`    // its index, filled in by the end
	Size   int  `json:"size"`   // bytes in the region
	Access int  `json:"access"` // the region's rights
	Inline int  `json:"inline"` // max_inline_data
	// Foreign memory: softroce's end registers memory of the program instead of having the adapter allocate it.
	Foreign bool `json:"-"`
}

// An identity is what an end must know of the other: the exchange that real programs do out of band.
type identity struct {
	QPN  uint32 `json:"qpn"`
	GID  string `json:"gid"`
	Addr uint64 `json:"addr"` // of the region's first byte
	RKey uint32 `json:"rkey"`
}

// connectRequest: timers as the verbs API codes them.
type connectRequest struct {
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
	Op         int    `json:"op"`
	Flags      int    `json:"flags"`
	SGEs       []span `json:"sges"`
	Addr       uint64 `json:"addr"`
	RKey       uint32 `json:"rkey"`
	Imm        uint32 `json:"imm"`
	CompareAdd uint64 `json:"compare_add"`
	Swap       uint64 `json:"swap"`
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
	return s
}

func total(sges []span) int {
	n := 0
	for _, s := range sges {
		n += s[1]
	}
	return n
}

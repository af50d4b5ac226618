package cq

import "github.com/softroce/softroce/pkg/bth"

// Opcode says which operation a completion is of, with the values of
// ibv_wc_opcode. Values with bit 7 set are of the receive queue.
type Opcode uint8

// Operations (specification values: ibv_wc_opcode).
const (
	Send            Opcode = 0
	RDMAWrite       Opcode = 1
	RDMARead        Opcode = 2
	CompSwap        Opcode = 3
	FetchAdd        Opcode = 4
	BindMW          Opcode = 5
	LocalInv        Opcode = 6
	RegMR           Opcode = 32 // softroce's own, as the kernel's IB_WC_REG_MR is its own
	Recv            Opcode = 128
	RecvRDMAWithImm Opcode = 129
)

// IsRecv says whether the completion is of a receive request.
func (o Opcode) IsRecv() bool { return o&128 != 0 }

// opcodeNames holds the verbs names.
var opcodeNames = map[Opcode]string{
	Send:            "IBV_WC_SEND",
	RDMAWrite:       "IBV_WC_RDMA_WRITE",
	RDMARead:        "IBV_WC_RDMA_READ",
	CompSwap:        "IBV_WC_COMP_SWAP",
	FetchAdd:        "IBV_WC_FETCH_ADD",
	BindMW:          "IBV_WC_BIND_MW",
	LocalInv:        "IBV_WC_LOCAL_INV",
	RegMR:           "IBV_WC_REG_MR",
	Recv:            "IBV_WC_RECV",
	RecvRDMAWithImm: "IBV_WC_RECV_RDMA_WITH_IMM",
}

// String is the verbs name of the operation.
func (o Opcode) String() string {
	if n, ok := opcodeNames[o]; ok {
		return n
	}
	return "IBV_WC_OPCODE_" + decimal(uint8(o))
}

// Flags says which optional fields of a completion are valid, with the values
// of ibv_wc_flags.
type Flags uint8

// Flags (specification values: ibv_wc_flags).
const (
	GRH     Flags = 1 << 0 // the first 40 bytes of the buffer hold the GRH
	WithImm Flags = 1 << 1 // ImmData is valid
	WithInv Flags = 1 << 3 // InvalidatedRKey is valid
)

// WC is a work completion. WRID, Status, QPN and VendorErr are always valid;
// the rest on success only. Opcode is set on errors too, since programs read
// it there.
type WC struct {
	WRID            uint64 // the request's own mark
	Status          Status
	Opcode          Opcode
	Flags           Flags
	PKeyIndex       uint16 // GSI QP only
	VendorErr       uint32 // 0, or a code of softroce's own
	ByteLen         uint32 // receives (UD: payload + 40), READs and atomics
	QPN             bth.QPN
	SrcQP           bth.QPN // UD receives only
	ImmData         uint32  // host value (big endian on the wire); with WithImm
	InvalidatedRKey uint32  // with WithInv
	Timestamp       uint64  // nanoseconds of the adapter's clock (CLOCK_MONOTONIC); 0: not taken
}

// decimal formats a byte.
func decimal(v uint8) string {
	var b [3]byte
	i := len(b)
	for {
		i--
		b[i] = '0' + v%10
		if v /= 10; v == 0 {
			return string(b[i:])
		}
	}
}

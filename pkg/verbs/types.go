package verbs

import (
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/wq"
)

// The field's types, as the leaf packages define them.
type (
	// GID is a port's 16-byte global identifier; for RoCEv2 an IPv6 address,
	// or an IPv4 address mapped into one.
	GID = bth.GID
	// QPN is a 24-bit queue pair number.
	QPN = bth.QPN
	// PSN is a 24-bit packet sequence number.
	PSN = bth.PSN
	// MTU is a path MTU as the enumeration ibv_mtu.
	MTU = bth.MTU
	// QKey is the key of a datagram queue pair.
	QKey = bth.QKey
	// LKey and RKey are the local and remote key of a region.
	LKey = mrtable.LKey
	// RKey is what a peer names a region by.
	RKey = mrtable.RKey
	// Access is a set of access flags (ibv_access_flags).
	Access = mrtable.Access
	// WC is a work completion (ibv_wc).
	WC = cq.WC
	// WCStatus is ibv_wc_status, WCOpcode ibv_wc_opcode, WCFlags ibv_wc_flags.
	WCStatus = cq.Status
	// WCOpcode is the operation that completed.
	WCOpcode = cq.Opcode
	// WCFlags tell which optional fields of a WC are valid.
	WCFlags = cq.Flags
	// SGE is one scatter/gather element (ibv_sge).
	SGE = wq.SGE
	// SendWR is a send work request (ibv_send_wr); RecvWR a receive one.
	SendWR = wq.SendWR
	// RecvWR is a receive work request (ibv_recv_wr).
	RecvWR = wq.RecvWR
	// WROpcode is ibv_wr_opcode, SendFlags ibv_send_flags.
	WROpcode = wq.Opcode
	// SendFlags modify a send work request.
	SendFlags = wq.SendFlags
	// QPType is ibv_qp_type, QPState ibv_qp_state, QPAttrMask
	// ibv_qp_attr_mask.
	QPType = qpstate.Type
	// QPState is the state of a queue pair.
	QPState = qpstate.State
	// QPAttrMask says which attributes a modify sets.
	QPAttrMask = qpstate.Mask
	// QPAttr are a queue pair's attributes (ibv_qp_attr); AHAttr an address
	// vector (ibv_ah_attr); QPCap the sizes of its queues (ibv_qp_cap).
	QPAttr = qpstate.Attr
	// AHAttr is an address vector.
	AHAttr = qpstate.AHAttr
	// QPCap are the sizes of a queue pair's queues.
	QPCap = qpstate.Cap
)

// Access flags.
const (
	AccessLocalWrite      = mrtable.AccessLocalWrite
	AccessRemoteWrite     = mrtable.AccessRemoteWrite
	AccessRemoteRead      = mrtable.AccessRemoteRead
	AccessRemoteAtomic    = mrtable.AccessRemoteAtomic
	AccessMWBind          = mrtable.AccessMWBind    // windows may be bound to the region
	AccessZeroBased       = mrtable.AccessZeroBased // addresses count from 0
	AccessOnDemand        = mrtable.AccessOnDemand
	AccessHugeTLB         = mrtable.AccessHugeTLB
	AccessRelaxedOrdering = mrtable.AccessRelaxedOrdering
)

// Queue pair types, states and the operations of work requests.
const (
	RC = qpstate.RC
	UC = qpstate.UC
	UD = qpstate.UD

	StateReset = qpstate.Reset
	StateInit  = qpstate.Init
	StateRTR   = qpstate.RTR
	StateRTS   = qpstate.RTS
	StateSQD   = qpstate.SQD
	StateSQE   = qpstate.SQE
	StateErr   = qpstate.Err

	WRRDMAWrite        = wq.RDMAWrite
	WRRDMAWriteWithImm = wq.RDMAWriteWithImm
	WRSend             = wq.Send
	WRSendWithImm      = wq.SendWithImm
	WRRDMARead         = wq.RDMARead
	WRAtomicCmpAndSwp  = wq.AtomicCmpAndSwp
	WRAtomicFetchAdd   = wq.AtomicFetchAndAdd
	WRLocalInv         = wq.LocalInv
	WRBindMW           = wq.BindMW
	WRSendWithInv      = wq.SendWithInv
	WRRegMR            = wq.RegMR

	SendFence     = wq.SendFence
	SendSignaled  = wq.SendSignaled
	SendSolicited = wq.SendSolicited
	SendInline    = wq.SendInline
)

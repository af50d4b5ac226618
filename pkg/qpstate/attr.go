package qpstate

import "github.com/softroce/softroce/pkg/bth"

// AHAttr is an address vector: where packets go. On RoCE the GRH part is what
// counts; DLID and StaticRate are ignored.
type AHAttr struct {
	DGID         bth.GID
	FlowLabel    uint32 // 20 bits; the rest is ignored
	SGIDIndex    uint8  // index in the port's GID table
	HopLimit     uint8
	TrafficClass uint8 // DSCP in the upper 6 bits, ECN in the lower 2
	IsGlobal     bool  // must be set on RoCE
	SL           uint8 // VLAN priority
	DLID         uint16
	StaticRate   uint8
	PortNum      uint8 // 1
}

// Cap is what a queue pair's queues hold: requests, elements per request,
// bytes of inline data.
type Cap struct {
	MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, MaxInlineData uint32
}

// Attr is the attributes of a queue pair, as ibv_qp_attr. A [Mask] says which
// are meant.
type Attr struct {
	State, CurState  State
	PathMTU          bth.MTU
	PathMigState     uint8 // 0 migrated, 1 rearm, 2 armed
	QKey             bth.QKey
	RQPSN, SQPSN     bth.PSN // 24 bits; the rest is ignored
	DestQPN          bth.QPN // 24 bits; the rest is ignored
	AccessFlags      uint32  // mrtable.Access bits
	Cap              Cap
	AH, AltAH        AHAttr
	PKeyIndex        uint16
	AltPKeyIndex     uint16
	EnSQDAsyncNotify bool
	SQDraining       bool // query only
	MaxRDAtomic      uint8
	MaxDestRDAtomic  uint8
	MinRNRTimer      uint8 // code, 0..31
	PortNum          uint8
	Timeout          uint8 // 4.096 us << n, 0..31; 0: none
	RetryCnt         uint8 // 0..7
	RNRRetry         uint8 // 0..7; 7: without end
	AltPortNum       uint8
	AltTimeout       uint8
	RateLimit        uint32 // kbit/s; raw packet queue pairs only
}

package bth

import "fmt"

// Header names one header that can follow a BTH.
type Header uint8

// The headers, in the order in which they stand on the wire whenever several of
// them are in one packet.
const (
	HeaderRDETH Header = iota
	HeaderDETH
	HeaderXRCETH
	HeaderFETH
	HeaderRETH
	HeaderAtomicETH
	HeaderAETH
	HeaderAtomicAckETH
	HeaderImmDt
	HeaderIETH
	HeaderCNPReserved
	headerCount
)

// headerLens holds the length of each header in bytes.
var headerLens = [headerCount]uint8{
	HeaderRDETH: RDETHLen, HeaderDETH: DETHLen, HeaderXRCETH: XRCETHLen, HeaderFETH: FETHLen,
	HeaderRETH: RETHLen, HeaderAtomicETH: AtomicETHLen, HeaderAETH: AETHLen,
	HeaderAtomicAckETH: AtomicAckETHLen, HeaderImmDt: ImmDtLen, HeaderIETH: IETHLen,
	HeaderCNPReserved: CNPReservedLen,
}

// HeaderSet is a set of headers, one bit each. The order on the wire is that of
// the Header constants.
type HeaderSet uint16

// The sets of one header.
const (
	HasRDETH        HeaderSet = 1 << HeaderRDETH
	HasDETH         HeaderSet = 1 << HeaderDETH
	HasXRCETH       HeaderSet = 1 << HeaderXRCETH
	HasFETH         HeaderSet = 1 << HeaderFETH
	HasRETH         HeaderSet = 1 << HeaderRETH
	HasAtomicETH    HeaderSet = 1 << HeaderAtomicETH
	HasAETH         HeaderSet = 1 << HeaderAETH
	HasAtomicAckETH HeaderSet = 1 << HeaderAtomicAckETH
	HasImmDt        HeaderSet = 1 << HeaderImmDt
	HasIETH         HeaderSet = 1 << HeaderIETH
	HasCNPReserved  HeaderSet = 1 << HeaderCNPReserved
)

// Has reports whether every header of h is in s.
func (s HeaderSet) Has(h HeaderSet) bool { return s&h == h }

// OpcodeInfo is what the specification says of one opcode.
type OpcodeInfo struct {
	Name          string
	Class         Class
	Headers       HeaderSet // what follows the BTH
	HeaderLen     int       // bytes of BTH and extended headers, without ICRC
	Position      Position
	Op            Op
	Request       bool // travels from requester to responder
	Response      bool // travels from responder to requester
	Payload       PayloadRule
	ConsumesRecv  bool // takes a receive request from the queue
	CompletesRecv bool // completes the receive request of its message
	Defined       bool // false: a reserved value, of which only Name and Class are set

	offsets [headerCount]uint8 // from the start of the BTH; 0 when not carried
}

// opcodes is the one opcode table, expanded from operations.
var opcodes = buildOpcodes()

// MaxHeaderLen is the most that BTH and extended headers take, in bytes: 52 in an
// RD CmpSwap or FetchAdd (12 + 4 + 8 + 28).
const MaxHeaderLen = BTHLen + RDETHLen + DETHLen + AtomicETHLen

// classSet is a set of transport classes, one bit each.
type classSet uint8

const (
	rc      classSet = 1 << ClassRC
	uc      classSet = 1 << ClassUC
	rd      classSet = 1 << ClassRD
	ud      classSet = 1 << ClassUD
	xrc     classSet = 1 << ClassXRC
	conn             = rc | uc | rd | xrc // every class with messages of many packets
	rel              = rc | rd | xrc      // every class with acknowledgements
	request          = true
	answer           = false
)

// operations lists the low five bits of an opcode, the classes that define them,
// and what they carry in RC (IBTA Vol 1 §9.4, tables of §9.2.1; FLUSH and ATOMIC
// WRITE: Annex A19). Classes add their own headers in classHeaders. That RD and
// XRC number FLUSH and ATOMIC WRITE as RC does is taken from the rule of the
// other rows.
var operations = []struct {
	code     uint8
	classes  classSet
	name     string
	op       Op
	position Position
	request  bool
	headers  HeaderSet
	payload  PayloadRule
	recv     string // "takes", "ends" or "both": what it does to a receive request
}{
	{0x00, conn, "SEND First", OpSend, First, request, 0, PayloadFull, "takes"},
	{0x01, conn, "SEND Middle", OpSend, Middle, request, 0, PayloadFull, ""},
	{0x02, conn, "SEND Last", OpSend, Last, request, 0, PayloadSome, "ends"},
	{0x03, conn, "SEND Last with Immediate", OpSend, Last, request, HasImmDt, PayloadSome, "ends"},
	{0x04, conn | ud, "SEND Only", OpSend, Only, request, 0, PayloadAny, "both"},
	{0x05, conn | ud, "SEND Only with Immediate", OpSend, Only, request, HasImmDt, PayloadAny, "both"},
	{0x06, conn, "RDMA WRITE First", OpWrite, First, request, HasRETH, PayloadFull, ""},
	{0x07, conn, "RDMA WRITE Middle", OpWrite, Middle, request, 0, PayloadFull, ""},
	{0x08, conn, "RDMA WRITE Last", OpWrite, Last, request, 0, PayloadSome, ""},
	{0x09, conn, "RDMA WRITE Last with Immediate", OpWrite, Last, request, HasImmDt, PayloadSome, "both"},
	{0x0A, conn, "RDMA WRITE Only", OpWrite, Only, request, HasRETH, PayloadAny, ""},
	{0x0B, conn, "RDMA WRITE Only with Immediate", OpWrite, Only, request, HasRETH | HasImmDt, PayloadAny, "both"},
	{0x0C, rel, "RDMA READ Request", OpReadRequest, Only, request, HasRETH, PayloadNone, ""},
	{0x0D, rel, "RDMA READ Response First", OpReadResponse, First, answer, HasAETH, PayloadFull, ""},
	{0x0E, rel, "RDMA READ Response Middle", OpReadResponse, Middle, answer, 0, PayloadFull, ""},
	{0x0F, rel, "RDMA READ Response Last", OpReadResponse, Last, answer, HasAETH, PayloadSome, ""},
	{0x10, rel, "RDMA READ Response Only", OpReadResponse, Only, answer, HasAETH, PayloadAny, ""},
	{0x11, rel, "Acknowledge", OpAck, None, answer, HasAETH, PayloadNone, ""},
	{0x12, rel, "ATOMIC Acknowledge", OpAtomicAck, None, answer, HasAETH | HasAtomicAckETH, PayloadNone, ""},
	{0x13, rel, "CmpSwap", OpCmpSwap, Only, request, HasAtomicETH, PayloadNone, ""},
	{0x14, rel, "FetchAdd", OpFetchAdd, Only, request, HasAtomicETH, PayloadNone, ""},
	{0x15, rd, "RESYNC", OpResync, Only, request, 0, PayloadNone, ""},
	{0x16, rc | xrc, "SEND Last with Invalidate", OpSend, Last, request, HasIETH, PayloadSome, "ends"},
	{0x17, rc | xrc, "SEND Only with Invalidate", OpSend, Only, request, HasIETH, PayloadAny, "both"},
	{0x1C, rel, "FLUSH", OpFlush, Only, request, HasFETH | HasRETH, PayloadNone, ""},
	{0x1D, rel, "ATOMIC WRITE", OpAtomicWrite, Only, request, HasRETH, PayloadEight, ""},
}

// classHeaders returns the headers that a class adds to every request or to
// every response, directly after the BTH.
func classHeaders(c Class, isRequest bool) HeaderSet {
	switch {
	case c == ClassRD && isRequest:
		return HasRDETH | HasDETH
	case c == ClassRD:
		return HasRDETH
	case c == ClassUD:
		return HasDETH
	case c == ClassXRC && isRequest:
		return HasXRCETH
	}
	return 0
}

// buildOpcodes expands operations over the classes that define them, and adds
// the CNP (Annex A17), which RoCEv2 moved from 0x80 to 0x81.
func buildOpcodes() (t [256]OpcodeInfo) {
	for i := range t {
		t[i] = OpcodeInfo{Name: fmt.Sprintf("reserved 0x%02x", i), Class: Opcode(i).Class()}
	}
	for _, o := range operations {
		for c := ClassRC; c <= ClassMS7; c++ {
			if o.classes>>c&1 == 0 {
				continue
			}
			t[uint8(c)<<5|o.code] = OpcodeInfo{
				Name: c.String() + " " + o.name, Class: c, Position: o.position, Op: o.op,
				Headers: o.headers | classHeaders(c, o.request),
				Request: o.request, Response: !o.request, Payload: o.payload,
				ConsumesRecv:  o.recv == "takes" || o.recv == "both",
				CompletesRecv: o.recv == "ends" || o.recv == "both",
				Defined:       true,
			}
		}
	}
	t[CNP] = OpcodeInfo{Name: "CNP", Class: ClassCNP, Op: OpCNP, Headers: HasCNPReserved, Defined: true}
	for i := range t {
		t[i].layOut()
	}
	return t
}

// layOut computes HeaderLen and the offset of each header.
func (i *OpcodeInfo) layOut() {
	i.HeaderLen = BTHLen
	for h := Header(0); h < headerCount; h++ {
		if i.Headers.Has(1 << h) {
			i.offsets[h] = uint8(i.HeaderLen)
			i.HeaderLen += int(headerLens[h])
		}
	}
}

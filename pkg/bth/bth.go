package bth

import "encoding/binary"

// BTHLen is the length of a Base Transport Header in bytes.
const BTHLen = 12

// BTH is a Base Transport Header (IBTA Vol 1 §9.2), at least BTHLen bytes.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-----+---------+-+-+---+-------+-------------------------------+
//	|class|operation|S|M|Pad| TVer  |             P_Key             |
//	+-----+-+-+-----+-+-+---+-------+-------------------------------+
//	|F|B|   resv6   |                    DestQP                     |
//	+-+-+-----------+-----------------------------------------------+
//	|A|    resv7    |                      PSN                      |
//	+-+-------------+-----------------------------------------------+
//
// The ICRC does not cover F, B and resv6: they may change on the way.
type BTH []byte

const (
	bthOpcode = 0
	bthFlags  = 1
	bthPKey   = 2
	bthVar    = 4 // F, B, resv6: the byte that the ICRC masks
	bthDestQP = 5
	bthAck    = 8
	bthPSN    = 9

	bthFlagSolicited = 0x80
	bthFlagMigReq    = 0x40
	bthPadShift      = 4
	bthPadMask       = 3
	bthTVerMask      = 0x0F
	bthVarFECN       = 0x80
	bthVarBECN       = 0x40
	bthVarResv6      = 0x3F
	bthAckReq        = 0x80
	bthResv7         = 0x7F
)

// Opcode returns class and operation.
func (h BTH) Opcode() Opcode { return Opcode(h[bthOpcode]) }

// Solicited returns SE, the solicited event bit.
func (h BTH) Solicited() bool { return h[bthFlags]&bthFlagSolicited != 0 }

// MigReq returns M: set when the sender's path migration state is MIGRATED,
// as it is on a queue pair that never migrates (IBTA Vol 1 §17.2.8).
func (h BTH) MigReq() bool { return h[bthFlags]&bthFlagMigReq != 0 }

// Pad returns PadCnt, the number of pad bytes between payload and ICRC, 0 to 3.
func (h BTH) Pad() int { return int(h[bthFlags] >> bthPadShift & bthPadMask) }

// TVer returns the transport version. Only 0 is defined.
func (h BTH) TVer() uint8 { return h[bthFlags] & bthTVerMask }

// PKey returns the partition key.
func (h BTH) PKey() PKey { return PKey(binary.BigEndian.Uint16(h[bthPKey:])) }

// FECN returns the forward congestion bit.
func (h BTH) FECN() bool { return h[bthVar]&bthVarFECN != 0 }

// BECN returns the backward congestion bit, 1 in a CNP.
func (h BTH) BECN() bool { return h[bthVar]&bthVarBECN != 0 }

// Resv6 returns the six reserved bits beside FECN and BECN, ignored on receipt.
func (h BTH) Resv6() uint8 { return h[bthVar] & bthVarResv6 }

// DestQP returns the destination queue pair.
func (h BTH) DestQP() QPN { return QPN(uint24(h[bthDestQP:])) }

// AckReq returns A: the sender asks for an acknowledgement.
func (h BTH) AckReq() bool { return h[bthAck]&bthAckReq != 0 }

// Resv7 returns the seven reserved bits beside AckReq, ignored on receipt.
func (h BTH) Resv7() uint8 { return h[bthAck] & bthResv7 }

// PSN returns the packet sequence number.
func (h BTH) PSN() PSN { return PSN(uint24(h[bthPSN:])) }

// Fields returns every field of h.
func (h BTH) Fields() BTHFields {
	return BTHFields{
		Opcode: h.Opcode(), Solicited: h.Solicited(), MigReq: h.MigReq(), Pad: uint8(h.Pad()),
		TVer: h.TVer(), PKey: h.PKey(), FECN: h.FECN(), BECN: h.BECN(), Resv6: h.Resv6(),
		DestQP: h.DestQP(), AckReq: h.AckReq(), Resv7: h.Resv7(), PSN: h.PSN(),
	}
}

// BTHFields are the fields of a Base Transport Header. The reserved bits are
// here so that a foreign packet re-serialises to the same bytes; leave them 0.
type BTHFields struct {
	Opcode    Opcode
	Solicited bool
	MigReq    bool
	Pad       uint8 // 0 to 3
	TVer      uint8 // 0
	PKey      PKey
	FECN      bool
	BECN      bool
	Resv6     uint8 // 6 bits
	DestQP    QPN
	AckReq    bool
	Resv7     uint8 // 7 bits
	PSN       PSN
}

// Append appends the header to b. Bits above a field's width are dropped.
func (f *BTHFields) Append(b []byte) []byte {
	flags := f.Pad&bthPadMask<<bthPadShift | f.TVer&bthTVerMask |
		bit(f.Solicited, bthFlagSolicited) | bit(f.MigReq, bthFlagMigReq)
	variant := f.Resv6&bthVarResv6 | bit(f.FECN, bthVarFECN) | bit(f.BECN, bthVarBECN)
	ack := f.Resv7&bthResv7 | bit(f.AckReq, bthAckReq)
	return append(b,
		byte(f.Opcode), flags, byte(f.PKey>>8), byte(f.PKey),
		variant, byte(f.DestQP>>16), byte(f.DestQP>>8), byte(f.DestQP),
		ack, byte(f.PSN>>16), byte(f.PSN>>8), byte(f.PSN))
}

// bit returns mask when on is set.
func bit(on bool, mask uint8) uint8 {
	if on {
		return mask
	}
	return 0
}

// uint24 reads three bytes, big endian.
func uint24(b []byte) uint32 { return uint32(b[2]) | uint32(b[1])<<8 | uint32(b[0])<<16 }

// appendReservedAnd24 appends a reserved byte and 24 bits, the shape of RDETH,
// XRCETH, AETH and the second word of DETH.
func appendReservedAnd24(b []byte, top uint8, v uint32) []byte {
	return append(b, top, byte(v>>16), byte(v>>8), byte(v))
}

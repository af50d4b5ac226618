package bth

import (
	"encoding/binary"
	"errors"
)

// ICRCLen is the length of the invariant CRC in bytes.
const ICRCLen = 4

// What Parse refuses, in the order in which it looks. Each is a reason for a
// silent drop (IBTA Vol 1 §9.6).
var (
	// ErrShort: shorter than a BTH and an ICRC, or than the headers that the
	// opcode demands and an ICRC.
	ErrShort = errors.New("parse packet: shorter than its headers and ICRC")
	// ErrVersion: a transport version other than 0.
	ErrVersion = errors.New("parse packet: transport version is not 0")
	// ErrReserved: a reserved opcode.
	ErrReserved = errors.New("parse packet: reserved opcode")
	// ErrPad: the pad count exceeds what the headers and the ICRC leave.
	ErrPad = errors.New("parse packet: pad count exceeds the payload")
)

// Packet is a parsed RoCEv2 packet. Its slices lie in the bytes given to Parse
// and are valid as long as those; the zero value is ready for Parse, and one
// Packet can parse any number of packets without allocating.
type Packet struct {
	Opcode  Opcode
	Info    *OpcodeInfo // the table's entry for Opcode
	Payload []byte      // without headers, pad and ICRC
	Pad     int         // pad bytes after Payload, 0 to 3

	raw []byte
}

// Parse reads b, the payload of a UDP datagram from BTH to ICRC inclusive. It
// checks, in this order: room for BTH and ICRC (ErrShort), transport version
// (ErrVersion), opcode (ErrReserved), room for the opcode's headers and ICRC
// (ErrShort), room for the pad as well (ErrPad). It does not look at the ICRC,
// nor at rules that depend on a queue pair: payload length against path MTU,
// P_Key, PSN.
//
// After an error only Bytes holds, and, when b has BTHLen bytes, BTH and Opcode.
func (p *Packet) Parse(b []byte) error {
	*p = Packet{raw: b}
	if len(b) < BTHLen+ICRCLen {
		if len(b) > bthOpcode {
			p.Opcode = Opcode(b[bthOpcode])
		}
		return ErrShort
	}
	h := BTH(b)
	p.Opcode = h.Opcode()
	info := p.Opcode.Info()
	if h.TVer() != 0 {
		return ErrVersion
	}
	if !info.Defined {
		return ErrReserved
	}
	end := len(b) - ICRCLen
	if end < info.HeaderLen {
		return ErrShort
	}
	pad := h.Pad()
	if end-pad < info.HeaderLen {
		return ErrPad
	}
	p.Info = info
	p.Pad = pad
	p.Payload = b[info.HeaderLen : end-pad : end-pad]
	return nil
}

// Bytes returns the bytes given to Parse.
func (p *Packet) Bytes() []byte { return p.raw }

// BTH returns the Base Transport Header, nil when Parse saw fewer bytes.
func (p *Packet) BTH() BTH {
	if len(p.raw) < BTHLen {
		return nil
	}
	return BTH(p.raw[:BTHLen:BTHLen])
}

// Has reports whether the packet parsed and carries every header of h.
func (p *Packet) Has(h HeaderSet) bool { return p.Info != nil && p.Info.Headers.Has(h) }

// header returns the bytes of an extended header, nil when it is not carried.
func (p *Packet) header(h Header) []byte {
	if !p.Has(1 << h) {
		return nil
	}
	off, n := int(p.Info.offsets[h]), int(headerLens[h])
	return p.raw[off : off+n : off+n]
}

// RDETH returns that header, nil when the opcode has none.
func (p *Packet) RDETH() RDETH { return p.header(HeaderRDETH) }

// DETH returns that header, nil when the opcode has none.
func (p *Packet) DETH() DETH { return p.header(HeaderDETH) }

// XRCETH returns that header, nil when the opcode has none.
func (p *Packet) XRCETH() XRCETH { return p.header(HeaderXRCETH) }

// FETH returns that header, nil when the opcode has none.
func (p *Packet) FETH() FETH { return p.header(HeaderFETH) }

// RETH returns that header, nil when the opcode has none.
func (p *Packet) RETH() RETH { return p.header(HeaderRETH) }

// AtomicETH returns that header, nil when the opcode has none.
func (p *Packet) AtomicETH() AtomicETH { return p.header(HeaderAtomicETH) }

// AETH returns that header, nil when the opcode has none.
func (p *Packet) AETH() AETH { return p.header(HeaderAETH) }

// AtomicAckETH returns that header, nil when the opcode has none.
func (p *Packet) AtomicAckETH() AtomicAckETH { return p.header(HeaderAtomicAckETH) }

// IETH returns that header, nil when the opcode has none.
func (p *Packet) IETH() IETH { return p.header(HeaderIETH) }

// ImmDt returns the immediate data, zero when the opcode has none.
func (p *Packet) ImmDt() (d ImmDt) {
	copy(d[:], p.header(HeaderImmDt))
	return d
}

// CNPReserved returns the reserved bytes of a CNP, zero for other opcodes.
func (p *Packet) CNPReserved() (r CNPReserved) {
	copy(r[:], p.header(HeaderCNPReserved))
	return r
}

// PadBytes returns the pad, ignored on receipt but covered by the ICRC. It holds
// only after Parse succeeded.
func (p *Packet) PadBytes() []byte {
	end := len(p.raw) - ICRCLen
	return p.raw[end-p.Pad : end : end]
}

// Aligned reports whether payload and pad are a multiple of four bytes, as every
// sender must make them (IBTA Vol 1 §9.2).
func (p *Packet) Aligned() bool { return (len(p.Payload)+p.Pad)%4 == 0 }

// Covered returns what the ICRC covers of the packet, BTH to pad. It holds only
// after Parse succeeded.
func (p *Packet) Covered() []byte {
	end := len(p.raw) - ICRCLen
	return p.raw[:end:end]
}

// ICRC returns the invariant CRC that the packet carries, to be compared with
// what ICRC computes. It holds only after Parse succeeded.
func (p *Packet) ICRC() uint32 { return binary.LittleEndian.Uint32(p.raw[len(p.raw)-ICRCLen:]) }

// PadLen returns the number of pad bytes that a payload of n bytes needs
// (IBTA Vol 1 §9.2): -n modulo 4.
func PadLen(n int) uint8 { return uint8(-n & 3) }

// AppendPad appends the zero bytes that pad a payload of payloadLen bytes.
func AppendPad(b []byte, payloadLen int) []byte {
	return append(b, "\x00\x00\x00"[:PadLen(payloadLen)]...)
}

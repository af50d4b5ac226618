package cm

import (
	"encoding/binary"
	"fmt"
	"strconv"
)

// Lengths in bytes. Every MAD on QP 1 has exactly MADLen (IBTA Vol 1 §13.4.2).
const (
	MADLen    = 256
	HeaderLen = 24
	DataLen   = MADLen - HeaderLen // a connection manager message
)

// Values of a MAD header that the connection manager uses (specification
// values: IBTA Vol 1 §13.4.2, §13.4.4, §16.7).
const (
	BaseVersion  = 1
	ClassCM      = 0x07
	ClassVersion = 2

	MethodGet     = 0x01
	MethodSend    = 0x03
	MethodGetResp = 0x81
)

// AttrID is a MAD's attribute: which message it is.
type AttrID uint16

// Attributes of the communication management class (IBTA Vol 1 §16.7.3).
const (
	AttrClassPortInfo AttrID = 0x0001
	AttrREQ           AttrID = 0x0010
	AttrMRA           AttrID = 0x0011
	AttrREJ           AttrID = 0x0012
	AttrREP           AttrID = 0x0013
	AttrRTU           AttrID = 0x0014
	AttrDREQ          AttrID = 0x0015
	AttrDREP          AttrID = 0x0016
	AttrSIDRREQ       AttrID = 0x0017
	AttrSIDRREP       AttrID = 0x0018
	AttrLAP           AttrID = 0x0019
	AttrAPR           AttrID = 0x001A
)

var attrNames = [...]string{"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"}

// String is the message's name.
func (a AttrID) String() string {
	switch {
	case a == AttrClassPortInfo:
		return "ClassPortInfo"
	case a >= AttrREQ && a <= AttrAPR:
		return attrNames[a-AttrREQ]
	}
	return "attribute 0x" + strconv.FormatUint(uint64(a), 16)
}

// Header is a MAD header (IBTA Vol 1 §13.4.2), big endian.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+---------------+---------------+---------------+
//	|  BaseVersion  |   MgmtClass   | ClassVersion  |R|   Method    |
//	+---------------+---------------+---------------+---------------+
//	|            Status             |         ClassSpecific         |
//	+-------------------------------+-------------------------------+
//	|                                                               |
//	|                         TransactionID                         |
//	+-------------------------------+-------------------------------+
//	|          AttributeID          |           reserved            |
//	+-------------------------------+-------------------------------+
//	|                       AttributeModifier                       |
//	+---------------------------------------------------------------+
type Header struct {
	BaseVersion   uint8
	Class         uint8
	ClassVersion  uint8
	Method        uint8 // with R as its upper bit
	Status        uint16
	ClassSpecific uint16
	TID           uint64
	Attr          AttrID
	Reserved      uint16
	Modifier      uint32 // 0; of REQ, REP and SIDR_REP some vendor's options
}

// sendHeader is the header of every message that the connection manager sends.
func sendHeader(attr AttrID, tid uint64) Header {
	return Header{BaseVersion: BaseVersion, Class: ClassCM, ClassVersion: ClassVersion, Method: MethodSend, TID: tid, Attr: attr}
}

// Append appends the header to b.
func (h *Header) Append(b []byte) []byte {
	b = append(b, h.BaseVersion, h.Class, h.ClassVersion, h.Method)
	b = binary.BigEndian.AppendUint16(b, h.Status)
	b = binary.BigEndian.AppendUint16(b, h.ClassSpecific)
	b = binary.BigEndian.AppendUint64(b, h.TID)
	b = binary.BigEndian.AppendUint16(b, uint16(h.Attr))
	b = binary.BigEndian.AppendUint16(b, h.Reserved)
	return binary.BigEndian.AppendUint32(b, h.Modifier)
}

// ParseHeader reads the header of a MAD, which must have MADLen bytes. It does
// not judge what is in it.
func ParseHeader(mad []byte) (Header, error) {
	if len(mad) != MADLen {
		return Header{}, fmt.Errorf("parse MAD: %d bytes, not %d", len(mad), MADLen)
	}
	return Header{
		BaseVersion: mad[0], Class: mad[1], ClassVersion: mad[2], Method: mad[3],
		Status:        binary.BigEndian.Uint16(mad[4:]),
		ClassSpecific: binary.BigEndian.Uint16(mad[6:]),
		TID:           binary.BigEndian.Uint64(mad[8:]),
		Attr:          AttrID(binary.BigEndian.Uint16(mad[16:])),
		Reserved:      binary.BigEndian.Uint16(mad[18:]),
		Modifier:      binary.BigEndian.Uint32(mad[20:]),
	}, nil
}

// Data is what follows a MAD's header: one message.
type Data [DataLen]byte

// Message is a connection manager message as a value.
type Message interface {
	// Attr says which message it is.
	Attr() AttrID
	// Put writes the message over b, all of it.
	Put(b *Data)
	// Read takes every field from b. Reserved bits are not kept.
	Read(b *Data)
}

// AppendMAD appends h and m as one MAD. The header's attribute is the message's.
func AppendMAD(b []byte, h Header, m Message) []byte {
	var d Data
	h.Attr = m.Attr()
	m.Put(&d)
	return append(h.Append(b), d[:]...)
}

// ParseMAD reads a MAD of the connection manager's class. The error says what
// is wrong with its length, versions, class, method or attribute.
func ParseMAD(mad []byte) (Header, Message, error) {
	h, err := ParseHeader(mad)
	if err != nil {
		return h, nil, err
	}
	if err := h.check(); err != nil {
		return h, nil, err
	}
	m := newMessage(h.Attr)
	if m == nil {
		return h, nil, fmt.Errorf("parse MAD: %v is no message of the connection manager", h.Attr)
	}
	m.Read((*Data)(mad[HeaderLen:]))
	return h, m, nil
}

// check judges versions, class and method.
func (h *Header) check() error {
	switch {
	case h.BaseVersion != BaseVersion:
		return fmt.Errorf("parse MAD: base version %d, not %d", h.BaseVersion, BaseVersion)
	case h.Class != ClassCM:
		return fmt.Errorf("parse MAD: class %#02x, not %#02x", h.Class, ClassCM)
	case h.ClassVersion != ClassVersion:
		return fmt.Errorf("parse MAD: class version %d, not %d", h.ClassVersion, ClassVersion)
	case h.Attr == AttrClassPortInfo && (h.Method == MethodGet || h.Method == MethodGetResp):
		return nil
	case h.Method != MethodSend:
		return fmt.Errorf("parse MAD: method %#02x of %v, not %#02x", h.Method, h.Attr, MethodSend)
	}
	return nil
}

// newMessage is an empty message of attribute a, nil when there is none.
func newMessage(a AttrID) Message {
	switch a {
	case AttrClassPortInfo:
		return new(ClassPortInfo)
	case AttrREQ:
		return new(REQ)
	case AttrMRA:
		return new(MRA)
	case AttrREJ:
		return new(REJ)
	case AttrREP:
		return new(REP)
	case AttrRTU:
		return new(RTU)
	case AttrDREQ:
		return new(DREQ)
	case AttrDREP:
		return new(DREP)
	case AttrSIDRREQ:
		return new(SIDRREQ)
	case AttrSIDRREP:
		return new(SIDRREP)
	case AttrLAP:
		return new(LAP)
	case AttrAPR:
		return new(APR)
	}
	return nil
}

// put24 writes three bytes, big endian.
func put24(b []byte, v uint32) { b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v) }

// get24 reads three bytes, big endian.
func get24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

// bit is 1<<n when on is set.
func bit(on bool, n uint) uint8 {
	if on {
		return 1 << n
	}
	return 0
}

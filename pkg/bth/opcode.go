package bth

// Opcode is the first byte of a BTH: three bits of class, five of operation.
type Opcode uint8

// Opcodes of reliable connections (IBTA Vol 1 §9.4).
const (
	RCSendFirst          Opcode = 0x00
	RCSendMiddle         Opcode = 0x01
	RCSendLast           Opcode = 0x02
	RCSendLastImmediate  Opcode = 0x03
	RCSendOnly           Opcode = 0x04
	RCSendOnlyImmediate  Opcode = 0x05
	RCWriteFirst         Opcode = 0x06
	RCWriteMiddle        Opcode = 0x07
	RCWriteLast          Opcode = 0x08
	RCWriteLastImmediate Opcode = 0x09
	RCWriteOnly          Opcode = 0x0A
	RCWriteOnlyImmediate Opcode = 0x0B
	RCReadRequest        Opcode = 0x0C
	RCReadResponseFirst  Opcode = 0x0D
	RCReadResponseMiddle Opcode = 0x0E
	RCReadResponseLast   Opcode = 0x0F
	RCReadResponseOnly   Opcode = 0x10
	RCAcknowledge        Opcode = 0x11
	RCAtomicAcknowledge  Opcode = 0x12
	RCCmpSwap            Opcode = 0x13
	RCFetchAdd           Opcode = 0x14
	RCSendLastInvalidate Opcode = 0x16
	RCSendOnlyInvalidate Opcode = 0x17
	RCFlush              Opcode = 0x1C // Annex A19
	RCAtomicWrite        Opcode = 0x1D // Annex A19
)

// Opcodes of unreliable connections.
const (
	UCSendFirst          Opcode = 0x20
	UCSendMiddle         Opcode = 0x21
	UCSendLast           Opcode = 0x22
	UCSendLastImmediate  Opcode = 0x23
	UCSendOnly           Opcode = 0x24
	UCSendOnlyImmediate  Opcode = 0x25
	UCWriteFirst         Opcode = 0x26
	UCWriteMiddle        Opcode = 0x27
	UCWriteLast          Opcode = 0x28
	UCWriteLastImmediate Opcode = 0x29
	UCWriteOnly          Opcode = 0x2A
	UCWriteOnlyImmediate Opcode = 0x2B
)

// Opcodes of unreliable datagrams.
const (
	UDSendOnly          Opcode = 0x64
	UDSendOnlyImmediate Opcode = 0x65
)

// CNP is RoCEv2's congestion notification packet (Annex A17).
const CNP Opcode = 0x81

// Class is the transport service of an opcode, its top three bits.
type Class uint8

// The classes of IBTA Vol 1 §9.4.
const (
	ClassRC  Class = 0 // reliable connection
	ClassUC  Class = 1 // unreliable connection
	ClassRD  Class = 2 // reliable datagram
	ClassUD  Class = 3 // unreliable datagram
	ClassCNP Class = 4 // congestion notification
	ClassXRC Class = 5 // extended reliable connection
	ClassMS6 Class = 6 // manufacturer specific
	ClassMS7 Class = 7 // manufacturer specific
)

// String gives the class's abbreviation.
func (c Class) String() string {
	return [...]string{"RC", "UC", "RD", "UD", "CNP", "XRC", "MS6", "MS7"}[c&7]
}

// Position is a packet's place in its message.
type Position uint8

// Places in a message. None is for acknowledgements and CNPs.
const (
	None Position = iota
	First
	Middle
	Last
	Only
)

// Begins reports whether a packet here starts a message.
func (p Position) Begins() bool { return p == First || p == Only }

// Ends reports whether a packet here ends a message.
func (p Position) Ends() bool { return p == Last || p == Only }

// Op is the operation that a packet belongs to, whatever its class and place.
type Op uint8

// Operations. OpReserved is the zero value and belongs to reserved opcodes.
const (
	OpReserved Op = iota
	OpSend
	OpWrite
	OpReadRequest
	OpReadResponse
	OpAck
	OpAtomicAck
	OpCmpSwap
	OpFetchAdd
	OpResync
	OpFlush
	OpAtomicWrite
	OpCNP
)

// PayloadRule says how much payload an opcode carries (IBTA Vol 1 §9.4). It is
// the transport that applies it: Parse does not.
type PayloadRule uint8

// Payload rules, with PMTU the path MTU.
const (
	PayloadNone  PayloadRule = iota // none, PadCnt 0
	PayloadFull                     // exactly PMTU
	PayloadSome                     // 1 to PMTU
	PayloadAny                      // 0 to PMTU
	PayloadEight                    // exactly 8 bytes
)

// Allows reports whether a payload of n bytes obeys the rule under a path MTU of
// pmtu bytes.
func (r PayloadRule) Allows(n, pmtu int) bool {
	switch r {
	case PayloadNone:
		return n == 0
	case PayloadFull:
		return n == pmtu
	case PayloadSome:
		return n >= 1 && n <= pmtu
	case PayloadAny:
		return n <= pmtu
	case PayloadEight:
		return n == 8
	}
	return false
}

// Class returns the transport service.
func (o Opcode) Class() Class { return Class(o >> 5) }

// Info returns what the table knows of o, never nil; Defined is false when o is
// reserved. The result is shared and must not be changed.
func (o Opcode) Info() *OpcodeInfo { return &opcodes[o] }

// String gives the opcode's name, as "RC SEND First" or "reserved 0x1f".
func (o Opcode) String() string { return opcodes[o].Name }

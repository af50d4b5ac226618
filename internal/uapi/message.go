package uapi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Version is the version of all that this package lays down: messages, rings,
// records. Both ends must have the same.
const Version = 2

// Bounds of control messages.
const (
	// HeaderSize is the length of a message's header in bytes.
	HeaderSize = 16
	// MaxMessage is the most bytes of a message, its header included.
	MaxMessage = 64 << 10
	// MaxRequest is the most bytes of a request, its header included: advice on the
	// most ranges. A connection must not cost the adapter much memory.
	MaxRequest = 17 << 10
	// maxText bounds every text in a message, in bytes.
	maxText = 1024
)

// ErrMalformed says that bytes are not what they should be: too short, too
// long, or a value outside its range.
var ErrMalformed = errors.New("uapi: malformed message")

// Op names what a control message asks for. A reply has its request's.
type Op uint16

// Operations. Numbers are never reused.
const (
	OpHello          Op = 1
	OpQueryDevice    Op = 2
	OpQueryPort      Op = 3
	OpQueryGIDTable  Op = 4
	OpAllocPD        Op = 5
	OpDeallocPD      Op = 6
	OpRegMR          Op = 7
	OpDeregMR        Op = 8
	OpCreateChannel  Op = 9
	OpDestroyChannel Op = 10
	OpCreateCQ       Op = 11
	OpDestroyCQ      Op = 12
	OpCreateQP       Op = 13
	OpModifyQP       Op = 14
	OpQueryQP        Op = 15
	OpDestroyQP      Op = 16
	OpCreateAH       Op = 17
	OpDestroyAH      Op = 18
	OpCreateSRQ      Op = 19
	OpModifySRQ      Op = 20
	OpQuerySRQ       Op = 21
	OpDestroySRQ     Op = 22
	OpAllocMW        Op = 23
	OpDeallocMW      Op = 24
	OpReregMR        Op = 25
	OpAllocMR        Op = 26
	OpAdviseMR       Op = 27
	OpResizeCQ       Op = 28
	OpAttachMcast    Op = 29
	OpDetachMcast    Op = 30
	OpListResources  Op = 31
	OpListCounters   Op = 32

	OpCreateCMChannel  Op = 33
	OpDestroyCMChannel Op = 34
	OpCreateCMID       Op = 35
	OpDestroyCMID      Op = 36
	OpBindCM           Op = 37
	OpResolveCMAddr    Op = 38
	OpResolveCMRoute   Op = 39
	OpQueryCM          Op = 40
	OpListenCM         Op = 41
	OpConnectCM        Op = 42
	OpAcceptCM         Op = 43
	OpRejectCM         Op = 44
	OpEstablishCM      Op = 45
	OpDisconnectCM     Op = 46
	OpNotifyCM         Op = 47
	OpMigrateCM        Op = 48
	OpQPAttrCM         Op = 49
	OpSetCMOption      Op = 50
	OpJoinCM           Op = 51
	OpLeaveCM          Op = 52

	OpImpair     Op = 60
	OpListImpair Op = 61

	OpStartCapture Op = 62
	OpStopCapture  Op = 63
	OpQueryCapture Op = 64
	OpExplainQP    Op = 65
	OpListGIDs     Op = 66
)

var opNames = map[Op]string{
	OpHello: "hello", OpQueryDevice: "query device", OpQueryPort: "query port", OpQueryGIDTable: "query GID table",
	OpAllocPD: "alloc PD", OpDeallocPD: "dealloc PD", OpRegMR: "reg MR", OpDeregMR: "dereg MR",
	OpCreateChannel: "create channel", OpDestroyChannel: "destroy channel", OpCreateCQ: "create CQ",
	OpDestroyCQ: "destroy CQ", OpCreateQP: "create QP", OpModifyQP: "modify QP", OpQueryQP: "query QP",
	OpDestroyQP: "destroy QP", OpCreateAH: "create AH", OpDestroyAH: "destroy AH",
	OpCreateSRQ: "create SRQ", OpModifySRQ: "modify SRQ", OpQuerySRQ: "query SRQ", OpDestroySRQ: "destroy SRQ",
	OpAllocMW: "alloc MW", OpDeallocMW: "dealloc MW", OpReregMR: "rereg MR", OpAllocMR: "alloc MR",
	OpAdviseMR: "advise MR", OpResizeCQ: "resize CQ", OpAttachMcast: "attach multicast", OpDetachMcast: "detach multicast",
	OpImpair: "impair", OpListImpair: "list impairments",
	OpStartCapture: "start capture", OpStopCapture: "stop capture", OpQueryCapture: "query capture",
	OpListResources: "list resources", OpListCounters: "list counters",
	OpCreateCMChannel: "create CM channel", OpDestroyCMChannel: "destroy CM channel", OpCreateCMID: "create CM id",
	OpDestroyCMID: "destroy CM id", OpBindCM: "bind CM id", OpResolveCMAddr: "resolve address", OpResolveCMRoute: "resolve route",
	OpQueryCM: "query CM id", OpListenCM: "listen", OpConnectCM: "connect", OpAcceptCM: "accept", OpRejectCM: "reject",
	OpEstablishCM: "establish", OpDisconnectCM: "disconnect", OpNotifyCM: "notify", OpMigrateCM: "migrate CM id",
	OpQPAttrCM: "QP attributes of CM id", OpSetCMOption: "set CM option", OpJoinCM: "join multicast", OpLeaveCM: "leave multicast",
	OpExplainQP: "explain QP", OpListGIDs: "list GIDs",
}

// String names the operation.
func (o Op) String() string {
	if n := opNames[o]; n != "" {
		return n
	}
	return fmt.Sprintf("op %d", uint16(o))
}

// Header starts every control message.
//
//	0 op u16    2 version u16    4 seq u32    8 errno i32    12 length of the body u32
type Header struct {
	Op      Op
	Version uint16
	Seq     uint32 // the request's, repeated in the reply
	Errno   int32  // of a reply; not 0: the body is an explanation in UTF-8
	Length  uint32 // of the body, in bytes; AppendMessage fills it in
}

// Body is what follows a header.
type Body interface {
	// Append appends the encoded body to b.
	Append(b []byte) []byte
}

// AppendMessage appends a message to b; nil for no body.
func AppendMessage(b []byte, h Header, body Body) []byte {
	start := len(b)
	b = h.append(b)
	if body != nil {
		b = body.Append(b)
	}
	binary.LittleEndian.PutUint32(b[start+12:], uint32(len(b)-start-HeaderSize))
	return b
}

// AppendError appends a reply that refuses: h.Errno is not 0, text explains it.
// The text is cut at 1024 bytes.
func AppendError(b []byte, h Header, text string) []byte {
	text = strings.ToValidUTF8(text, "?")
	for len(text) > maxText {
		_, size := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-size]
	}
	h.Length = uint32(len(text))
	return append(h.append(b), text...)
}

func (h Header) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, uint16(h.Op))
	b = le.AppendUint16(b, h.Version)
	b = le.AppendUint32(b, h.Seq)
	b = le.AppendUint32(b, uint32(h.Errno))
	return le.AppendUint32(b, h.Length)
}

// DecodeHeader takes a message apart; body aliases msg. It does not look at the
// version, so that a message of another one can be refused by name. Error:
// ErrMalformed.
func DecodeHeader(msg []byte) (h Header, body []byte, err error) {
	if len(msg) < HeaderSize || len(msg) > MaxMessage {
		return h, nil, fmt.Errorf("%w: %d bytes (between %d and %d)", ErrMalformed, len(msg), HeaderSize, MaxMessage)
	}
	le := binary.LittleEndian
	h = Header{
		Op: Op(le.Uint16(msg)), Version: le.Uint16(msg[2:]), Seq: le.Uint32(msg[4:]),
		Errno: int32(le.Uint32(msg[8:])), Length: le.Uint32(msg[12:]),
	}
	body = msg[HeaderSize:]
	if uint64(h.Length) != uint64(len(body)) {
		return h, nil, fmt.Errorf("%w: %s with a body of %d bytes that says %d", ErrMalformed, h.Op, len(body), h.Length)
	}
	return h, body, nil
}

// DecodeError returns the explanation in the body of a refusing reply.
func DecodeError(body []byte) string {
	return strings.ToValidUTF8(string(body[:min(len(body), maxText)]), "?")
}

// reader takes a body apart. The first error sticks; all that is read after it
// is zero.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, args...)...)
	}
	r.b = nil
}

var zeros [64]byte

func (r *reader) take(n int) []byte {
	if r.err != nil || len(r.b) < n {
		r.fail("body ends early")
		return zeros[:n]
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u8() uint8   { return r.take(1)[0] }
func (r *reader) u16() uint16 { return binary.LittleEndian.Uint16(r.take(2)) }
func (r *reader) u32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }

func (r *reader) flag() bool {
	v := r.u8()
	if v > 1 {
		r.fail("flag is %d", v)
	}
	return v == 1
}

func (r *reader) text() string {
	n := int(r.u16())
	if n > maxText || n > len(r.b) {
		r.fail("text of %d bytes", n)
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	if !utf8.ValidString(s) {
		r.fail("text is not UTF-8")
		return ""
	}
	return s
}

// end returns the error, also when something is left over.
func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.fail("%d bytes too many", len(r.b))
	}
	return r.err
}

func appendFlag(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// appendText appends a text with its length, cut at 1024 bytes.
func appendText(b []byte, s string) []byte {
	s = s[:min(len(s), maxText)]
	s = strings.ToValidUTF8(s, "")
	b = binary.LittleEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

// appendU32s appends values one after the other.
func appendU32s(b []byte, vs ...uint32) []byte {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// HandleRequest asks for something about one object: all destroying operations,
// QueryQP, QuerySRQ.
type HandleRequest struct{ Handle uint32 }

// Append encodes the request.
func (m *HandleRequest) Append(b []byte) []byte { return appendU32s(b, m.Handle) }

// Decode reads the request. Error: ErrMalformed.
func (m *HandleRequest) Decode(b []byte) error {
	r := reader{b: b}
	m.Handle = r.u32()
	return r.end()
}

// HandleReply names a new object of this program; never 0. AllocPD, CreateAH,
// CreateChannel (with the channel pipe's reading end as descriptor).
type HandleReply struct{ Handle uint32 }

// Append encodes the reply.
func (m *HandleReply) Append(b []byte) []byte { return appendU32s(b, m.Handle) }

// Decode reads the reply. Error: ErrMalformed.
func (m *HandleReply) Decode(b []byte) error {
	r := reader{b: b}
	m.Handle = r.u32()
	return r.end()
}

// Empty is a body of no bytes.
type Empty struct{}

// Append appends nothing.
func (m *Empty) Append(b []byte) []byte { return b }

// Decode accepts no bytes only. Error: ErrMalformed.
func (m *Empty) Decode(b []byte) error {
	r := reader{b: b}
	return r.end()
}

package rdmacm

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/verbs"
)

// EventType is the kind of an event (rdma_cm_event_type).
type EventType uint32

// Events (specification values: rdma_cm_event_type).
const (
	EventAddrResolved    EventType = 0
	EventAddrError       EventType = 1
	EventRouteResolved   EventType = 2
	EventRouteError      EventType = 3
	EventConnectRequest  EventType = 4
	EventConnectResponse EventType = 5
	EventConnectError    EventType = 6
	EventUnreachable     EventType = 7
	EventRejected        EventType = 8
	EventEstablished     EventType = 9
	EventDisconnected    EventType = 10
	EventDeviceRemoval   EventType = 11
	EventMulticastJoin   EventType = 12
	EventMulticastError  EventType = 13
	EventAddrChange      EventType = 14
	EventTimewaitExit    EventType = 15
)

var eventTexts = map[EventType][2]string{
	EventAddrResolved:    {"ADDR_RESOLVED", "the address is resolved"},
	EventAddrError:       {"ADDR_ERROR", "no way to the address"},
	EventRouteResolved:   {"ROUTE_RESOLVED", "the route is resolved"},
	EventRouteError:      {"ROUTE_ERROR", "no route to the address"},
	EventConnectRequest:  {"CONNECT_REQUEST", "a peer asks for a connection"},
	EventConnectResponse: {"CONNECT_RESPONSE", "the peer accepted, and the program's queue pair is to be made ready"},
	EventConnectError:    {"CONNECT_ERROR", "the connection failed on this side"},
	EventUnreachable:     {"UNREACHABLE", "the peer does not answer"},
	EventRejected:        {"REJECTED", "the peer refused"},
	EventEstablished:     {"ESTABLISHED", "the connection is up"},
	EventDisconnected:    {"DISCONNECTED", "the connection has ended"},
	EventDeviceRemoval:   {"DEVICE_REMOVAL", "the adapter goes away"},
	EventMulticastJoin:   {"MULTICAST_JOIN", "the multicast group is joined"},
	EventMulticastError:  {"MULTICAST_ERROR", "the multicast group could not be joined"},
	EventAddrChange:      {"ADDR_CHANGE", "the address has moved to another device"}, // of a bond that fails over: no adapter of ours tells it
	EventTimewaitExit:    {"TIMEWAIT_EXIT", "packets of the connection are gone from the network"},
}

// String is the event's name, as rdma_event_str gives it.
func (t EventType) String() string {
	if s, ok := eventTexts[t]; ok {
		return "RDMA_CM_EVENT_" + s[0]
	}
	return fmt.Sprintf("UNKNOWN EVENT %d", uint32(t))
}

// Explain says in words what the event means.
func (t EventType) Explain() string {
	if s, ok := eventTexts[t]; ok {
		return s[1]
	}
	return t.String()
}

// RejectReason is why a peer refused a connection; String says it in words.
type RejectReason = cm.RejectReason

// Reasons that programs meet (specification values: IBTA Vol 1 §12.6.7.2).
const (
	RejectNoListener      = cm.RejInvalidServiceID
	RejectStaleConnection = cm.RejStaleConnection
	RejectInvalidGID      = cm.RejInvalidGID
	// RejectConsumer is a refusal by the program, rdma_reject's.
	RejectConsumer = cm.RejConsumer
)

// Event is one event (rdma_cm_event).
type Event struct {
	Type EventType
	// ID is the identifier that the event is about; of a CONNECT_REQUEST a new one,
	// which is the program's to destroy.
	ID *ID
	// Listen is the listening identifier of a CONNECT_REQUEST.
	Listen *ID
	// Status is 0, a negative errno, with REJECTED the RejectReason, and with
	// UNREACHABLE of UD the SIDR status.
	Status int32
	// Conn are the connection's parameters, as this side is to use them.
	Conn ConnParam
	// UD tells where datagrams go: ESTABLISHED of UD, and MULTICAST_JOIN.
	UD UDParam
	// Private is the peer's private data: the whole field of the message, zero
	// padded, since no message tells its length.
	Private []byte
	// Context is what JoinMulticast was given: events of multicast.
	Context any

	owner *ID // whose destruction waits for Ack
	acked atomic.Bool
}

// Ack acknowledges the event (rdma_ack_cm_event): destroying its identifier, of
// a CONNECT_REQUEST the listening one, waits for it. A second call does nothing.
func (e *Event) Ack() {
	if e.owner != nil && !e.acked.Swap(true) {
		e.owner.acks.Ack(1)
	}
}

// RejectError says that the peer refused a connection.
type RejectError struct {
	Reason  RejectReason
	Private []byte // the peer's, zero padded
}

// Error gives the reason in words.
func (e *RejectError) Error() string {
	return fmt.Sprintf("connect: rejected by the peer: %v (reason %d)", e.Reason, uint16(e.Reason))
}

// Unwrap lets errors.Is find ECONNREFUSED, as librdmacm's synchronous calls have it.
func (e *RejectError) Unwrap() error { return unix.ECONNREFUSED }

// Err is the event as an error: nil for those that tell of success. It wraps a
// RejectError, or the errno.
func (e *Event) Err() error {
	switch e.Type {
	case EventAddrResolved, EventRouteResolved, EventConnectRequest, EventConnectResponse, EventEstablished,
		EventMulticastJoin, EventAddrChange, EventTimewaitExit:
		return nil
	case EventRejected:
		if e.ID != nil && e.ID.space == PSUDP {
			return e.sidr()
		}
		return &RejectError{Reason: RejectReason(e.Status), Private: e.Private}
	case EventUnreachable:
		if e.Status > 0 {
			return e.sidr()
		}
		return e.failed("connect", unix.ETIMEDOUT)
	case EventAddrError:
		return e.failed("resolve address", unix.EHOSTUNREACH)
	case EventRouteError:
		return e.failed("resolve route", unix.EHOSTUNREACH)
	case EventConnectError:
		return e.failed("connect", unix.EIO)
	case EventMulticastError:
		return e.failed("join multicast", unix.EIO)
	case EventDisconnected:
		return e.failed("connection", unix.ECONNRESET)
	case EventDeviceRemoval:
		return fmt.Errorf("connection: %w: %w", verbs.ErrDeviceDead, unix.ENODEV)
	}
	return nil
}

func (e *Event) sidr() error {
	return &verbs.Error{Op: "connect", Errno: unix.ECONNREFUSED, Text: cm.SIDRStatus(e.Status).String()}
}

// failed is an error with the event's errno, or def when it has none.
func (e *Event) failed(op string, def unix.Errno) error {
	if e.Status < 0 {
		def = unix.Errno(-e.Status)
	}
	return &verbs.Error{Op: op, Errno: def, Text: e.Type.Explain()}
}

// ConnParam are the parameters of a connection (rdma_conn_param).
type ConnParam struct {
	// PrivateData is for the peer's program, at most 56 bytes with Connect, 196 with
	// Accept; of UD 180 and 136.
	PrivateData []byte
	// ResponderResources is how many READs and atomics of the peer this side takes
	// at once, InitiatorDepth how many it has in flight itself. MaxDepth: as many as
	// the adapter can, or with Accept as the peer asked for.
	ResponderResources, InitiatorDepth uint8
	FlowControl                        bool
	RetryCount                         uint8 // 0 to 7; means nothing with Accept
	RNRRetryCount                      uint8 // 0 to 7; 7 is without end
	// SRQ and QPN are of a queue pair that is not the identifier's own; QKey is of
	// UD, 0: the default.
	SRQ  bool
	QPN  verbs.QPN
	QKey verbs.QKey
}

// MaxDepth is RDMA_MAX_RESP_RES and RDMA_MAX_INIT_DEPTH.
const MaxDepth = cm.DepthMax

// DefaultConnParam is what a nil ConnParam stands for: as many READs and atomics
// as can be, flow control, 7 retries, and waiting for receivers without end.
func DefaultConnParam() ConnParam {
	return ConnParam{
		ResponderResources: MaxDepth, InitiatorDepth: MaxDepth, FlowControl: true, RetryCount: 7, RNRRetryCount: 7,
	}
}

// UDParam tells where datagrams go (rdma_ud_param).
type UDParam struct {
	AH   verbs.AHAttr
	QPN  verbs.QPN
	QKey verbs.QKey
}

// QKeyUDP is the queue key of UD identifiers (RDMA_UDP_QKEY).
const QKeyUDP verbs.QKey = 0x01234567

// fill makes an event's contents of its record.
func (e *Event) fill(rec *uapi.CMRecord) {
	p := &rec.Param
	e.Type, e.Status, e.Private = EventType(rec.Event), rec.Status, rec.Private
	e.Conn = ConnParam{
		PrivateData: rec.Private, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		FlowControl: p.FlowControl, RetryCount: p.RetryCount, RNRRetryCount: p.RNRRetryCount, SRQ: p.SRQ,
		QPN: p.QPN, QKey: p.QKey,
	}
	e.UD = UDParam{AH: p.AH, QPN: p.QPN, QKey: p.QKey}
}

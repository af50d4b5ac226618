package cm

import (
	"net/netip"
	"strconv"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// EventKind says what happened, with librdmacm's numbers (rdma_cm_event_type).
type EventKind uint8

// Events.
const (
	ConnectRequest  EventKind = 4  // a peer asks: Listener, Param, addresses, private data; answer with Accept or Reject
	ConnectResponse EventKind = 5  // the peer accepted: Param, private data; answer with Establish
	Unreachable     EventKind = 7  // no answer (StatusTimeout), or a SIDR_REP's refusal (its SIDRStatus)
	Rejected        EventKind = 8  // Status is the RejectReason; private data
	Established     EventKind = 9  // the connection is up; of UD: Param and Path of the peer; private data
	Disconnected    EventKind = 10 // the connection ends: Disconnect, when it was the peer who began
	TimewaitExit    EventKind = 15 // packets of the connection are gone from the network
)

// StatusTimeout is the status of an event that no answer caused: -ETIMEDOUT.
const StatusTimeout = -110

// String is the event's name, as rdma_event_str without its prefix.
func (k EventKind) String() string {
	switch k {
	case ConnectRequest:
		return "CONNECT_REQUEST"
	case ConnectResponse:
		return "CONNECT_RESPONSE"
	case Unreachable:
		return "UNREACHABLE"
	case Rejected:
		return "REJECTED"
	case Established:
		return "ESTABLISHED"
	case Disconnected:
		return "DISCONNECTED"
	case TimewaitExit:
		return "TIMEWAIT_EXIT"
	}
	return "event " + strconv.Itoa(int(k))
}

// Param are a connection's parameters, as rdma_conn_param, seen from the side
// that gives or gets them: an event has them swapped.
type Param struct {
	QPN                bth.QPN // own when given, the peer's in an event
	QKey               bth.QKey
	ResponderResources uint8 // READs and atomics of the peer that this side takes at once
	InitiatorDepth     uint8 // READs and atomics that this side has in flight; DepthMax: as many as the adapter can
	FlowControl        bool
	RetryCount         uint8 // 0 to 7; not in an answer
	RNRRetry           uint8 // 0 to 7; 7 is without end
	SRQ                bool
}

// DepthMax as either depth means the adapter's maximum (RDMA_MAX_RESP_RES).
const DepthMax = 0xFF

// Event is something that a program is to know.
type Event struct {
	Kind     EventKind
	ID       CommID
	Listener ListenerID // ConnectRequest
	Status   int32
	Type     qpstate.Type
	Service  ServiceID
	// Local and Remote are the addresses of the CMA header, with ports; not
	// valid without a header.
	Local, Remote netip.AddrPort
	// Path leads to the peer: of UD and ConnectRequest.
	Path  Path
	Param Param

	// Private is zero padded; the first PrivateLen bytes are the message's whole
	// private data (no message has a length of it).
	Private    [MaxPrivate]byte
	PrivateLen int
}

// Path is the way of a MAD or of a connection's packets, seen from this side.
type Path struct {
	Local, Remote bth.GID
	SGIDIndex     uint8  // of Local in the port's GID table
	FlowLabel     uint32 // 20 bits
	TrafficClass  uint8
	HopLimit      uint8
	SL            uint8
}

// Verdict says what became of a MAD.
type Verdict uint8

// Verdicts. Those named Drop had no effect and no answer.
const (
	Handled       Verdict = iota // progress, or an event
	Answered                     // answered without an id: a refusal, a DREP, a ClassPortInfo
	Duplicate                    // seen before: answered again, or nothing to do
	DropMalformed                // length, version, class, method, attribute
	DropUnknown                  // no such communication id, or not of this peer
	DropState                    // not expected now
	DropFull                     // a table or a backlog is full: the peer asks again

	// VerdictCount is the number of verdicts.
	VerdictCount
)

var verdictNames = [VerdictCount]string{
	"handled", "answered", "duplicate", "drop_malformed", "drop_unknown", "drop_state", "drop_full",
}

// String gives the verdict as a counter's name.
func (v Verdict) String() string {
	if v < VerdictCount {
		return verdictNames[v]
	}
	return "verdict_" + strconv.Itoa(int(v))
}

// Counters count since the machine was made.
type Counters struct {
	Received  [AttrAPR - AttrREQ + 1]uint64 // by message, from AttrREQ on
	Sent      [AttrAPR - AttrREQ + 1]uint64
	Resent    uint64 // of those: after a time without an answer
	Verdicts  [VerdictCount]uint64
	SendsLost uint64 // the send queue was full
	Conns     int    // ids now, of all states
	HalfOpen  int    // of those: requests of peers that are not established
	Listeners int    // listeners now
}

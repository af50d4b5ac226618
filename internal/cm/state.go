package cm

import (
	"net/netip"
	"strconv"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// State is what an id is doing (IBTA Vol 1 §12.9.7).
type State uint8

// States of a connection, then those of a service id resolution (UD).
const (
	Idle         State = iota // over, or refused
	ReqSent                   // active: a REQ, no answer yet
	MRAReqRcvd                // active: the peer asked for time
	RepRcvd                   // active: ConnectResponse, Establish is awaited
	ReqRcvd                   // passive: ConnectRequest, Accept is awaited
	RepSent                   // passive: a REP, no RTU yet
	MRARepRcvd                // passive: the peer asked for time
	Connected                 // the connection is up
	DReqSent                  // a DREQ, no answer yet
	DReqRcvd                  // Disconnected, Disconnect is awaited
	TimeWait                  // waits for the network to forget it
	SIDRReqSent               // active, UD
	SIDRReqRcvd               // passive, UD: ConnectRequest, Accept is awaited
	SIDRAnswered              // passive, UD: duplicates get the same answer

	stateCount
)

var stateNames = [stateCount]string{
	"IDLE", "REQ_SENT", "MRA_REQ_RCVD", "REP_RCVD", "REQ_RCVD", "REP_SENT", "MRA_REP_RCVD", "ESTABLISHED",
	"DREQ_SENT", "DREQ_RCVD", "TIMEWAIT", "SIDR_REQ_SENT", "SIDR_REQ_RCVD", "SIDR_ANSWERED",
}

// String is the state's name in the specification.
func (s State) String() string {
	if s < stateCount {
		return stateNames[s]
	}
	return "state " + strconv.Itoa(int(s))
}

// Info is what can be listed of an id.
type Info struct {
	ID, RemoteID   CommID
	State          State
	Active         bool // this side asked
	Type           qpstate.Type
	Service        ServiceID
	Local, Remote  netip.AddrPort // of the CMA header
	Path           Path
	QPN, RemoteQPN bth.QPN
	Listener       ListenerID // of a request
}

package transport

import (
	"errors"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/wq"
)

// Errors that callers branch on.
var (
	// ErrFull: the send queue has no room now; post again later.
	ErrFull = wq.ErrFull
	// ErrState: the state does not allow the call (EINVAL).
	ErrState = errors.New("transport: not allowed in this state")
	// ErrDraining: in SQD, and requests that were started are not done: only RESET
	// and ERR can be asked for (EINVAL).
	ErrDraining = errors.New("transport: the send queue is not drained")
	// ErrPath: Modify with an address vector, but without a path.
	ErrPath = errors.New("transport: modify with an address vector needs a path")
)

// A fault is what a responder finds wrong with a request.
type fault uint8

const (
	faultNone       fault = iota
	faultInvalid          // opcode, succession, operation not enabled, too many READs
	faultLength           // payload, pad or DMA length
	faultAccess           // key, domain, right, bounds
	faultAlign            // atomic's address
	faultRecvShort        // message longer than the receive
	faultScatter          // receive's own memory
	faultInvalidate       // key of a SEND with Invalidate
	faultNotReady         // no receive posted
	faultResource         // no memory for a replay record: as if the packet was lost
	faultCount
)

// unacknowledged maps a fault of a service without acknowledgements to what
// becomes of the packet, and to the status of the receive that was taken from a
// shared queue for it; a receive of its own the queue pair keeps for the next
// message (fault classes D and E). What is not here is a local fault, class A.
var unacknowledged = [faultCount]struct {
	verdict Verdict
	shared  cq.Status
}{
	faultInvalid:   {DropAccess, cq.RemInvReqErr},
	faultLength:    {DropLength, cq.LocLenErr},
	faultAccess:    {DropAccess, cq.LocAccessErr},
	faultRecvShort: {DropLength, cq.LocLenErr},
	faultNotReady:  {DropNoRecv, 0},
}

// reaction is what a fault leads to (IBTA Vol 1 §9.9.3, fault classes).
type reaction struct {
	syndrome bth.Syndrome // NAK, 0: none
	recv     cq.Status    // of the message's receive, if it has one
	event    EventKind    // when no completion tells of it, 0: none
	verdict  Verdict
	fatal    bool // queue pair to ERR
}

// reactions maps a responder's faults to NAK codes, completion statuses and
// events. The syndrome of faultNotReady gets its timer code when it is sent.
var reactions = [faultCount]reaction{
	faultInvalid:    {bth.NAKInvalidRequest, cq.RemInvReqErr, QPReqErr, Refused, true},
	faultLength:     {bth.NAKInvalidRequest, cq.LocLenErr, QPReqErr, Refused, true},
	faultAccess:     {bth.NAKRemoteAccess, cq.LocAccessErr, QPAccessErr, Refused, true},
	faultAlign:      {bth.NAKInvalidRequest, cq.RemInvReqErr, QPReqErr, Refused, true},
	faultRecvShort:  {bth.NAKInvalidRequest, cq.LocLenErr, QPReqErr, Refused, true},
	faultScatter:    {bth.NAKRemoteOperational, cq.LocProtErr, QPFatal, Refused, true},
	faultInvalidate: {0, cq.LocQPOpErr, QPAccessErr, Refused, true}, // class J: no NAK
	faultNotReady:   {bth.RNRSyndrome(0), 0, 0, NotReady, false},
	faultResource:   {0, 0, 0, DropResource, false},
}

// nakStatus maps a NAK received to the status of the request that it refuses
// (IBTA Vol 1 §9.9.2). Reserved codes are a bad response.
func nakStatus(s bth.Syndrome) cq.Status {
	switch s {
	case bth.NAKInvalidRequest:
		return cq.RemInvReqErr
	case bth.NAKRemoteAccess:
		return cq.RemAccessErr
	case bth.NAKRemoteOperational:
		return cq.RemOpErr
	default:
		return cq.BadRespErr
	}
}

package qpstate

import "fmt"

// Type is a queue pair's service type, with the values of ibv_qp_type.
type Type uint8

// Types (specification values: ibv_qp_type; GSI is QP1).
const (
	GSI Type = 1
	RC  Type = 2
	UC  Type = 3
	UD  Type = 4
)

// String is the type's name.
func (t Type) String() string {
	switch t {
	case GSI:
		return "GSI"
	case RC:
		return "RC"
	case UC:
		return "UC"
	case UD:
		return "UD"
	default:
		return fmt.Sprintf("type %d", uint8(t))
	}
}

// Valid says whether the type is one of this package's.
func (t Type) Valid() bool { return t >= GSI && t <= UD }

// SendErrorState is the state that a send queue's error moves a queue pair
// to: RC goes to ERR, the unacknowledged services to SQE, where they still
// receive (IBTA Vol 1 §10.3.1.6).
func (t Type) SendErrorState() State {
	if t == RC {
		return Err
	}
	return SQE
}

// State is a queue pair's state, with the values of ibv_qp_state.
type State uint8

// States (specification values: ibv_qp_state).
const (
	Reset State = 0
	Init  State = 1
	RTR   State = 2
	RTS   State = 3
	SQD   State = 4
	SQE   State = 5
	Err   State = 6

	stateCount = 7
)

// ability is one thing that a state allows.
type ability uint8

const (
	postSend          ability = 1 << iota // post_send is accepted
	postRecv                              // post_recv is accepted
	receivesRequests                      // incoming requests are processed
	sendsRequests                         // requests of started WRs go out
	startsRequests                        // further WRs are started
	receivesResponses                     // incoming responses are processed
	flushesSend                           // send requests are flushed
	flushesRecv                           // receive requests are flushed
)

// stateRow is a state's name and what it allows.
type stateRow struct {
	name      string
	abilities ability
}

// states is the one table of what each state allows (IBTA Vol 1 §10.3.1).
var states = [stateCount]stateRow{
	Reset: {"RESET", 0},
	Init:  {"INIT", postRecv},
	RTR:   {"RTR", postRecv | receivesRequests},
	RTS:   {"RTS", postSend | postRecv | receivesRequests | sendsRequests | startsRequests | receivesResponses},
	SQD:   {"SQD", postSend | postRecv | receivesRequests | sendsRequests | receivesResponses},
	SQE:   {"SQE", postSend | postRecv | receivesRequests | flushesSend},
	Err:   {"ERR", postSend | postRecv | flushesSend | flushesRecv},
}

func (s State) can(a ability) bool { return s < stateCount && states[s].abilities&a != 0 }

// Valid says whether the state is one of the seven.
func (s State) Valid() bool { return s < stateCount }

// String is the state's name.
func (s State) String() string {
	if s < stateCount {
		return states[s].name
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// AllowsPostSend says whether send requests may be posted: they are queued,
// and in SQE and ERR flushed.
func (s State) AllowsPostSend() bool { return s.can(postSend) }

// AllowsPostRecv says whether receive requests may be posted: they are
// queued, and in ERR flushed.
func (s State) AllowsPostRecv() bool { return s.can(postRecv) }

// ReceivesRequests says whether incoming requests are processed; else they
// are dropped.
func (s State) ReceivesRequests() bool { return s.can(receivesRequests) }

// SendsRequests says whether request packets go out. In SQD they are those of
// requests that were started; see [State.StartsRequests].
func (s State) SendsRequests() bool { return s.can(sendsRequests) }

// StartsRequests says whether the next send request may be started.
func (s State) StartsRequests() bool { return s.can(startsRequests) }

// ProcessesResponses says whether incoming responses are processed; else they
// are dropped.
func (s State) ProcessesResponses() bool { return s.can(receivesResponses) }

// Flushes says whether send requests complete with WR_FLUSH_ERR: in SQE and
// ERR. In ERR receive requests do so, too; see [State.FlushesRecv].
func (s State) Flushes() bool { return s.can(flushesSend) }

// FlushesRecv says whether receive requests complete with WR_FLUSH_ERR.
func (s State) FlushesRecv() bool { return s.can(flushesRecv) }

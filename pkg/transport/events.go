package transport

import (
	"fmt"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/wq"
)

// EventKind says what an Event is about.
type EventKind uint8

// Asynchronous events of the verbs (IBTA Vol 1 §11.6.3), then notes that explain
// to a human why a connection is slow or ended.
const (
	QPFatal     EventKind = 1 + iota // Fatal was called
	QPReqErr                         // an invalid request that no completion tells of
	QPAccessErr                      // an access violation that no completion tells of
	CommEst                          // a first packet in RTR
	SQDrained                        // in SQD, and all started requests are done
	LastWQE                          // in ERR, no request of a shared queue left

	NoteRNRTimer         // an RNR NAK made this end wait: Code, Wait
	NoteMTU              // the two ends have different path MTUs: OwnMTU, PeerMTU
	NoteRetryExceeded    // no answer after Count retries: PSN, Wait is the ACK timeout
	NoteRNRRetryExceeded // no receive at the peer after Count retries: PSN, Code, Wait
	NoteRemoteNAK        // the peer refused a request: Syndrome, PSN
	NoteRecvShort        // a datagram and its header need a receive of Count bytes, and the posted one is smaller
	NoteLocalFault       // a request of this end could not be carried out: PSN, Status, Op
	NoteLongRNRTimer     // this end makes the peer wait by its min_rnr_timer of 0: Wait
)

// IsNote says whether the event is a diagnostic, not one of the verbs.
func (k EventKind) IsNote() bool { return k >= NoteRNRTimer }

// Event is an asynchronous event or a note. Fields beside Kind, QPN and Type hold what
// the kind's comment names, else zero.
type Event struct {
	Kind            EventKind
	Code            uint8 // RNR timer code
	Syndrome        bth.Syndrome
	Status          cq.Status
	Op              wq.Opcode
	QPN             bth.QPN
	Type            qpstate.Type
	PSN             bth.PSN
	OwnMTU, PeerMTU int // bytes; PeerMTU 0: different, but not known
	Count           int
	Wait            time.Duration
}

var eventTexts = [...]string{
	QPFatal:     "the queue pair failed and is in ERR",
	QPReqErr:    "the peer sent an invalid request, the queue pair is in ERR",
	QPAccessErr: "the peer violated a key, a range or a right, the queue pair is in ERR",
	CommEst:     "the first packet arrived",
	SQDrained:   "the send queue is drained",
	LastWQE:     "the last request of the shared receive queue is done",
}

// Text says in words what happened.
func (e *Event) Text() string {
	switch e.Kind {
	case QPFatal, QPReqErr, QPAccessErr, CommEst, SQDrained, LastWQE:
		return eventTexts[e.Kind]
	case NoteLongRNRTimer:
		return fmt.Sprintf("no receive is posted, and each RNR NAK makes the peer wait %v: this queue pair's min_rnr_timer is 0, which stands for the longest time; 1 is 10µs, 12 is 640µs", e.Wait)
	case NoteRNRTimer:
		if e.Code == 0 {
			return fmt.Sprintf("the peer had no receive posted: its RNR NAK with timer code 0 makes this queue pair wait %v each time, the longest there is; its min_rnr_timer was left at 0", e.Wait)
		}
		return fmt.Sprintf("the peer had no receive posted: its RNR NAK with timer code %d (its min_rnr_timer) makes this queue pair wait %v each time", e.Code, e.Wait)
	case NoteMTU:
		if e.PeerMTU == 0 {
			return fmt.Sprintf("the peer refused a request of a long message as invalid: this queue pair sends packets of %d bytes, its path MTU, and the peer's path MTU may be another", e.OwnMTU)
		}
		return fmt.Sprintf("the path MTUs differ: the peer sends packets of %d bytes, this queue pair has path MTU %d; give both ends the same path_mtu", e.PeerMTU, e.OwnMTU)
	case NoteRetryExceeded:
		return fmt.Sprintf("no answer to PSN %v after %d retries with an ACK timeout of %v", e.PSN, e.Count, e.Wait)
	case NoteRNRRetryExceeded:
		return fmt.Sprintf("no receive posted at the peer for PSN %v after %d retries with RNR timer code %d (%v)", e.PSN, e.Count, e.Code, e.Wait)
	case NoteRemoteNAK:
		return fmt.Sprintf("the peer refused PSN %v: %v", e.PSN, e.Syndrome)
	case NoteRecvShort:
		return fmt.Sprintf("a datagram was dropped: with the 40 bytes of its network header it needs a receive of %d bytes, and the one posted is smaller", e.Count)
	case NoteLocalFault:
		switch {
		case isLocal(e.Op):
			return localTexts[e.Op]
		case e.Status == cq.LocQPOpErr && e.Type == qpstate.UD:
			return fmt.Sprintf("the datagram at PSN %v cannot be sent: the protection domain has no such address handle", e.PSN)
		case e.Status == cq.LocQPOpErr:
			return fmt.Sprintf("the READ or atomic at PSN %v cannot be sent: max_rd_atomic is 0", e.PSN)
		case e.Status == cq.LocLenErr:
			return fmt.Sprintf("the datagram at PSN %v is longer than the path MTU", e.PSN)
		}
		return fmt.Sprintf("local memory of the request at PSN %v may not be used so", e.PSN)
	}
	return fmt.Sprintf("event %d", e.Kind)
}

// maxEvents bounds what waits to be polled (our own tuning); later events are
// lost, which takes a caller that never polls.
const maxEvents = 16

// event queues e unless one of its kind waits already.
func (q *QP) event(e Event) {
	for i := range q.events {
		if q.events[i].Kind == e.Kind {
			return
		}
	}
	if len(q.events) < maxEvents {
		e.QPN, e.Type = q.cfg.QPN, q.cfg.Type
		q.events = append(q.events, e)
	}
}

// noteOnce queues a note that is told once in a connection's life.
func (q *QP) noteOnce(e Event) {
	bit := uint32(1) << e.Kind
	if q.noted&bit == 0 {
		q.noted |= bit
		q.event(e)
	}
}

// PollEvent returns the oldest event that was not polled yet, false when there
// is none.
func (q *QP) PollEvent() (Event, bool) {
	if len(q.events) == 0 {
		return Event{}, false
	}
	e := q.events[0]
	q.events = q.events[:copy(q.events, q.events[1:])]
	if len(q.events) == 0 {
		q.events = nil
	}
	return e, true
}

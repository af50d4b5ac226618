package verbs

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/devctl"
	"github.com/softroce/softroce/internal/uapi"
)

// EventType is the kind of an asynchronous event (ibv_event_type).
type EventType uint32

// The kinds that an adapter raises (specification values: ibv_event_type).
const (
	EventCQErr           EventType = 0
	EventQPFatal         EventType = 1
	EventQPReqErr        EventType = 2
	EventQPAccessErr     EventType = 3
	EventCommEst         EventType = 4
	EventSQDrained       EventType = 5
	EventDeviceFatal     EventType = 8
	EventPortActive      EventType = 9
	EventPortErr         EventType = 10
	EventSRQErr          EventType = 14
	EventSRQLimitReached EventType = 15
	EventQPLastWQE       EventType = 16
	EventGIDChange       EventType = 18

	// EventSRQLimit is the same as EventSRQLimitReached.
	EventSRQLimit = EventSRQLimitReached
)

var eventNames = map[EventType]string{
	EventCQErr: "CQ error", EventQPFatal: "local work queue catastrophic error",
	EventQPReqErr: "invalid request local work queue error", EventQPAccessErr: "local access violation work queue error",
	EventCommEst: "communication established", EventSQDrained: "send queue drained",
	EventDeviceFatal: "local catastrophic error", EventPortActive: "port active", EventPortErr: "port error",
	EventSRQErr: "SRQ catastrophic error", EventSRQLimitReached: "SRQ limit reached",
	EventQPLastWQE: "last WQE reached", EventGIDChange: "GID table change",
}

// String is the name of the event.
func (t EventType) String() string {
	if s, ok := eventNames[t]; ok {
		return s
	}
	return fmt.Sprintf("event %d", uint32(t))
}

// endsQP says whether the event tells that its queue pair is in ERR.
func (t EventType) endsQP() bool {
	return t == EventQPFatal || t == EventQPReqErr || t == EventQPAccessErr || t == EventQPLastWQE
}

// AsyncEvent is one asynchronous event (ibv_async_event). One of CQ, QP and SRQ
// is the object that it is about; the events of the port and the GID table have
// Port instead, that of the device has nothing.
type AsyncEvent struct {
	Type EventType
	CQ   *CQ
	QP   *QP
	SRQ  *SRQ
	Port uint8 // 1

	acks *devctl.Acks
}

// Ack acknowledges the event (ibv_ack_async_event), once for each that was
// returned: destroying its object waits for it. Events of the port and the
// device need none.
func (ev AsyncEvent) Ack() {
	if ev.acks != nil {
		ev.acks.Ack(1)
	}
}

// AsyncEvent waits for the next asynchronous event (ibv_get_async_event). The
// event of an object must be acknowledged by [AsyncEvent.Ack] before the object
// can be destroyed; events of an object that is destroyed already are dropped.
// When the adapter dies it returns EventDeviceFatal, once and again: there is
// nothing else to come. It ends with ctx's error otherwise. In its steady state,
// with one context, it allocates nothing.
func (d *Device) AsyncEvent(ctx context.Context) (AsyncEvent, error) {
	var rec [uapi.AsyncRecordSize]byte
	for {
		if err := d.async.next(ctx, rec[:]); err != nil {
			if ctx.Err() != nil {
				return AsyncEvent{}, ctx.Err()
			}
			return AsyncEvent{Type: EventDeviceFatal}, nil
		}
		if ev, ok := d.asyncEvent(uapi.DecodeAsyncRecord(rec[:])); ok {
			return ev, nil
		}
	}
}

// TryAsyncEvent is AsyncEvent that does not wait, as ibv_get_async_event does on
// a descriptor with O_NONBLOCK. EAGAIN: no event is there.
func (d *Device) TryAsyncEvent() (AsyncEvent, error) {
	var rec [uapi.AsyncRecordSize]byte
	for {
		switch err := d.async.try(rec[:]); {
		case errors.Is(err, unix.EAGAIN):
			return AsyncEvent{}, errNoEvent
		case err != nil:
			return AsyncEvent{Type: EventDeviceFatal}, nil
		}
		if ev, ok := d.asyncEvent(uapi.DecodeAsyncRecord(rec[:])); ok {
			return ev, nil
		}
	}
}

// errNoEvent is what the calls return that do not wait.
var errNoEvent = &Error{Op: "get event", Errno: unix.EAGAIN, Text: "no event is there"}

// AsyncConn gives access to the descriptor that is readable while an
// asynchronous event is there (ibv_context.async_fd), for epoll and its like:
// within Control. Read events with TryAsyncEvent, until EAGAIN where the epoll
// is edge-triggered; do not read from the descriptor or close it.
func (d *Device) AsyncConn() (syscall.RawConn, error) { return d.async.f.SyscallConn() }

// asyncEvent makes an event of its record; false: its object is destroyed.
func (d *Device) asyncEvent(rec uapi.AsyncRecord) (ev AsyncEvent, ok bool) {
	ev.Type = EventType(rec.Event)
	d.mu.Lock()
	switch rec.Kind {
	case uapi.ElementCQ:
		if ev.CQ = d.cqs[rec.Handle]; ev.CQ != nil {
			ev.acks = &ev.CQ.asyncAcks
		}
	case uapi.ElementQP:
		if ev.QP = d.qps[rec.Handle]; ev.QP != nil {
			ev.acks = &ev.QP.asyncAcks
		}
	case uapi.ElementSRQ:
		if ev.SRQ = d.srqs[rec.Handle]; ev.SRQ != nil {
			ev.acks = &ev.SRQ.asyncAcks
		}
	case uapi.ElementPort:
		ev.Port = uint8(rec.Handle)
	}
	if ev.acks != nil {
		ev.acks.Took()
	}
	d.mu.Unlock()
	if ev.QP != nil && ev.Type.endsQP() {
		ev.QP.failed(StateErr)
	}
	return ev, ev.acks != nil || rec.Kind == uapi.ElementPort
}

// Done is closed when the adapter is gone or the Device is closed.
func (d *Device) Done() <-chan struct{} { return d.dying }

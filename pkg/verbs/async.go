package verbs

import (
	"context"
	"fmt"

	"github.com/softroce/softroce/internal/uapi"
)

// EventType is the kind of an asynchronous event (ibv_event_type).
type EventType uint32

// The kinds that an adapter raises.
const (
	EventCQErr       EventType = 0
	EventQPFatal     EventType = 1
	EventQPReqErr    EventType = 2
	EventQPAccessErr EventType = 3
	EventCommEst     EventType = 4
	EventSQDrained   EventType = 5
	EventDeviceFatal EventType = 8
	EventPortActive  EventType = 9
	EventPortErr     EventType = 10
	EventSRQErr      EventType = 14
	EventSRQLimit    EventType = 15
	EventQPLastWQE   EventType = 16
	EventGIDChange   EventType = 18
)

var eventNames = map[EventType]string{
	EventCQErr: "CQ error", EventQPFatal: "local work queue catastrophic error",
	EventQPReqErr: "invalid request local work queue error", EventQPAccessErr: "local access violation work queue error",
	EventCommEst: "communication established", EventSQDrained: "send queue drained",
	EventDeviceFatal: "local catastrophic error", EventPortActive: "port active", EventPortErr: "port error",
	EventSRQErr: "SRQ catastrophic error", EventSRQLimit: "SRQ limit reached",
	EventQPLastWQE: "last WQE reached", EventGIDChange: "GID table change",
}

// String is the name of the event.
func (t EventType) String() string {
	if s, ok := eventNames[t]; ok {
		return s
	}
	return fmt.Sprintf("event %d", uint32(t))
}

// AsyncEvent is one asynchronous event (ibv_async_event). CQ or QP is the
// object it is about, nil for the port and the device, or when the object is
// destroyed.
type AsyncEvent struct {
	Type EventType
	CQ   *CQ
	QP   *QP
}

// AsyncEvent waits for the next asynchronous event (ibv_get_async_event). When
// the adapter dies it returns EventDeviceFatal, once and again: there is
// nothing else to come. It ends with ctx's error otherwise.
func (d *Device) AsyncEvent(ctx context.Context) (AsyncEvent, error) {
	var rec uapi.AsyncRecord
	err := d.async.next(ctx, func(b []byte) { rec = uapi.DecodeAsyncRecord(b) })
	if err != nil {
		if ctx.Err() != nil {
			return AsyncEvent{}, ctx.Err()
		}
		return AsyncEvent{Type: EventDeviceFatal}, nil
	}
	ev := AsyncEvent{Type: EventType(rec.Event)}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch rec.Kind {
	case uapi.ElementCQ:
		ev.CQ = d.cqs[rec.Handle]
	case uapi.ElementQP:
		ev.QP = d.qps[rec.Handle]
	case uapi.ElementPort, uapi.ElementSRQ: // no object of ours
	}
	return ev, nil
}

// Done is closed when the adapter is gone or the Device is closed.
func (d *Device) Done() <-chan struct{} { return d.dying }

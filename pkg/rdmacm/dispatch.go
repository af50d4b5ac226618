package rdmacm

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/verbs"
)

// event makes the program's event of a record, and does what librdmacm does
// while an event is fetched. nil: there is nothing to tell.
func (ch *EventChannel) event(h *held) *Event {
	rec := &h.rec
	ch.mu.Lock()
	id := ch.ids[subject(rec)]
	if id == nil {
		ch.refuse(rec)
		ch.mu.Unlock()
		return nil
	}
	e := &Event{ID: id, owner: id}
	e.fill(rec)
	if rec.Event == uapi.CMConnectRequest {
		e.Listen, e.ID = id, ch.child(id, h)
	}
	id.acks.Took()
	ch.mu.Unlock()
	if !e.ID.advance(e, rec) {
		e.Ack()
		return nil
	}
	return e
}

// child makes the identifier of a CONNECT_REQUEST. The caller holds mu.
func (ch *EventChannel) child(listen *ID, h *held) *ID {
	id := newID(ch, h.rec.ID, listen.space)
	id.Context, id.read = listen.inherit, h.base
	ch.ids[id.handle] = id
	return id
}

// advance does an event's part of the identifier's own life. false: the program
// does not see the event.
func (id *ID) advance(e *Event, rec *uapi.CMRecord) bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	if rec.Own.Port != 0 || !rec.Own.GID.IsZero() {
		id.own = addrPort(rec.Own)
	}
	if rec.Peer.Port != 0 || !rec.Peer.GID.IsZero() {
		id.peer = addrPort(rec.Peer)
	}
	if id.failed && (e.Type == EventRejected || e.Type == EventDisconnected || e.Type == EventEstablished) {
		return false // the program was told by CONNECT_ERROR
	}
	switch e.Type {
	case EventConnectResponse:
		if id.asked = id.qp == nil; !id.asked {
			id.answered(e)
		}
	case EventRejected, EventUnreachable:
		id.qpToErr()
	case EventMulticastJoin, EventMulticastError:
		id.joined(e)
	case EventAddrResolved, EventAddrError, EventRouteResolved, EventRouteError, EventConnectRequest, EventConnectError,
		EventEstablished, EventDisconnected, EventDeviceRemoval, EventAddrChange, EventTimewaitExit:
	}
	return true
}

// answered takes the own queue pair to RTS at the peer's answer and tells the
// peer; the event becomes ESTABLISHED, or CONNECT_ERROR. The caller holds mu.
func (id *ID) answered(e *Event) {
	err := id.qpToRTR(MaxDepth)
	if err == nil {
		err = id.qpToRTS(MaxDepth)
	}
	if err == nil {
		err = id.handleCall("establish", uapi.OpEstablishCM)
	}
	if err == nil {
		e.Type = EventEstablished
		return
	}
	id.qpToErr()
	id.failed = true
	e.Type, e.Status = EventConnectError, -int32(errnoOf(err))
	req := uapi.CMCallRequest{ID: id.handle, Reason: uint32(RejectConsumer)}
	_ = id.request("reject", uapi.OpRejectCM, &req, nil) // the event tells of the first error
}

// errnoOf is the errno of a failed call.
func errnoOf(err error) unix.Errno {
	if e := (*verbs.Error)(nil); errors.As(err, &e) {
		return e.Errno
	}
	return unix.EIO
}

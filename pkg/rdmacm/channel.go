package rdmacm

import (
	"context"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/devctl"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/verbs"
)

// EventChannel is where events of identifiers come (rdma_event_channel). Unlike
// librdmacm's it is of one device.
type EventChannel struct {
	dev    *verbs.Device
	ctl    devctl.Device
	handle uint32
	rec    devctl.Records
	turn   chan struct{} // one reader at a time, so that events stay in order; who put its token in has it

	mu      sync.Mutex // held over the requests that make and end identifiers, too
	ids     map[uint32]*ID
	skip    map[uint32]uint32     // unread records of destroyed identifiers, by handle
	forward map[uint32]*forwarded // those of migrated ones
	moving  map[uint32][]held     // of identifiers whose former channel has older ones to hand on
	pending []held                // were read, or come from another channel
	kick    context.CancelFunc    // ends the wait of the reader; nil when none waits
	closed  bool
	removed bool      // every identifier's end with the adapter is told
	pd      *sharedPD // of identifiers whose program gives none
}

// forwarded are the records of an identifier that are still in its former
// channel's pipe.
type forwarded struct {
	to *EventChannel
	n  uint32
}

// A held record was read and is not returned yet. base is how many events its
// new identifier had before on another channel: a CONNECT_REQUEST's.
type held struct {
	rec  uapi.CMRecord
	base uint32
}

// NewEventChannel makes an event channel (rdma_create_event_channel).
func NewEventChannel(dev *verbs.Device) (*EventChannel, error) {
	ctl := devctl.Of(dev)
	handle, rec, err := ctl.Channel("create event channel", uapi.OpCreateCMChannel, &uapi.CreateCMChannelRequest{}, uapi.CMRecordSize)
	if err != nil {
		return nil, err
	}
	return &EventChannel{
		dev: dev, ctl: ctl, handle: handle, rec: rec, turn: make(chan struct{}, 1),
		ids: make(map[uint32]*ID), skip: make(map[uint32]uint32), forward: make(map[uint32]*forwarded), moving: make(map[uint32][]held),
	}, nil
}

// Device is the channel's device.
func (ch *EventChannel) Device() *verbs.Device { return ch.dev }

// SyscallConn gives access to the descriptor that is readable while an event is
// there (rdma_event_channel.fd), for epoll and its like: within Control. Read
// events with TryGet, until EAGAIN; do not read from the descriptor or close it.
// Events that [ID.Migrate] brings along do not show in it.
func (ch *EventChannel) SyscallConn() (syscall.RawConn, error) { return ch.rec.SyscallConn() }

// Get waits for the next event (rdma_get_cm_event). It ends with ctx's error, or
// with one that wraps verbs.ErrDeviceDead when the adapter is gone and each
// identifier's DEVICE_REMOVAL is told.
func (ch *EventChannel) Get(ctx context.Context) (*Event, error) {
	select {
	case ch.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-ch.turn }()
	for {
		rec, err := ch.next(ctx)
		if err != nil {
			return nil, err
		}
		if rec == nil {
			continue
		}
		if ev := ch.event(rec); ev != nil {
			return ev, nil
		}
	}
}

// TryGet is Get that does not wait, as rdma_get_cm_event does on a descriptor
// with O_NONBLOCK. EAGAIN: no event is there, or another reader waits for it.
func (ch *EventChannel) TryGet() (*Event, error) {
	select {
	case ch.turn <- struct{}{}:
	default:
		return nil, &verbs.Error{Op: "get CM event", Errno: unix.EAGAIN, Text: "another reader waits for events"}
	}
	defer func() { <-ch.turn }()
	for {
		rec, err := ch.tryNext()
		if err != nil {
			return nil, err
		}
		if rec == nil {
			continue
		}
		if ev := ch.event(rec); ev != nil {
			return ev, nil
		}
	}
}

// next waits for a record; nil when it is to be called again. The caller has the
// turn.
func (ch *EventChannel) next(ctx context.Context) (*held, error) {
	ch.mu.Lock()
	if rec := ch.popPending(); rec != nil {
		ch.mu.Unlock()
		return rec, nil
	}
	wait, cancel := context.WithCancel(ctx)
	ch.kick = cancel
	ch.mu.Unlock()
	var b [uapi.CMRecordSize]byte
	err := ch.rec.Next(wait, b[:])
	ch.mu.Lock()
	ch.kick = nil
	kicked := wait.Err() != nil
	ch.mu.Unlock()
	cancel()
	switch {
	case err == nil:
		return ch.inTurn(ch.take(b[:])), nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case kicked:
		return nil, nil
	}
	return nil, ch.removal(err)
}

// tryNext is next that does not wait.
func (ch *EventChannel) tryNext() (*held, error) {
	ch.mu.Lock()
	rec := ch.popPending()
	ch.mu.Unlock()
	if rec != nil {
		return rec, nil
	}
	var b [uapi.CMRecordSize]byte
	if err := ch.rec.Try(b[:]); err != nil {
		return nil, ch.removal(err)
	}
	return ch.take(b[:]), nil
}

// inTurn gives what came from another channel while h was read before h.
func (ch *EventChannel) inTurn(h *held) *held {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if h == nil || len(ch.pending) == 0 {
		return h
	}
	ch.pending = append(ch.pending, *h)
	return ch.popPending()
}

func (ch *EventChannel) popPending() *held {
	if len(ch.pending) == 0 {
		return nil
	}
	rec := ch.pending[0]
	ch.pending = ch.pending[1:]
	return &rec
}

// subject is the handle of the identifier that a record counts for.
func subject(rec *uapi.CMRecord) uint32 {
	if rec.Event == uapi.CMConnectRequest {
		return rec.Listen
	}
	return rec.ID
}

// take decodes a record that was read from the pipe and counts it. nil: it is of
// an identifier that is gone, or another channel's.
func (ch *EventChannel) take(b []byte) *held {
	rec, ok := uapi.DecodeCMRecord(b)
	if !ok {
		return nil
	}
	h, f := ch.sort(rec)
	if f == nil {
		return h
	}
	f.to.push(*h)
	if f.n == 0 {
		f.to.moved(subject(&rec))
	}
	return nil
}

// sort counts a record, and says to whom it is handed on, if it is.
func (ch *EventChannel) sort(rec uapi.CMRecord) (*held, *forwarded) {
	s := subject(&rec)
	ch.mu.Lock()
	defer ch.mu.Unlock()
	id := ch.ids[s]
	switch f := ch.forward[s]; {
	case ch.skip[s] > 0:
		if ch.skip[s]--; ch.skip[s] == 0 {
			delete(ch.skip, s)
		}
		ch.refuse(&rec)
		return nil, nil
	case f != nil:
		if f.n--; f.n == 0 {
			delete(ch.forward, s)
		}
		return &held{rec, ch.handOn(&rec, f.to)}, f
	case id == nil:
		ch.refuse(&rec)
		return nil, nil
	}
	id.read++
	if later, ok := ch.moving[s]; ok {
		ch.moving[s] = append(later, held{rec: rec})
		return nil, nil
	}
	return &held{rec: rec}, nil
}

// refuse ends the new identifier of a CONNECT_REQUEST that nobody will see: its
// listener is gone. The caller holds mu.
func (ch *EventChannel) refuse(rec *uapi.CMRecord) {
	if rec.Event != uapi.CMConnectRequest {
		return
	}
	var rep uapi.CMEventsReply
	if ch.ctl.Do("destroy id", uapi.OpDestroyCMID, &uapi.HandleRequest{Handle: rec.ID}, &rep) == nil && rep.Events > 0 {
		ch.skip[rec.ID] += rep.Events
	}
}

// handOn moves the new identifier of a CONNECT_REQUEST along with its listener
// and returns how many events it has in this channel. The caller holds mu.
func (ch *EventChannel) handOn(rec *uapi.CMRecord, to *EventChannel) uint32 {
	if rec.Event != uapi.CMConnectRequest {
		return 0
	}
	var rep uapi.CMEventsReply
	req := uapi.CMValueRequest{ID: rec.ID, Value: to.handle}
	if ch.ctl.Do("migrate id", uapi.OpMigrateCM, &req, &rep) == nil && rep.Events > 0 {
		ch.forward[rec.ID] = &forwarded{to: to, n: rep.Events}
	}
	return rep.Events
}

// push gives records of another channel's pipe to this one.
func (ch *EventChannel) push(h ...held) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.keep(h)
}

// keep appends to what a reader takes first. The caller holds mu.
func (ch *EventChannel) keep(h []held) {
	if ch.pending = append(ch.pending, h...); len(h) > 0 && ch.kick != nil {
		ch.kick()
	}
}

// moved says that an identifier's former channel has handed everything on: what
// came here meanwhile is next.
func (ch *EventChannel) moved(handle uint32) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.keep(ch.moving[handle])
	delete(ch.moving, handle)
}

// pump reads what is in the pipe until nothing of h is to be forwarded, and
// keeps what is of others. A reader that waits at the moment does the same.
func (ch *EventChannel) pump(h uint32) {
	select {
	case ch.turn <- struct{}{}:
	default:
		return
	}
	defer func() { <-ch.turn }()
	for {
		ch.mu.Lock()
		done := ch.forward[h] == nil
		ch.mu.Unlock()
		if done {
			return
		}
		var b [uapi.CMRecordSize]byte
		if ch.rec.Try(b[:]) != nil {
			return
		}
		if rec := ch.take(b[:]); rec != nil {
			ch.mu.Lock()
			ch.pending = append(ch.pending, *rec)
			ch.mu.Unlock()
		}
	}
}

// left accounts for an identifier that leaves the channel, of which the adapter
// wrote so many records in all. It returns how many of them are unread in the
// pipe, and those that were read and not returned. The caller holds mu.
func (ch *EventChannel) left(id *ID, written uint32) (unread uint32, kept []held) {
	if ch.ids[id.handle] == id {
		delete(ch.ids, id.handle)
	}
	delete(ch.moving, id.handle)
	ch.pending = slices.DeleteFunc(ch.pending, func(r held) bool {
		if subject(&r.rec) != id.handle {
			return false
		}
		kept = append(kept, r)
		return true
	})
	if unread = written - id.read; unread >= 1<<31 {
		unread = 0
	}
	return unread, kept
}

package verbs

import (
	"context"
	"errors"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/uapi"
)

// CompChannel is a completion channel (ibv_comp_channel): events of the
// completion queues that were created with it.
type CompChannel struct {
	dev    *Device
	handle uint32
	rec    *records

	mu   sync.Mutex
	skip map[uint32]uint32 // events of destroyed queues, still unread, by handle
}

// CreateCompChannel makes a completion channel (ibv_create_comp_channel).
func (d *Device) CreateCompChannel() (*CompChannel, error) {
	const op = "create completion channel"
	var rep uapi.HandleReply
	fds, err := d.ctl.call(op, uapi.OpCreateChannel, &uapi.CreateChannelRequest{}, &rep, nil)
	if err != nil {
		return nil, err
	}
	if len(fds) != 1 {
		closeAll(fds)
		return nil, &Error{Op: op, Errno: unix.EPROTO, Text: "the adapter sent no pipe"}
	}
	rec, err := newRecords(fds[0], uapi.ChannelRecordSize)
	if err != nil {
		return nil, &Error{Op: op, Errno: unix.EPROTO, Text: err.Error()}
	}
	return &CompChannel{dev: d, handle: rep.Handle, rec: rec, skip: make(map[uint32]uint32)}, nil
}

// Get waits for the next event and returns its queue (ibv_get_cq_event); queues
// that share the channel are told apart by it. The event must be acknowledged by
// [CQ.AckEvents] before the queue can be destroyed. It ends with ctx's error, or
// with one that wraps ErrDeviceDead when the adapter is gone. In its steady
// state, with one context, it allocates nothing.
func (ch *CompChannel) Get(ctx context.Context) (*CQ, error) {
	var rec [uapi.ChannelRecordSize]byte
	for {
		err := ch.rec.next(ctx, rec[:])
		switch {
		case err == nil:
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return nil, err
		default:
			return nil, dead("get CQ event")
		}
		if c := ch.queueOf(rec[:]); c != nil {
			return c, nil
		}
	}
}

// TryGet is Get that does not wait, as ibv_get_cq_event does on a descriptor
// with O_NONBLOCK. EAGAIN: no event is there.
func (ch *CompChannel) TryGet() (*CQ, error) {
	var rec [uapi.ChannelRecordSize]byte
	for {
		switch err := ch.rec.try(rec[:]); {
		case errors.Is(err, unix.EAGAIN):
			return nil, errNoEvent
		case err != nil:
			return nil, dead("get CQ event")
		}
		if c := ch.queueOf(rec[:]); c != nil {
			return c, nil
		}
	}
}

// SyscallConn gives access to the descriptor that is readable while an event is
// there (ibv_comp_channel.fd), for epoll and its like: within Control. Read
// events with TryGet, until EAGAIN where the epoll is edge-triggered; do not
// read from the descriptor or close it.
func (ch *CompChannel) SyscallConn() (syscall.RawConn, error) { return ch.rec.f.SyscallConn() }

// queueOf counts the event of a record and returns its queue; nil for a queue
// that is destroyed.
func (ch *CompChannel) queueOf(rec []byte) *CQ {
	handle := uapi.DecodeChannelRecord(rec)
	if ch.stale(handle) {
		return nil
	}
	ch.dev.mu.Lock()
	c := ch.dev.cqs[handle]
	ch.dev.mu.Unlock()
	if c == nil || !c.took() {
		return nil
	}
	return c
}

// stale says whether a record is of a queue that is destroyed, whose handle
// may be another's by now.
func (ch *CompChannel) stale(handle uint32) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	n := ch.skip[handle]
	if n == 0 {
		return false
	}
	if n == 1 {
		delete(ch.skip, handle)
	} else {
		ch.skip[handle] = n - 1
	}
	return true
}

// took counts an event that was read; false when the queue is destroyed and
// its events are to be dropped.
func (c *CQ) took() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.compAcks.Took()
	c.read++
	c.ring.EventRead()
	return true
}

// Destroy ends the channel (ibv_destroy_comp_channel). EBUSY: a completion
// queue uses it.
func (ch *CompChannel) Destroy() error {
	err := ch.dev.ctl.do("destroy completion channel", uapi.OpDestroyChannel, &uapi.HandleRequest{Handle: ch.handle}, nil)
	if err != nil && !ch.dev.gone.Load() {
		return err
	}
	ch.rec.close()
	return err
}

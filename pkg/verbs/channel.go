package verbs

import (
	"context"
	"errors"
	"sync"

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

// Get waits for the next event and returns its queue (ibv_get_cq_event). The
// event must be acknowledged by [CQ.AckEvents] before the queue can be
// destroyed. It ends with ctx's error, or with one that wraps ErrDeviceDead
// when the adapter is gone.
func (ch *CompChannel) Get(ctx context.Context) (*CQ, error) {
	const op = "get CQ event"
	for {
		var handle uint32
		err := ch.rec.next(ctx, func(b []byte) { handle = uapi.DecodeChannelRecord(b) })
		switch {
		case err == nil:
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return nil, err
		default:
			return nil, dead(op)
		}
		if ch.stale(handle) {
			continue
		}
		ch.dev.mu.Lock()
		c := ch.dev.cqs[handle]
		ch.dev.mu.Unlock()
		if c != nil && c.took() {
			return c, nil
		}
	}
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
	c.evmu.Lock()
	c.unack++
	c.evmu.Unlock()
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

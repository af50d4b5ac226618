package rdmacm

import (
	"errors"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/verbs"
)

// removal is what becomes of an error of the pipe: the first one that says that
// the adapter is gone is a DEVICE_REMOVAL of every identifier, and nil.
func (ch *EventChannel) removal(err error) error {
	if !errors.Is(err, verbs.ErrDeviceDead) || !ch.hasIDs() {
		return err
	}
	<-ch.ctl.Done() // the socket ends with the pipe: who sees the event finds the device dead
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.removed {
		return err
	}
	ch.removed = true
	for _, handle := range slices.Sorted(maps.Keys(ch.ids)) {
		ch.pending = append(ch.pending, held{rec: uapi.CMRecord{Event: uapi.CMDeviceRemoval, ID: handle, Status: -int32(unix.ENODEV)}})
	}
	return nil
}

func (ch *EventChannel) hasIDs() bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return len(ch.ids) > 0 && !ch.removed
}

// Destroy ends the channel (rdma_destroy_event_channel). EBUSY: an identifier
// uses it.
func (ch *EventChannel) Destroy() error {
	const op = "destroy event channel"
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return nil
	}
	if n := len(ch.ids); n > 0 {
		return &verbs.Error{Op: op, Errno: unix.EBUSY, Text: "identifiers use the channel"}
	}
	err := ch.ctl.Do(op, uapi.OpDestroyCMChannel, &uapi.HandleRequest{Handle: ch.handle}, nil)
	if err != nil && !ch.gone() {
		return err
	}
	ch.closed = true
	ch.rec.Close()
	return err
}

func (ch *EventChannel) gone() bool {
	select {
	case <-ch.ctl.Done():
		return true
	default:
		return false
	}
}

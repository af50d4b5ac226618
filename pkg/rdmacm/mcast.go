package rdmacm

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

// group is a multicast group that an identifier joins or has joined.
type group struct {
	context  any
	sendOnly bool
	attached bool
}

const flagSendOnly = 1

// JoinMulticast joins a group with a UD identifier that has its own address
// (rdma_join_multicast, rdma_join_multicast_ex): the event is MULTICAST_JOIN,
// whose UD says where to send to, or MULTICAST_ERROR. The own queue pair is
// attached to the group unless sendOnly. context comes with the event.
func (id *ID) JoinMulticast(addr netip.Addr, sendOnly bool, context any) error {
	const op = "join multicast"
	gid := bth.GIDFromAddr(addr)
	id.mu.Lock()
	defer id.mu.Unlock()
	if _, ok := id.groups[gid]; ok {
		return &verbs.Error{Op: op, Errno: unix.EADDRINUSE, Text: "the group is joined already"}
	}
	req := uapi.CMMcastRequest{ID: id.handle, Group: gid}
	if sendOnly {
		req.Flags = flagSendOnly
	}
	if id.groups == nil {
		id.groups = make(map[bth.GID]*group)
	}
	// The event may come before the answer: its reader waits for mu.
	if err := id.request(op, uapi.OpJoinCM, &req, nil); err != nil {
		return err
	}
	id.groups[gid] = &group{context: context, sendOnly: sendOnly}
	return nil
}

// LeaveMulticast leaves a group (rdma_leave_multicast). EADDRNOTAVAIL: it is not
// joined.
func (id *ID) LeaveMulticast(addr netip.Addr) error {
	const op = "leave multicast"
	gid := bth.GIDFromAddr(addr)
	id.mu.Lock()
	defer id.mu.Unlock()
	g := id.groups[gid]
	if g == nil {
		return &verbs.Error{Op: op, Errno: unix.EADDRNOTAVAIL, Text: "the group is not joined"}
	}
	if g.attached && id.qp != nil {
		if err := id.qp.DetachMcast(gid, 0); err != nil {
			return err
		}
	}
	delete(id.groups, gid)
	return id.request(op, uapi.OpLeaveCM, &uapi.CMMcastRequest{ID: id.handle, Group: gid}, nil)
}

// joined completes the event of a group. The caller holds mu.
func (id *ID) joined(e *Event) {
	gid := e.UD.AH.DGID
	g := id.groups[gid]
	if g == nil {
		return
	}
	e.Context = g.context
	if e.Type == EventMulticastError {
		delete(id.groups, gid)
		return
	}
	if id.qp == nil || g.sendOnly {
		return
	}
	if err := id.qp.AttachMcast(gid, 0); err != nil {
		e.Type, e.Status = EventMulticastError, -int32(errnoOf(err))
		delete(id.groups, gid)
		_ = id.request("leave multicast", uapi.OpLeaveCM, &uapi.CMMcastRequest{ID: id.handle, Group: gid}, nil) // the event tells
		return
	}
	g.attached = true
}

// detachAll ends the attachments of a queue pair that is to be destroyed. The
// groups stay joined. The caller holds mu.
func (id *ID) detachAll() {
	for gid, g := range id.groups {
		if g.attached {
			g.attached = id.qp.DetachMcast(gid, 0) != nil
		}
	}
}

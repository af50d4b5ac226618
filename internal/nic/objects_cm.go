package nic

import (
	"errors"
	"net/netip"
	"syscall"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
)

// A cmProgram is what a program has of the connection manager. It belongs to the
// goroutine of the worker that has queue pair 1, as all below does.
type cmProgram struct {
	p        *program
	ids      handles[*cmID]
	channels handles[*cmChannel]
}

// cmStage is how far an identifier has come.
type cmStage uint8

const (
	cmIdle cmStage = iota
	cmBound
	cmAddrKnown  // to the peer
	cmRouteKnown // too
	cmListening
	cmActive    // asked a peer: it has a communication id
	cmRequested // asked by a peer: the same
)

var cmStageNames = [...]string{
	"idle", "bound", "address resolved", "route resolved", "listening", "connecting", "requested by a peer",
}

// A cmID is an identifier of a program, as librdmacm's rdma_cm_id.
type cmID struct {
	c         *cmProgram
	handle    uint32
	ch        *cmChannel
	space     cm.PortSpace
	stage     cmStage
	own, peer netip.AddrPort // the zero AddrPort: not known
	way       cm.Path        // to the peer, once it is resolved
	mtu       bth.MTU        // of the way
	port      *portEntry     // nil: none of its own

	reuse, afOnly bool
	tos, ack      uint8 // ack: the time of an ACK asked for, 0 for none

	comm     cm.CommID // 0: none
	listener cm.ListenerID
	qpn      bth.QPN // whose first packet stands for the peer's word; 0: none
	joined   map[bth.GID]struct{}
	waiting  int    // events that the channel did not take yet
	written  uint32 // events written
}

// datagrams says that the identifier is of the port space of UD.
func (id *cmID) datagrams() bool { return id.space == cm.SpaceUDP }

// onCM runs f where the connection manager lives, and does what follows from it.
func (p *program) onCM(f func(g *gsi, c *cmProgram) (uapi.Body, error)) (reply, error) {
	g := p.a.gsi
	var r reply
	err := p.a.errStopped()
	g.w.do(func() {
		if p.cm == nil {
			p.cm = &cmProgram{p: p}
		}
		r.body, err = f(g, p.cm)
		g.settle()
	})
	return r, err
}

// onCMID is onCM for one identifier.
func (p *program) onCMID(handle uint32, f func(g *gsi, id *cmID) (uapi.Body, error)) (reply, error) {
	return p.onCM(func(g *gsi, c *cmProgram) (uapi.Body, error) {
		id, ok := c.ids.lookup(handle)
		if !ok {
			return nil, errHandle("connection identifier", handle)
		}
		return f(g, id)
	})
}

// errStage refuses a call that comes too early or too late.
func (id *cmID) errStage(call string) error {
	return refuse(syscall.EINVAL, "%s: the identifier is %s", call, cmStageNames[id.stage])
}

// errCM gives an error of the machine its errno, as librdmacm's manual has it.
func errCM(err error) error {
	if err == nil {
		return nil
	}
	errno := syscall.EINVAL
	switch {
	case errors.Is(err, cm.ErrInUse):
		errno = syscall.EADDRINUSE
	case errors.Is(err, cm.ErrFull):
		errno = syscall.ENOMEM
	}
	return refuse(errno, "%v", err)
}

// addrOf is an address of the interface to programs; the zero one is the
// wildcard of both families.
func addrOf(a *uapi.CMAddr) netip.AddrPort { return netip.AddrPortFrom(a.GID.Addr(), a.Port) }

// cmAddr is the reverse of addrOf; an address that is not known is zero.
func cmAddr(a netip.AddrPort) uapi.CMAddr {
	return uapi.CMAddr{GID: bth.GIDFromAddr(a.Addr()), Port: a.Port()}
}

// createCMChannel makes a channel, on which identifiers tell their events.
func (p *program) createCMChannel(*uapi.CreateCMChannelRequest) (reply, error) {
	if err := p.account.charge(ResourceCMChannels, 1); err != nil {
		return reply{}, err
	}
	pipe, readFD, err := shm.NewRecordPipe()
	if err != nil {
		p.account.release(ResourceCMChannels, 1)
		return reply{}, refuse(errnoOf(err, syscall.ENOMEM), "%v", err)
	}
	r, err := p.onCM(func(_ *gsi, c *cmProgram) (uapi.Body, error) {
		return &uapi.HandleReply{Handle: c.channels.add(&cmChannel{pipe: pipe})}, nil
	})
	if err != nil {
		_ = pipe.Close()
		shm.CloseFDs([]int{readFD})
		p.account.release(ResourceCMChannels, 1)
		return reply{}, err
	}
	r.fds = []int{readFD}
	r.closeAfter = r.fds
	return r, nil
}

// destroyCMChannel ends a channel that no identifier uses.
func (p *program) destroyCMChannel(m *uapi.HandleRequest) (reply, error) {
	r, err := p.onCM(func(_ *gsi, c *cmProgram) (uapi.Body, error) {
		ch, ok := c.channels.lookup(m.Handle)
		switch {
		case !ok:
			return nil, errHandle("event channel", m.Handle)
		case ch.users > 0:
			return nil, errBusy("the event channel", ch.users, "connection identifiers")
		}
		c.channels.remove(m.Handle)
		_ = ch.pipe.Close()
		return nil, nil
	})
	if err == nil {
		p.account.release(ResourceCMChannels, 1)
	}
	return r, err
}

// createCMID makes an identifier.
func (p *program) createCMID(m *uapi.CreateCMIDRequest) (reply, error) {
	space := cm.PortSpace(m.Space)
	if m.Space != uint32(cm.SpaceTCP) && m.Space != uint32(cm.SpaceUDP) {
		return reply{}, refuse(syscall.EPROTONOSUPPORT, "port space %#x: this adapter has those of TCP (RC) and UDP (UD)", m.Space)
	}
	return p.onCM(func(_ *gsi, c *cmProgram) (uapi.Body, error) {
		ch, ok := c.channels.lookup(m.Channel)
		if !ok {
			return nil, errHandle("event channel", m.Channel)
		}
		id, err := c.newID(ch, space)
		if err != nil {
			return nil, err
		}
		return &uapi.HandleReply{Handle: id.handle}, nil
	})
}

// newID makes an identifier on a channel and charges the program for it.
func (c *cmProgram) newID(ch *cmChannel, space cm.PortSpace) (*cmID, error) {
	if err := c.p.account.charge(ResourceCMIDs, 1); err != nil {
		return nil, err
	}
	id := &cmID{c: c, ch: ch, space: space}
	id.handle = c.ids.add(id)
	ch.users++
	return id, nil
}

// destroyCMID ends an identifier: a peer that waits is refused, a connection that
// is up is disconnected, and no event follows.
func (p *program) destroyCMID(m *uapi.HandleRequest) (reply, error) {
	return p.onCMID(m.Handle, func(g *gsi, id *cmID) (uapi.Body, error) {
		return &uapi.CMEventsReply{Events: g.destroy(id)}, nil
	})
}

// destroy ends an identifier and returns how many events of it were written.
func (g *gsi) destroy(id *cmID) (events uint32) {
	if id.comm != 0 {
		_ = g.machine.Destroy(g.w.now, id.comm) // fails only when there is none
		delete(g.byComm, id.comm)
	}
	if id.listener != 0 {
		_ = g.machine.Unlisten(g.w.now, id.listener) // the same
		delete(g.byListener, id.listener)
	}
	g.unawait(id)
	g.ports.release(id)
	g.forgetEvents(id)
	id.ch.users--
	id.c.ids.remove(id.handle)
	account := id.c.p.account
	account.release(ResourceCMIDs, 1)
	account.release(ResourceMcast, uint64(len(id.joined)))
	return id.written
}

// migrateCM moves an identifier to another channel. What its old one did not take
// comes on the new one.
func (p *program) migrateCM(m *uapi.CMValueRequest) (reply, error) {
	return p.onCMID(m.ID, func(g *gsi, id *cmID) (uapi.Body, error) {
		ch, ok := id.c.channels.lookup(m.Value)
		if !ok {
			return nil, errHandle("event channel", m.Value)
		}
		if ch != id.ch {
			g.moveEvents(id, ch)
			id.ch.users--
			ch.users++
			id.ch = ch
		}
		return &uapi.CMEventsReply{Events: id.written}, nil
	})
}

// setCMOption sets an option of an identifier, as rdma_set_option(3).
func (p *program) setCMOption(m *uapi.CMValueRequest) (reply, error) {
	return p.onCMID(m.ID, func(_ *gsi, id *cmID) (uapi.Body, error) {
		return nil, id.setOption(m.Option, m.Value)
	})
}

func (id *cmID) setOption(option, value uint32) error {
	limit := uint32(1)
	switch option {
	case uapi.CMOptionTOS:
		limit = 255
	case uapi.CMOptionAckTimeout:
		limit = 31
	case uapi.CMOptionReuseAddr, uapi.CMOptionAFOnly:
		if id.stage != cmIdle {
			return id.errStage("set option")
		}
	default:
		return refuse(syscall.ENOSYS, "option %d: not known", option)
	}
	if value > limit {
		return refuse(syscall.EINVAL, "option %d: value %d, at most %d", option, value, limit)
	}
	switch option {
	case uapi.CMOptionTOS:
		id.tos = uint8(value)
	case uapi.CMOptionAckTimeout:
		id.ack = uint8(value)
	case uapi.CMOptionReuseAddr:
		id.reuse = value != 0
	case uapi.CMOptionAFOnly:
		id.afOnly = value != 0
	}
	return nil
}

// releaseCM ends what a program has of the connection manager.
func (p *program) releaseCM() {
	g := p.a.gsi
	g.w.do(func() {
		if p.cm == nil {
			return
		}
		for _, id := range p.cm.ids.byHandle {
			if _, there := p.cm.ids.lookup(id.handle); there { // a listener takes requests with it
				g.destroy(id)
			}
		}
		for h, ch := range p.cm.channels.byHandle {
			_ = ch.pipe.Close()
			p.cm.channels.remove(h)
		}
		g.settle()
	})
}

package nic

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
)

// An ahObject is an address handle. What workers read of it, without a lock, does
// not change after it is made.
type ahObject struct {
	handle uint32
	owner  *pdObject
	pd     mrtable.PD
	attr   qpstate.AHAttr
	src    bth.GID
	local  netip.Addr // src with its zone
	mtu    uint32     // the largest datagram, bytes of payload

	retired bool // destroyed; the program's lock guards it
}

// An address handle's number is its place in the table, from 1 on, and how often
// the place was used: a request that comes late names nothing rather than
// another handle.
const (
	ahPlaceBits = 20
	ahPlaceMask = 1<<ahPlaceBits - 1
	// MaxProgramAHs is the number of places in a program's table.
	MaxProgramAHs = ahPlaceMask
	// ahsPerCommand is how many address handles a worker forgets between two
	// turns; our own tuning.
	ahsPerCommand = 512
)

// An ahTable holds a program's address handles by place. Look-ups take no lock;
// the program's lock guards changes.
type ahTable struct {
	places atomic.Pointer[[]atomic.Pointer[ahObject]]
	used   []uint32 // times that a place was used
	free   indices
	count  int
}

// lookup finds a handle; nil when there is none.
func (t *ahTable) lookup(handle uint32) *ahObject {
	places := t.places.Load()
	i := handle&ahPlaceMask - 1
	if places == nil || uint64(i) >= uint64(len(*places)) {
		return nil
	}
	if o := (*places)[i].Load(); o != nil && o.handle == handle {
		return o
	}
	return nil
}

// add gives o a handle; false when the table is full.
func (t *ahTable) add(o *ahObject) bool {
	i, ok := t.free.take(MaxProgramAHs)
	if !ok {
		return false
	}
	if int(i) >= len(t.used) {
		t.grow(max(64, 2*len(t.used)))
	}
	t.used[i]++
	o.handle = t.used[i]<<ahPlaceBits | (i + 1)
	(*t.places.Load())[i].Store(o)
	t.count++
	return true
}

// grow replaces the table by a longer one. Who still reads the old one finds in
// it what was there.
func (t *ahTable) grow(n int) {
	next := make([]atomic.Pointer[ahObject], n)
	if old := t.places.Load(); old != nil {
		for i := range *old {
			next[i].Store((*old)[i].Load())
		}
	}
	t.used = append(t.used, make([]uint32, n-len(t.used))...)
	t.places.Store(&next)
}

func (t *ahTable) remove(o *ahObject) {
	i := o.handle&ahPlaceMask - 1
	(*t.places.Load())[i].Store(nil)
	t.free.give(i)
	t.count--
}

// createAH makes an address handle. Errors as ibv_create_ah(3) has them: EINVAL
// for what cannot be an address, ENETUNREACH where the host knows no way.
func (p *program) createAH(m *uapi.CreateAHRequest) (reply, error) {
	d, ok := p.pds.lookup(m.PD)
	if !ok {
		return reply{}, errHandle("protection domain", m.PD)
	}
	o := &ahObject{owner: d, pd: d.pd, attr: m.Attr}
	if err := p.a.resolveAH(o); err != nil {
		p.noteGID("create AH", err)
		return reply{}, err
	}
	if err := p.account.charge(ResourceAHs, 1); err != nil {
		p.sweepAHs() // destroyed ones may be done with by now
		if err := p.account.charge(ResourceAHs, 1); err != nil {
			return reply{}, err
		}
	}
	if !p.ahs.add(o) {
		p.account.release(ResourceAHs, 1)
		return reply{}, refuse(syscall.ENOMEM, "all %d places for address handles of the program are in use", MaxProgramAHs)
	}
	d.users++
	return reply{body: &uapi.HandleReply{Handle: o.handle}}, nil
}

// resolveAH finds the local address, the MTU and whether there is a way.
func (a *Adapter) resolveAH(o *ahObject) (err error) {
	switch {
	case o.attr.PortNum != 1:
		return refuse(syscall.EINVAL, "port_num %d: the device has port 1 only", o.attr.PortNum)
	case !o.attr.IsGlobal:
		return refuse(syscall.EINVAL, "is_global 0: RoCE has no address but the GRH's")
	}
	if o.src, o.local, err = a.sourceOf(&o.attr, true); err != nil {
		return err
	}
	o.mtu = uint32(bth.MTU4096.Bytes())
	if gids := a.gids.load(); int(o.attr.SGIDIndex) < len(gids) {
		o.mtu = uint32(activeMTU(gids[o.attr.SGIDIndex].linkMTU).Bytes())
	}
	dst := o.attr.DGID.Addr()
	if err := a.group.Reachable(o.local, dst); err != nil {
		errno := errnoOf(err, syscall.ENETUNREACH)
		if errno == syscall.EHOSTUNREACH {
			errno = syscall.ENETUNREACH
		}
		return refuse(errno, "dgid %s from %s: %v", o.attr.DGID, o.src, err)
	}
	return nil
}

// destroyAH ends an address handle. Requests that were posted before still go
// where it says.
func (p *program) destroyAH(m *uapi.HandleRequest) (reply, error) {
	o := p.ahs.lookup(m.Handle)
	if o == nil || o.retired {
		return reply{}, errHandle("address handle", m.Handle)
	}
	o.owner.users--
	o.retired = true
	p.retired = append(p.retired, o)
	p.sweepAHs()
	return reply{body: &uapi.DestroyReply{}}, nil
}

// sweepAHs frees the destroyed address handles once no posted request can name
// them: when no queue pair of the program has a datagram to send.
func (p *program) sweepAHs() {
	if len(p.retired) == 0 {
		return
	}
	waiting := false
	for i, l := range p.links {
		p.a.workers[i].do(func() { waiting = waiting || l.hasDatagrams() })
	}
	if !waiting {
		p.freeAHs(p.retired)
		p.retired = nil
	}
}

// freeAHs takes address handles out of the table and the workers' memory.
func (p *program) freeAHs(list []*ahObject) {
	for _, o := range list {
		p.ahs.remove(o)
	}
	for part := range slices.Chunk(list, ahsPerCommand) {
		for i, l := range p.links {
			p.a.workers[i].do(func() {
				for _, o := range part {
					l.ahs.forget(o.handle)
				}
			})
		}
	}
	p.account.release(ResourceAHs, uint64(len(list)))
}

// sourcePortOfAH is the source port that an address handle asks for, 0 for any.
func sourcePortOfAH(label uint32) uint16 {
	if label&0xFFFFF == 0 {
		return 0
	}
	return sourcePort(0, 0, label)
}

// routeOf is how datagrams to an address go. Nobody tells whether segments to a
// multicast group arrive everywhere: it gets none.
func (w *worker) routeOf(dst netip.Addr) *route {
	r := w.route(dst)
	if dst.IsMulticast() {
		r.segments, r.trial = false, false
	}
	return r
}

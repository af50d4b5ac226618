package rdmacm

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/devctl"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

// PortSpace is a space of ports and the kind of service in it (rdma_port_space).
// They have nothing to do with the ports of TCP and UDP.
type PortSpace uint32

// Port spaces (specification values: Annex A11).
const (
	PSTCP PortSpace = 0x0106 // connections
	PSUDP PortSpace = 0x0111 // datagrams
)

// ID is an identifier (rdma_cm_id): a listener, a connection, or the way to a
// datagram queue pair. Its methods may be called from several goroutines.
type ID struct {
	// Context is the program's; the identifier of a CONNECT_REQUEST has what its
	// listener's was at Listen.
	Context any
	inherit any                     // the Context of requests; guarded by the channel's mu
	box     atomic.Pointer[mailbox] // where a hub puts events

	ctl    devctl.Device
	dev    *verbs.Device
	handle uint32
	space  PortSpace
	acks   devctl.Acks
	read   uint32 // records read, and those that a former channel hands on; guarded by the channel's mu

	life sync.Mutex   // held over Destroy and Migrate
	use  sync.RWMutex // held for reading over every request, for writing over the last
	gone bool         // guarded by use

	// mu is held over requests that are about the queue pair, too. It comes before
	// the channel's mu.
	mu     sync.Mutex
	ch     *EventChannel
	own    netip.AddrPort
	peer   netip.AddrPort
	qp     *verbs.QP
	made   qpParts // what CreateQP made beside the queue pair
	asked  bool    // CONNECT_RESPONSE was told, and Establish is to come
	failed bool    // CONNECT_ERROR was told
	groups map[bth.GID]*group
}

func newID(ch *EventChannel, handle uint32, space PortSpace) *ID {
	return &ID{ctl: ch.ctl, dev: ch.dev, handle: handle, space: space, ch: ch}
}

// CreateID makes an identifier (rdma_create_id), which is the program's to
// destroy. ENOMEM: a limit is reached; EPROTONOSUPPORT or EINVAL: a port space
// that the adapter does not have.
func (ch *EventChannel) CreateID(space PortSpace) (*ID, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	var rep uapi.HandleReply
	req := uapi.CreateCMIDRequest{Channel: ch.handle, Space: uint32(space)}
	if err := ch.ctl.Do("create id", uapi.OpCreateCMID, &req, &rep); err != nil {
		return nil, err
	}
	id := newID(ch, rep.Handle, space)
	ch.ids[id.handle] = id
	return id, nil
}

// Destroy ends the identifier (rdma_destroy_id) and the queue pair of CreateQP: a
// listener takes no more requests, a connection is disconnected, a peer that
// waits for an answer is refused. It waits until every event that was returned
// is acknowledged and drops those that were not.
func (id *ID) Destroy() error {
	id.life.Lock()
	defer id.life.Unlock()
	if id.gone {
		return errGone("destroy id")
	}
	qpErr := id.DestroyQP()
	ch := id.channel()
	err := ch.end(id)
	if err != nil && !ch.gone() {
		return err
	}
	id.acks.Wait(id.ctl.Done())
	if err == nil {
		err = qpErr
	}
	return err
}

// end destroys the adapter's identifier, after which its handle may be another's.
func (ch *EventChannel) end(id *ID) error {
	id.use.Lock()
	defer id.use.Unlock()
	ch.mu.Lock()
	defer ch.mu.Unlock()
	var rep uapi.CMEventsReply
	err := id.ctl.Do("destroy id", uapi.OpDestroyCMID, &uapi.HandleRequest{Handle: id.handle}, &rep)
	if err != nil && !ch.gone() {
		return err
	}
	if unread, _ := ch.left(id, rep.Events); unread > 0 && err == nil {
		ch.skip[id.handle] += unread
	}
	id.gone = true
	return err
}

// request makes a request about the identifier.
func (id *ID) request(op string, code uapi.Op, req uapi.Body, rep devctl.Reply) error {
	id.use.RLock()
	defer id.use.RUnlock()
	if id.gone {
		return errGone(op)
	}
	return id.ctl.Do(op, code, req, rep)
}

func errGone(op string) error { return invalid(op, "the identifier is destroyed") }

// Migrate moves the identifier to another channel of the same device
// (rdma_migrate_id), and events that were not returned with it; call TryGet
// once on both channels after it when they are polled. It waits until every
// event that was returned is acknowledged.
func (id *ID) Migrate(to *EventChannel) error {
	const op = "migrate id"
	if to.dev != id.dev {
		return invalid(op, "the channel is of another device")
	}
	id.life.Lock()
	defer id.life.Unlock()
	from := id.channel()
	if from == to {
		return nil
	}
	id.acks.Wait(id.ctl.Done())
	unread, err := id.switchTo(from, to)
	if err != nil {
		return err
	}
	id.mu.Lock()
	id.ch = to
	id.mu.Unlock()
	if unread {
		from.pump(id.handle)
	}
	return nil
}

// switchTo has the adapter write the identifier's events to another channel.
// unread: some are in the former one's pipe, which hands them on.
func (id *ID) switchTo(from, to *EventChannel) (unread bool, err error) {
	const op = "migrate id"
	for _, ch := range inOrder(from, to) {
		ch.mu.Lock()
		defer ch.mu.Unlock()
	}
	if to.closed {
		return false, invalid(op, "the channel is destroyed")
	}
	var rep uapi.CMEventsReply
	req := uapi.CMValueRequest{ID: id.handle, Value: to.handle}
	if err := id.request(op, uapi.OpMigrateCM, &req, &rep); err != nil {
		return false, err
	}
	n, kept := from.left(id, rep.Events)
	to.ids[id.handle] = id
	to.keep(kept)
	if n > 0 {
		from.forward[id.handle] = &forwarded{to: to, n: n}
		to.moving[id.handle] = nil
	}
	id.read = rep.Events // the others count as read
	return n > 0, nil
}

// inOrder is the order in which two channels of a device are locked.
func inOrder(a, b *EventChannel) [2]*EventChannel {
	if b.handle < a.handle {
		return [2]*EventChannel{b, a}
	}
	return [2]*EventChannel{a, b}
}

func (id *ID) channel() *EventChannel {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.ch
}

// Channel is the channel where events of the identifier come.
func (id *ID) Channel() *EventChannel { return id.channel() }

// Device is the identifier's device (rdma_cm_id.verbs).
func (id *ID) Device() *verbs.Device { return id.dev }

// Space is the identifier's port space.
func (id *ID) Space() PortSpace { return id.space }

// LocalAddr is the identifier's own address, not valid before it has one
// (rdma_get_local_addr, rdma_get_src_port).
func (id *ID) LocalAddr() netip.AddrPort {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.own
}

// PeerAddr is the peer's address, not valid before it is known
// (rdma_get_peer_addr, rdma_get_dst_port).
func (id *ID) PeerAddr() netip.AddrPort {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.peer
}

// Path tells the way to the peer, once the address is resolved
// (rdma_cm_id.route).
type Path struct {
	AH  verbs.AHAttr
	MTU verbs.MTU
}

// Path asks the adapter for the way to the peer.
func (id *ID) Path() (Path, error) {
	var rep uapi.CMAddrReply
	if err := id.request("query route", uapi.OpQueryCM, &uapi.HandleRequest{Handle: id.handle}, &rep); err != nil {
		return Path{}, err
	}
	id.learn(&rep)
	return Path{AH: rep.AH, MTU: rep.MTU}, nil
}

func (id *ID) learn(rep *uapi.CMAddrReply) {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.own = addrPort(rep.Own)
	if rep.Peer != (uapi.CMAddr{}) {
		id.peer = addrPort(rep.Peer)
	}
}

// Bind gives the identifier its own address (rdma_bind_addr). An address that is
// not valid, or unspecified, is any of the adapter's; port 0 is one that is free.
// EADDRINUSE: another identifier has the port; EADDRNOTAVAIL or ENODEV: the
// address is not the adapter's.
func (id *ID) Bind(addr netip.AddrPort) error {
	var rep uapi.CMAddrReply
	req := uapi.CMAddrRequest{ID: id.handle, Own: cmAddr(addr)}
	if err := id.request("bind address", uapi.OpBindCM, &req, &rep); err != nil {
		return err
	}
	id.learn(&rep)
	return nil
}

// ResolveAddr finds the way to peer (rdma_resolve_addr): the event is
// ADDR_RESOLVED or ADDR_ERROR. own binds the identifier unless it is bound;
// when it is not valid, the host's routing table chooses. That takes no time, and
// the timeout means nothing: the host looks for the peer's link address when the
// first message goes. A peer that is not there does not answer Connect.
func (id *ID) ResolveAddr(own, peer netip.AddrPort, timeout time.Duration) error {
	req := uapi.CMAddrRequest{ID: id.handle, Timeout: milliseconds(timeout), Own: cmAddr(own), Peer: cmAddr(peer)}
	var rep uapi.CMAddrReply
	if err := id.request("resolve address", uapi.OpResolveCMAddr, &req, &rep); err != nil {
		return err
	}
	id.learn(&rep)
	return nil
}

// ResolveRoute makes the path to the peer (rdma_resolve_route): the event is
// ROUTE_RESOLVED or ROUTE_ERROR. On RoCE it is known already, and the timeout
// means nothing.
func (id *ID) ResolveRoute(time.Duration) error {
	return id.handleCall("resolve route", uapi.OpResolveCMRoute)
}

// Listen takes requests for the identifier's address, binding it to any when it
// has none (rdma_listen). backlog is how many wait at once; 0: the most.
func (id *ID) Listen(backlog int) error {
	ch := id.channel()
	ch.mu.Lock()
	id.inherit = id.Context
	ch.mu.Unlock()
	return id.value("listen", uapi.OpListenCM, uint32(max(backlog, 0)), 0)
}

// SetTOS sets the traffic class of the identifier's messages and connection
// (RDMA_OPTION_ID_TOS).
func (id *ID) SetTOS(tos uint8) error { return id.option(uapi.CMOptionTOS, uint32(tos)) }

// SetReuseAddr lets the identifier bind to an address whose other users allow it,
// too (RDMA_OPTION_ID_REUSEADDR).
func (id *ID) SetReuseAddr(on bool) error { return id.option(uapi.CMOptionReuseAddr, flag(on)) }

// SetAFOnly keeps a listener on the IPv6 wildcard to IPv6
// (RDMA_OPTION_ID_AFONLY).
func (id *ID) SetAFOnly(on bool) error { return id.option(uapi.CMOptionAFOnly, flag(on)) }

// SetAckTimeout sets the connection's ACK timeout, 4.096 µs × 2^code
// (RDMA_OPTION_ID_ACK_TIMEOUT).
func (id *ID) SetAckTimeout(code uint8) error {
	return id.option(uapi.CMOptionAckTimeout, uint32(code))
}

func (id *ID) option(opt, v uint32) error { return id.value("set option", uapi.OpSetCMOption, v, opt) }

func (id *ID) value(op string, code uapi.Op, v, opt uint32) error {
	return id.request(op, code, &uapi.CMValueRequest{ID: id.handle, Value: v, Option: opt}, nil)
}

func (id *ID) handleCall(op string, code uapi.Op) error {
	return id.request(op, code, &uapi.HandleRequest{Handle: id.handle}, nil)
}

func flag(on bool) uint32 {
	if on {
		return 1
	}
	return 0
}

func milliseconds(d time.Duration) uint32 {
	return uint32(min(max(d.Milliseconds(), 0), 1<<31-1))
}

// cmAddr is an address as the adapter has it: the IPv6 wildcard, and no address,
// are all zero.
func cmAddr(a netip.AddrPort) uapi.CMAddr {
	return uapi.CMAddr{GID: bth.GIDFromAddr(a.Addr()), Port: a.Port()}
}

func addrPort(a uapi.CMAddr) netip.AddrPort { return netip.AddrPortFrom(a.GID.Addr(), a.Port) }

func invalid(op, text string) error { return &verbs.Error{Op: op, Errno: unix.EINVAL, Text: text} }

package udp4791

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Our own tuning: how long a new link's carrier is waited for at most. It is there
// within a millisecond, or a second where the kernel saves itself work.
const (
	settleStep  = time.Millisecond
	settleTries = 2000
)

// tunNet is the backend on a TUN link: the adapter's addresses are its own, not
// the host's, which routes to them by the link. It sends and receives whole IP
// packets.
//
// The link may go away and come back, or another one of its name. A queue then
// takes over a new descriptor; the descriptor that its worker polls stays.
type tunNet struct {
	cfg     Config
	locks   []int
	queues  []*tunQueue
	created bool // the link was made by Open, and goes with it
	mtu     atomic.Int32
	uso     atomic.Bool // the link cuts and merges

	mu     sync.Mutex // guards the rest
	name   string
	index  int
	ctl    int  // a descriptor of the link, to ask about it; -1: there is none
	shared bool // the link has one queue, which the first worker reads
	queue  int  // packets that wait on the link at most
}

// openTUN opens or makes the link of cfg and takes the addresses.
func openTUN(cfg Config) (*tunNet, error) {
	n := &tunNet{cfg: cfg.withDefaults(), name: cfg.TUN, ctl: -1}
	if err := n.open(); err != nil {
		_ = n.Close()
		return nil, err
	}
	return n, nil
}

func (n *tunNet) open() error {
	for _, a := range n.cfg.Addrs {
		l := local{addr: a}
		if heldByHost(l) {
			return &AddrError{Addr: a, Reason: "an address of this host: on a TUN link the adapter needs one of its own, that no interface has"}
		}
		fd, err := takeLock(l)
		if err != nil {
			return err
		}
		n.locks = append(n.locks, fd)
	}
	for w := range n.cfg.Workers {
		q, err := newTUNQueue(n, w)
		if err != nil {
			return &SocketError{Op: "epoll", Addr: n.cfg.Addrs[0], Err: err}
		}
		n.queues = append(n.queues, q)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	fd, err := takeLinkLock(n.name)
	if err != nil {
		return n.explain(err)
	}
	n.locks = append(n.locks, fd)
	n.created = linkIndex(n.name) == 0
	if err := n.attach(0); err != nil {
		return err
	}
	n.settle()
	if n.cfg.Offload == OffloadOn && !n.uso.Load() {
		return &SocketError{Op: "set TUNSETOFFLOAD", Addr: n.cfg.Addrs[0], Err: unix.EINVAL, Reason: "this kernel cuts no UDP on TUN links (Linux 6.2 does); use auto or off"}
	}
	return nil
}

// settle waits until the kernel has noticed that the link has a carrier: until then
// it drops what is routed to it, and the port would come up with an event. A link that
// is down has none.
func (n *tunNet) settle() {
	for range settleTries {
		r, err := askLink(n.name, unix.SIOCGIFFLAGS)
		if err != nil || r.Uint16()&unix.IFF_UP == 0 || r.Uint16()&unix.IFF_RUNNING != 0 {
			return
		}
		time.Sleep(settleStep)
	}
}

// heldByHost says whether the host has an address.
func heldByHost(l local) bool {
	if sysctlInt("net.ipv4.ip_nonlocal_bind") == 1 {
		return false // it would always seem so
	}
	fd, err := unix.Socket(l.family(), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Bind(fd, l.sockaddr(0)) == nil
}

// attach opens the link and gives each queue a descriptor. With index 0 it makes
// one where there is none; else it opens the link of that index only: a link that
// went meanwhile, which the kernel makes anew, would be in the way of its owner.
func (n *tunNet) attach(index int) error {
	multi := n.cfg.Workers > 1
	first, err := openTUNLink(n.name, multi)
	if errors.Is(err, unix.EINVAL) { // a link that was made the other way
		multi = !multi
		first, err = openTUNLink(n.name, multi)
	}
	if err != nil {
		return n.explain(err)
	}
	if index != 0 && linkIndex(n.name) != index {
		unix.Close(first) // and with it the link, if it is ours
		return n.gone()
	}
	fds := []int{first}
	for len(fds) < n.cfg.Workers && err == nil {
		var fd int
		if multi {
			fd, err = openTUNLink(n.name, true)
		} else {
			fd, err = unix.FcntlInt(uintptr(first), unix.F_DUPFD_CLOEXEC, 0)
		}
		if err == nil {
			fds = append(fds, fd)
		}
	}
	ctl := -1
	if err == nil {
		ctl, err = unix.FcntlInt(uintptr(first), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return n.explain(err)
	}
	n.shared, n.ctl = !multi, ctl
	n.setUp(fds)
	for w, q := range n.queues {
		q.give(fds[w], multi || w == 0)
	}
	return nil
}

// setUp brings the link up and learns what it is like.
func (n *tunNet) setUp(fds []int) {
	uso := n.cfg.Offload != OffloadOff
	for _, fd := range fds {
		uso = uso && unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tunSum|tunUSO4|tunUSO6) == nil
	}
	if !uso {
		for _, fd := range fds {
			_ = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tunSum) // else checksums come whole
		}
	}
	n.uso.Store(uso)
	n.index = linkIndex(n.name)
	if n.created {
		_ = setLink(n.name, unix.SIOCSIFTXQLEN, tunQueueLen) // it stays at the kernel's 500
	}
	if f, err := askLink(n.name, unix.SIOCGIFFLAGS); err == nil && f.Uint16()&unix.IFF_UP == 0 {
		// Refused without CAP_NET_ADMIN: the port stays down until somebody does it.
		_ = setLinkFlags(n.name, f.Uint16()|unix.IFF_UP)
	}
	n.look()
}

// look reads MTU and queue length.
func (n *tunNet) look() {
	if r, err := askLink(n.name, unix.SIOCGIFMTU); err == nil {
		n.mtu.Store(int32(r.Uint32()))
	}
	if r, err := askLink(n.name, unix.SIOCGIFTXQLEN); err == nil {
		n.queue = int(r.Uint32())
	}
}

func (n *tunNet) explain(err error) error {
	e := &SocketError{Op: "open TUN link " + n.name, Addr: n.cfg.Addrs[0], Err: err}
	node := (*nodeRefused)(nil)
	switch {
	case errors.As(err, &node):
		e.Reason = node.reason()
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		e.Reason = "making a link needs CAP_NET_ADMIN, once: \"ip tuntap add dev " + n.name +
			" mode tun multi_queue user USER\" as root makes one that USER's adapter opens without"
	case errors.Is(err, errPlainLink):
		e.Reason = "another program has it open in another way; one adapter needs one link"
	case errors.Is(err, unix.EBUSY):
		e.Reason = "another program has it open; one adapter needs one link"
		var b *linkBusy
		if errors.As(err, &b) {
			e.Reason = "another adapter of this network namespace uses it, " + b.who + "; one adapter needs one link"
		}
	case errors.Is(err, unix.EINVAL):
		e.Reason = "there is an interface of that name that is no TUN link, or the name is too long"
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		e.Reason = "/dev/net/tun is not there; \"modprobe tun\", or give it to the container (--device /dev/net/tun)"
	}
	return e
}

// Queue is a worker's endpoint.
func (n *tunNet) Queue(worker int) Queue { return n.queues[worker] }

// Link is the TUN link's name.
func (n *tunNet) Link() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.name
}

// Created says that the link was made by this adapter.
func (n *tunNet) Created() bool { return n.created }

// Recover looks whether the link is there still, under another name perhaps, and
// opens one that came back. It makes none.
func (n *tunNet) Recover() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctl >= 0 {
		r, err := unix.NewIfreq("")
		if err == nil {
			err = unix.IoctlIfreq(n.ctl, unix.TUNGETIFF, r)
		}
		if err == nil {
			n.name = r.Name()
			n.look()
			return nil
		}
		unix.Close(n.ctl)
		n.ctl = -1
		n.name = n.cfg.TUN
	}
	index := linkIndex(n.name)
	if index == 0 {
		return n.gone()
	}
	return n.attach(index)
}

// gone says that there is no link.
func (n *tunNet) gone() error {
	return &SocketError{
		Op: "open TUN link " + n.name, Addr: n.cfg.Addrs[0], Err: unix.ENODEV,
		Reason: "it went away; the adapter goes on when there is one of that name again",
	}
}

// Segments says whether the link takes packets to be cut.
func (n *tunNet) Segments() bool { return n.uso.Load() }

// Merges says whether the link gives packets in one piece.
func (n *tunNet) Merges() bool { return n.uso.Load() }

// RecvBuffer is about what waits on the link at most, in bytes.
func (n *tunNet) RecvBuffer() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.queue * int(n.mtu.Load())
}

// Notes are what an operator should know.
func (n *tunNet) Notes() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := []string{fmt.Sprintf("backend tun: link %s, MTU %d, %d packets wait on it at most; the host routes to the adapter by it", n.name, n.mtu.Load(), n.queue)}
	if n.shared && n.cfg.Workers > 1 {
		out = append(out, "link "+n.name+" has one queue, which one worker reads for all (\"ip tuntap add ... multi_queue\" makes one of several)")
	}
	if !n.uso.Load() && n.cfg.Offload != OffloadOff {
		out = append(out, "this kernel cuts and merges no UDP on TUN links (Linux 6.2 does): every packet costs a way through it")
	}
	return out
}

// Reachable says whether a packet may be sent to an address; which way the host
// routes it is not known.
func (n *tunNet) Reachable(from, to netip.Addr) error {
	switch {
	case n.indexOf(from) < 0:
		return &AddrError{Addr: from, Reason: "not one of the adapter's"}
	case from.Unmap().Is4() != to.Unmap().Is4():
		return &SocketError{Op: "find a way", Addr: to, Err: unix.EAFNOSUPPORT}
	}
	return nil
}

func (n *tunNet) indexOf(a netip.Addr) int { return slices.Index(n.cfg.Addrs, a.Unmap().WithZone("")) }

// OpenAddr fails: the addresses are those of the Config.
func (n *tunNet) OpenAddr(a netip.Addr) (*LateAddr, error) {
	return nil, &AddrError{Addr: a, Reason: "not one that the adapter was given, and a TUN link has no others"}
}

// CloseAddr does nothing.
func (n *tunNet) CloseAddr(netip.Addr) {}

// OpenMulticast fails.
func (n *tunNet) OpenMulticast(group netip.Addr) (*Multicast, error) {
	return nil, &SocketError{
		Op: "join the group", Addr: group, Err: unix.EOPNOTSUPP,
		Reason: "a host routes no multicast to a TUN link; use the udp or packet backend",
	}
}

// Close closes the link's descriptors and gives the addresses back.
func (n *tunNet) Close() error {
	for _, q := range n.queues {
		q.close()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctl >= 0 {
		unix.Close(n.ctl)
		n.ctl = -1
	}
	for _, fd := range n.locks {
		unix.Close(fd)
	}
	n.locks = nil
	return nil
}

// Requests and flags that x/sys has no name for (linux/if_tun.h).
const (
	tunSum  = 0x01 // TUN_F_CSUM
	tunUSO4 = 0x20 // TUN_F_USO4
	tunUSO6 = 0x40 // TUN_F_USO6

	// tunQueueLen is how many packets wait on a link of our own making; our own
	// tuning.
	tunQueueLen = 4096
)

// errPlainLink says that a link's packets come without a header: somebody else has
// it open, and opened it first.
var errPlainLink = errors.New("its packets have no virtio-net header")

// openTUNLink attaches a new descriptor to a link, which is made where there is
// none. The error is an errno, or errPlainLink.
func openTUNLink(name string, multi bool) (int, error) {
	fd, err := openTUNNode("/dev/net/tun")
	if err != nil {
		return -1, err
	}
	flags := uint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if multi {
		flags |= unix.IFF_MULTI_QUEUE
	}
	r, err := unix.NewIfreq(name)
	if err == nil {
		r.SetUint16(flags)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
	}
	// The kernel does not take our flags where another descriptor is attached. "ip
	// tuntap add" has one for a moment: the link's news comes before it is closed.
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.TUNGETIFF, r)
	}
	if err == nil && r.Uint16()&(unix.IFF_VNET_HDR|unix.IFF_NO_PI) != unix.IFF_VNET_HDR|unix.IFF_NO_PI {
		err = errPlainLink
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// askLink asks for one value of a link; setLink and setLinkFlags set one.
func askLink(name string, request uint) (*unix.Ifreq, error) {
	return linkIoctl(name, request, func(*unix.Ifreq) {})
}

func setLink(name string, request uint, v uint32) error {
	_, err := linkIoctl(name, request, func(r *unix.Ifreq) { r.SetUint32(v) })
	return err
}

func setLinkFlags(name string, flags uint16) error {
	_, err := linkIoctl(name, unix.SIOCSIFFLAGS, func(r *unix.Ifreq) { r.SetUint16(flags) })
	return err
}

func linkIoctl(name string, request uint, fill func(*unix.Ifreq)) (*unix.Ifreq, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	fill(r)
	return r, unix.IoctlIfreq(fd, request, r)
}

// linkIndex is the index of an interface, 0 when there is none.
func linkIndex(name string) int {
	r, err := askLink(name, unix.SIOCGIFINDEX)
	if err != nil {
		return 0
	}
	return int(r.Uint32())
}

// linkGone says that an errno of a descriptor means that its link is no more.
func linkGone(errno syscall.Errno) bool { return errno == unix.EBADFD || errno == unix.ENODEV }

package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Config says where a link on the host's network begins and ends.
type Config struct {
	// Remote is the target's address, with a zone when it is link-local.
	Remote netip.Addr
	// Local is an address of this host at which nobody serves RoCEv2. Zero: the one that the host would send from.
	Local netip.Addr
	// Iface is the interface's name. Empty: Remote's zone, or the one that the routing table names for Remote.
	Iface string
	// Buffer is the size of the receive buffer in bytes. 0: 64 MiB.
	Buffer int

	guess bool // as on a kernel that does not tell how segmented sends are cut, for tests
}

// ErrDropped is Receive's error when frames were lost because they were not taken in time.
var ErrDropped = errors.New("the packet socket's buffer was full")

const defaultBuffer = 64 << 20

// maxAhead bounds how many frames one Send reads ahead of itself.
const maxAhead = 4096

// wired is a Link by a packet socket. The socket's methods guard it against Close.
type wired struct {
	local, remote netip.Addr
	way           way
	file          *os.File // the packet socket
	raw           syscall.RawConn
	port          *os.File // who has the port, so that the host does not say that nobody does
	recorder      recorder
	vnet          bool // frames have a virtio header
	closing       sync.Once
	closed        chan struct{}

	mu      sync.Mutex // guards what follows
	waiting []*Frame   // read, recorded and not yet received
	buf     []byte
	oob     []byte
}

// Open opens a link to Remote, in the network namespace of the calling thread, which needs CAP_NET_RAW. The link takes whole
// frames from and to the interface beside the host's own network stack. Send and Record may be called beside a Receive that
// waits, and so may Close.
func Open(cfg Config) (Link, error) {
	l := &wired{buf: make([]byte, 1<<17), oob: make([]byte, 256), closed: make(chan struct{})}
	fd, err := packetSocket()
	if err != nil {
		return nil, err
	}
	if l.file, err = socketFile(fd, "packet"); err != nil {
		return nil, err
	}
	if err := l.open(cfg, fd); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

func (l *wired) open(cfg Config, fd int) (err error) {
	if l.raw, err = l.file.SyscallConn(); err != nil {
		return err
	}
	if err := checkAddrs(cfg); err != nil {
		return err
	}
	if l.way, l.local, l.remote, err = findWay(cfg); err != nil {
		return err
	}
	portFD, err := holdPort(l.local)
	if err != nil {
		return err
	}
	if l.port, err = socketFile(portFD, "port"); err != nil {
		return err
	}
	if err := l.way.resolve(l.local, l.remote); err != nil {
		return err
	}
	if err := attach(fd, receiveFilter(l.local, l.remote)); err != nil {
		return fmt.Errorf("set the packet socket's filter: %w", err)
	}
	l.vnet = tellsSegments() && !cfg.guess
	if err := l.options(fd, cfg.Buffer); err != nil {
		return err
	}
	to := &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: l.way.index}
	if err := unix.Bind(fd, to); err != nil {
		return fmt.Errorf("bind the packet socket to %s: %w", l.way.iface, err)
	}
	return nil
}

// packetSocket makes a packet socket that receives nothing yet.
func packetSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return -1, fmt.Errorf("open a packet socket: %w: it needs CAP_NET_RAW: be root, or "+
			"give it to the program by setcap cap_net_raw+ep FILE", err)
	}
	if err != nil {
		return -1, fmt.Errorf("open a packet socket: %w", err)
	}
	return fd, nil
}

// socketFile makes a descriptor a file that the runtime waits on.
func socketFile(fd int, name string) (*os.File, error) {
	if f := os.NewFile(uintptr(fd), name); f != nil {
		return f, nil
	}
	return nil, fmt.Errorf("descriptor %d is not open", fd)
}

func (l *wired) options(fd, buffer int) error {
	if buffer == 0 {
		buffer = defaultBuffer
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer) // as much as the host allows
	}
	for _, o := range []struct {
		level, name int
		what        string
		on          bool
	}{
		{unix.SOL_PACKET, unix.PACKET_VNET_HDR, "PACKET_VNET_HDR", l.vnet},
		{unix.SOL_PACKET, unix.PACKET_AUXDATA, "PACKET_AUXDATA", true},
		{unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, "SO_TIMESTAMPNS", true},
	} {
		if !o.on {
			continue
		}
		if err := unix.SetsockoptInt(fd, o.level, o.name, 1); err != nil {
			return fmt.Errorf("set %s on the packet socket: %w", o.what, err)
		}
	}
	return nil
}

// holdPort binds a UDP socket that takes nothing to RoCEv2's port of an address.
func holdPort(local netip.Addr) (int, error) {
	fd, err := unix.Socket(family(local), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open a UDP socket: %w", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1) // the least there is
	if err = attach(fd, dropFilter()); err == nil {
		err = bindUDP(fd, local, Port)
	}
	if err == nil {
		return fd, nil
	}
	_ = unix.Close(fd)
	at := netip.AddrPortFrom(local, Port)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return -1, fmt.Errorf("take UDP port %v: %w: a daemon or another program serves RoCEv2 at that address: "+
			"let the tester use another address of this host, or stop the other", at, err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return -1, fmt.Errorf("take UDP port %v: %w: %v is no address of this host", at, err, local)
	}
	return -1, fmt.Errorf("take UDP port %v: %w", at, err)
}

func bindUDP(fd int, a netip.Addr, port int) error {
	if a.Is4() {
		return unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: a.As4()})
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
		return err
	}
	return unix.Bind(fd, &unix.SockaddrInet6{Port: port, Addr: a.As16(), ZoneId: zoneID(a)})
}

// zoneID is the index of an address's interface, 0 for none.
func zoneID(a netip.Addr) uint32 {
	if a.Zone() == "" {
		return 0
	}
	if ifi, err := net.InterfaceByName(a.Zone()); err == nil {
		return uint32(ifi.Index)
	}
	return 0
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

func (l *wired) Local() netip.Addr  { return l.local }
func (l *wired) Remote() netip.Addr { return l.remote }
func (l *wired) MTU() int           { return l.way.mtu }

// Record calls f with what comes from now on: what came before goes to whoever recorded until now.
func (l *wired) Record(f func(*Frame)) {
	_ = l.readAhead()
	l.recorder.set(f)
}

func (l *wired) Close() (err error) {
	l.closing.Do(func() {
		close(l.closed)
		err = l.file.Close()
		if l.port != nil {
			_ = l.port.Close()
		}
	})
	return err
}

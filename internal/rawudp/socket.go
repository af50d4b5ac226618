package rawudp

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socket is an unconnected UDP socket, made like an adapter's.
type socket struct {
	fd   int
	v4   bool
	port uint16
	addr netip.Addr
}

// open makes a socket on a side's address and a port of the kernel's choice.
func open(s Side) (k *socket, err error) {
	err = s.in(func() error {
		k, err = listen(s.Addr)
		return err
	})
	return k, err
}

func listen(a netip.Addr) (*socket, error) {
	k := &socket{v4: a.Is4(), addr: a}
	family := unix.AF_INET6
	var sa unix.Sockaddr = &unix.SockaddrInet6{Addr: a.As16()}
	if k.v4 {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Addr: a.As4()}
	}
	var err error
	if k.fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("rawudp: socket: %w", err)
	}
	if err := k.setup(sa); err != nil {
		unix.Close(k.fd)
		return nil, fmt.Errorf("rawudp: socket on %v: %w", a, err)
	}
	return k, nil
}

func (k *socket) setup(sa unix.Sockaddr) error {
	level, option := unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER
	if k.v4 {
		level, option = unix.IPPROTO_IP, unix.IP_MTU_DISCOVER
	}
	if err := unix.SetsockoptInt(k.fd, level, option, unix.IP_PMTUDISC_DO); err != nil {
		return err
	}
	if err := errors.Join(k.buffer(unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, sendBuffer), k.buffer(unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, recvBuffer)); err != nil {
		return err
	}
	if err := unix.Bind(k.fd, sa); err != nil {
		return os.NewSyscallError("bind", err)
	}
	name, err := unix.Getsockname(k.fd)
	if err != nil {
		return err
	}
	switch n := name.(type) {
	case *unix.SockaddrInet4:
		k.port = uint16(n.Port)
	case *unix.SockaddrInet6:
		k.port = uint16(n.Port)
	}
	return nil
}

// buffer makes a socket buffer as large as it may be.
func (k *socket) buffer(force, plain, bytes int) error {
	if unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, force, bytes) == nil {
		return nil
	}
	return unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, plain, bytes)
}

// window is how many of the wanted bytes may be on the way to this socket
// without a loss. The kernel counts more than the payload: of a small packet up
// to ten times as much, of which it has reserved half.
func (k *socket) window(want, size int) int {
	have, err := unix.GetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return want
	}
	const overhead = 1280
	return min(want, int(int64(have)/2*int64(size)/int64(size+overhead)))
}

func (k *socket) close() { unix.Close(k.fd) }

// sockaddr is the socket's address as the kernel takes it.
func (k *socket) sockaddr() (*byte, uint32) {
	port := func(p *uint16) {
		b := (*[2]byte)(unsafe.Pointer(p))
		b[0], b[1] = byte(k.port>>8), byte(k.port)
	}
	if k.v4 {
		sa := &unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: k.addr.As4()}
		port(&sa.Port)
		return (*byte)(unsafe.Pointer(sa)), unix.SizeofSockaddrInet4
	}
	sa := &unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: k.addr.As16()}
	port(&sa.Port)
	return (*byte)(unsafe.Pointer(sa)), unix.SizeofSockaddrInet6
}

// duo is two sockets.
type duo struct{ tx, rx *socket }

func openDuo(tx, rx Side) (d duo, err error) {
	if d.tx, err = open(tx); err != nil {
		return d, err
	}
	if d.rx, err = open(rx); err != nil {
		d.tx.close()
	}
	return d, err
}

func (d duo) close() {
	d.tx.close()
	d.rx.close()
}

package udp4791

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// lockBacklog is the queue of the lock socket. Each one who finds the address
// taken connects once to ask for our pid and is never accepted; when the queue
// is full, the next ones look in /proc instead.
const lockBacklog = 4096

// lockName is the lock of an address: a name in the abstract Unix namespace,
// which the kernel keeps per network namespace, as it keeps addresses.
func lockName(l local) string {
	if l.zone != 0 {
		return fmt.Sprintf("@softroce/udp4791/%v/%d", l.addr.WithZone(""), l.zone)
	}
	return fmt.Sprintf("@softroce/udp4791/%v", l.addr)
}

// takeLock makes this process the one owner of an address, until the
// descriptor is closed. The kernel drops the lock with the process, so it
// cannot be stale. It fails with a *BusyError that names the holder.
func takeLock(l local) (int, error) {
	name := lockName(l)
	fd, err := bindLock(name)
	switch {
	case err == nil:
		return fd, nil
	case errors.Is(err, unix.EADDRINUSE):
		pid := holderOf(name)
		return -1, &BusyError{Addr: l.addr, PID: pid, Command: commandOf(pid), Adapter: true}
	}
	return -1, &SocketError{
		Op: "lock", Addr: l.addr, Err: err,
		Reason: "the abstract Unix socket " + name + " cannot be bound",
	}
}

// bindLock takes the lock of a name.
func bindLock(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err == nil {
		err = unix.Listen(fd, lockBacklog)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// holderOf is the process that has a lock, 0 when it is not known.
func holderOf(name string) int {
	if pid := lockHolder(name); pid != 0 {
		return pid
	}
	return pidOfInode(unixInode(name))
}

// linkBusy says that another adapter has a TUN link. It is EBUSY.
type linkBusy struct{ who string }

func (*linkBusy) Error() string { return unix.EBUSY.Error() }

func (*linkBusy) Unwrap() error { return unix.EBUSY }

// takeLinkLock makes this process the one that uses a TUN link of that name, as
// takeLock does: the kernel lets several open one of many queues, and would give
// each of them packets of the others.
func takeLinkLock(link string) (int, error) {
	name := "@softroce/tun/" + link
	fd, err := bindLock(name)
	if errors.Is(err, unix.EADDRINUSE) {
		pid := holderOf(name)
		return -1, &linkBusy{who: processName(pid, commandOf(pid))}
	}
	return fd, err
}

// lockHolder asks the kernel who listens on a lock: 0 when nobody does any
// more, the queue is full, or the holder's pid means nothing here.
func lockHolder(name string) int {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		return 0
	}
	c, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || c.Pid < 0 {
		return 0
	}
	return int(c.Pid)
}

// trialBind binds port 4791 once without SO_REUSEPORT and gives it back. It
// fails when anything is bound there, on this address or on a wildcard, even
// with SO_REUSEPORT.
func trialBind(l local) error {
	var ignored []string
	fd, err := newSocket(l, nil, &ignored)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, l.sockaddr(Port)); err != nil {
		return explainBind(l, err)
	}
	return nil
}

package udp4791

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
)

// ErrWouldBlock is returned by WriteBatch when the socket takes no more now.
// It is a wait, not a loss: poll WriteFD and send the rest again.
var ErrWouldBlock = errors.New("udp4791: send: the socket is full for now")

// ErrClosed is returned by calls on a closed group.
var ErrClosed = errors.New("udp4791: the group is closed")

// BusyError says that somebody else holds port 4791 of an address in this
// network namespace.
type BusyError struct {
	// Addr is the address that was asked for.
	Addr netip.Addr
	// PID is the holder's process id as seen from here, 0 when not known.
	PID int
	// Command is the holder's command name, "" when not known.
	Command string
	// Adapter says that the holder is another adapter of this kind (it holds
	// the address's lock), not just any program on the port.
	Adapter bool
	// Bound is the address the holder is bound to when it is not Addr
	// itself but a wildcard; otherwise the zero Addr.
	Bound netip.Addr
}

// Error says which address, who holds it and what to do.
func (e *BusyError) Error() string {
	who := processName(e.PID, e.Command)
	head := fmt.Sprintf("udp4791: open %v: port %d is busy: ", e.Addr, Port)
	switch {
	case e.Adapter:
		return head + "another adapter owns this address in this network namespace, " + who +
			"; stop it or give this one another address"
	case e.Bound.IsValid() && e.PID == 0:
		return head + fmt.Sprintf("the wildcard %v is bound, by the kernel or by %s"+
			" (kernel rdma_rxe does so: \"rdma link\" shows it, \"rdma link delete\" and \"rmmod rdma_rxe\" end it);"+
			" end it or use another network namespace", e.Bound, who)
	case e.Bound.IsValid():
		return head + fmt.Sprintf("%s is bound to the wildcard %v; end it or use another network namespace", who, e.Bound)
	}
	return head + who + " is bound to it; end it or give the adapter another address"
}

// processName names a process for an error.
func processName(pid int, command string) string {
	switch {
	case pid != 0 && command != "":
		return fmt.Sprintf("pid %d (%s)", pid, command)
	case pid != 0:
		return fmt.Sprintf("pid %d", pid)
	}
	return "a process that is not visible from here"
}

// AddrError says that an address cannot be an adapter's.
type AddrError struct {
	Addr   netip.Addr
	Reason string
	Err    error // the system's answer, or nil
}

// Error names the address and the reason.
func (e *AddrError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("udp4791: address %v is %s (%v)", e.Addr, e.Reason, e.Err)
	}
	return fmt.Sprintf("udp4791: address %v is %s", e.Addr, e.Reason)
}

// Unwrap returns the system's answer.
func (e *AddrError) Unwrap() error { return e.Err }

// SocketError says which step of opening a socket failed and why.
type SocketError struct {
	Op     string // the step, for example "bind" or "set IP_MTU_DISCOVER"
	Addr   netip.Addr
	Reason string // in words, may be ""
	Err    error
}

// Error names the step, the address and the reason.
func (e *SocketError) Error() string {
	s := fmt.Sprintf("udp4791: %s for %v: %v", e.Op, e.Addr, e.Err)
	if e.Reason != "" {
		s += "; " + e.Reason
	}
	return s
}

// Unwrap returns the system's answer.
func (e *SocketError) Unwrap() error { return e.Err }

// SendError is the refusal of one datagram by the kernel: the slot at the
// index that WriteBatch returned was not sent and never will be.
type SendError struct {
	Errno syscall.Errno
}

// Error says the errno and, for the usual ones, what it means here.
func (e *SendError) Error() string {
	s := "udp4791: send: " + e.Errno.Error()
	if w := sendErrnoWords(e.Errno); w != "" {
		s += ": " + w
	}
	return s
}

// Unwrap returns the errno.
func (e *SendError) Unwrap() error { return e.Errno }

func sendErrnoWords(e syscall.Errno) string {
	switch e {
	case syscall.EMSGSIZE:
		return "the packet is longer than the link's MTU allows and must not be fragmented; use a smaller path MTU"
	case syscall.EPERM:
		return "a firewall rule or policy on this host refuses it"
	case syscall.ENETUNREACH, syscall.EHOSTUNREACH:
		return "no route to the peer"
	case syscall.EACCES:
		return "a broadcast address or a prohibited route"
	case syscall.EAFNOSUPPORT:
		return "the peer's address is of another family than the local one"
	case syscall.EBADF:
		return "the flow is closed"
	case syscall.ENETDOWN, syscall.ENODEV, syscall.EADDRNOTAVAIL:
		return "the interface is down or its address was removed"
	}
	return ""
}

package shm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of one control message; our own tuning.
const (
	// MaxMessage is the most bytes of one message.
	MaxMessage = 64 << 10
	// DefaultMaxFDs is how many descriptors a message may carry, unless SetMaxFDs
	// says otherwise.
	DefaultMaxFDs = 32
)

var (
	// ErrMessageSize refuses a message longer than MaxMessage, or longer than the
	// buffer given to Recv.
	ErrMessageSize = errors.New("shm: control message too long")
	// ErrTooManyFDs refuses a message that carries more descriptors than allowed;
	// all of them were closed.
	ErrTooManyFDs = errors.New("shm: control message carries too many descriptors")
)

// Conn is one end of the control connection: a SOCK_SEQPACKET Unix socket whose
// messages keep their bounds and carry descriptors. Goroutines wait in the
// runtime's poller. One goroutine may send while another receives; Close may be
// called from any and ends both.
type Conn struct {
	c      *net.UnixConn
	maxFDs int
	// oob holds the ancillary data of a Recv; only that one uses it.
	oob     []byte
	closing atomic.Bool
}

func newConn(c *net.UnixConn) *Conn {
	s := &Conn{c: c}
	s.SetMaxFDs(DefaultMaxFDs)
	return s
}

// SetMaxFDs sets how many descriptors a received message may carry. The kernel
// installs no more than fit, so a peer that sends hundreds opens none beyond
// it. Not while a Recv runs.
func (s *Conn) SetMaxFDs(n int) {
	s.maxFDs = n
	// Room for one more, so that "too many" is seen. CmsgSpace rounds up, which
	// may let in another: Recv closes them.
	s.oob = make([]byte, unix.CmsgSpace(4*(n+1)))
}

// Send sends one message with descriptors, which stay the caller's. It waits
// for room in the socket, within the write deadline.
// Errors: ErrMessageSize (also for an empty message, which would read as a
// hang-up), or the socket's (EPIPE when the peer is gone).
func (s *Conn) Send(msg []byte, fds []int) error {
	if len(msg) == 0 || len(msg) > MaxMessage {
		return fmt.Errorf("send %d bytes: %w (limit %d)", len(msg), ErrMessageSize, MaxMessage)
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	sent()
	if _, _, err := s.c.WriteMsgUnix(msg, oob, nil); err != nil {
		return fmt.Errorf("shm: send: %w", err)
	}
	return nil
}

// Recv receives one message into buf. The descriptors that came with it, all
// close-on-exec, are the caller's: use or close each. With an error no
// descriptor is left open and the message is lost. Errors: io.EOF when the peer hung up;
// net.ErrClosed after Close; os.ErrDeadlineExceeded; ErrMessageSize;
// ErrTooManyFDs.
func (s *Conn) Recv(buf []byte) (n int, fds []int, err error) {
	n, oobn, flags, _, err := s.c.ReadMsgUnix(buf, s.oob)
	// Descriptors may come with an empty message, which reads as io.EOF.
	fds, cmsgErr := descriptors(s.oob[:oobn])
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		err = fmt.Errorf("shm: receive: %w", err)
	case err != nil || n == 0:
		err = io.EOF
	case flags&unix.MSG_CTRUNC != 0 || len(fds) > s.maxFDs:
		err = fmt.Errorf("receive: %w (limit %d)", ErrTooManyFDs, s.maxFDs)
	case flags&unix.MSG_TRUNC != 0:
		err = fmt.Errorf("receive: %w (limit %d)", ErrMessageSize, len(buf))
	case cmsgErr != nil:
		err = fmt.Errorf("shm: receive: ancillary data: %w", cmsgErr)
	}
	if err != nil {
		CloseFDs(fds)
		return 0, nil, err
	}
	received()
	return n, fds, nil
}

// descriptors takes the descriptors out of ancillary data. What it returns with
// an error is still open.
func descriptors(oob []byte) (fds []int, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	for i := range msgs {
		if msgs[i].Header.Level != unix.SOL_SOCKET || msgs[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		more, e := unix.ParseUnixRights(&msgs[i])
		fds, err = append(fds, more...), errors.Join(err, e)
	}
	return fds, err
}

// CloseFDs closes received descriptors that nobody wants.
func CloseFDs(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// SetDeadline bounds the waits of Send and Recv, as net.Conn's; the zero time
// takes the bound away. A time in the past unblocks a Recv that waits.
func (s *Conn) SetDeadline(t time.Time) error { return s.c.SetDeadline(t) }

// SetReadDeadline is SetDeadline for Recv alone.
func (s *Conn) SetReadDeadline(t time.Time) error { return s.c.SetReadDeadline(t) }

// SetWriteDeadline is SetDeadline for Send alone.
func (s *Conn) SetWriteDeadline(t time.Time) error { return s.c.SetWriteDeadline(t) }

// Close hangs up. It unblocks a Recv and a Send that wait, also in a process
// that inherited the socket. A second call returns ErrClosed.
func (s *Conn) Close() error {
	if s.closing.Swap(true) {
		return ErrClosed
	}
	// The peer must see the hang-up even if a forked child holds a copy.
	_ = s.control(func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RDWR) })
	return s.c.Close()
}

// control runs f on the descriptor without taking it out of the poller.
func (s *Conn) control(f func(fd int) error) error {
	raw, err := s.c.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// Dial connects to a Listener's socket. Errors name the path; errors.Is finds
// the errno (ENOENT: no adapter was started there; ECONNREFUSED: one was, and
// is gone; EACCES).
func Dial(path string) (*Conn, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("shm: connect: %w", err)
	}
	return newConn(c), nil
}

// Socketpair returns two connected ends within this process.
func Socketpair() (a, b *Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("shm: socketpair: %w", err)
	}
	if a, err = ConnFromFD(fds[0]); err != nil {
		return nil, nil, errors.Join(err, unix.Close(fds[1]))
	}
	if b, err = ConnFromFD(fds[1]); err != nil {
		return nil, nil, errors.Join(err, a.Close())
	}
	return a, b, nil
}

// ConnFromFD takes over a connected SOCK_SEQPACKET descriptor, for instance one
// inherited from a parent process. The descriptor is closed also on error.
func ConnFromFD(fd int) (*Conn, error) {
	f := os.NewFile(uintptr(fd), "control")
	defer f.Close() //nolint:errcheck // FileConn duplicated it (2026-11)
	nc, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("shm: control socket: %w", err)
	}
	c, ok := nc.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("shm: control socket: descriptor %d is no Unix socket", fd), nc.Close())
	}
	return newConn(c), nil
}

// maxPath is the longest path of a Unix socket (sun_path less its final zero).
const maxPath = 107

func checkPath(path string) error {
	if path == "" || len(path) > maxPath {
		return fmt.Errorf("shm: socket path %q: has %d bytes, must have 1 to %d", path, len(path), maxPath)
	}
	return nil
}

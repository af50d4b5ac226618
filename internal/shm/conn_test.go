package shm

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func pair(t *testing.T) (a, b *Conn) {
	t.Helper()
	a, b, err := Socketpair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range []*Conn{a, b} {
			if err := c.Close(); err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		}
	})
	return a, b
}

func TestConnKeepsMessages(t *testing.T) {
	noNewFDs(t)
	a, b := pair(t)
	long := bytes.Repeat([]byte("x"), MaxMessage)
	go func() {
		for _, m := range [][]byte{[]byte("one"), []byte("two"), long} {
			if err := a.Send(m, nil); err != nil {
				t.Error(err)
			}
		}
	}()
	buf := make([]byte, MaxMessage)
	for _, want := range [][]byte{[]byte("one"), []byte("two"), long} {
		n, fds, err := b.Recv(buf)
		if err != nil || !bytes.Equal(buf[:n], want) || len(fds) != 0 {
			t.Fatalf("received %d bytes, %d descriptors, %v; want %d bytes", n, len(fds), err, len(want))
		}
	}
	if err := a.Send(append(long, 'x'), nil); !errors.Is(err, ErrMessageSize) {
		t.Errorf("Send of too much: %v, want ErrMessageSize", err)
	}
	if err := a.Send(nil, nil); !errors.Is(err, ErrMessageSize) {
		t.Errorf("Send of nothing: %v, want ErrMessageSize", err)
	}
	if err := a.Send([]byte("too long"), nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Recv(buf[:3]); !errors.Is(err, ErrMessageSize) {
		t.Errorf("Recv into too little: %v, want ErrMessageSize", err)
	}
}

func TestConnPassesDescriptors(t *testing.T) {
	noNewFDs(t)
	a, b := pair(t)
	s := create(t, 4096)
	d := newDoorbell(t)
	if err := a.Send([]byte("m"), []int{s.FD(), d.FD()}); err != nil {
		t.Fatal(err)
	}
	n, fds, err := b.Recv(make([]byte, 10))
	if err != nil || n != 1 || len(fds) != 2 {
		t.Fatalf("received %d bytes, %d descriptors, %v", n, len(fds), err)
	}
	defer CloseFDs(fds)
	for _, fd := range fds {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d has flags %#x (%v), want FD_CLOEXEC", fd, flags, err)
		}
	}
	m, err := Map(fds[0], false)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	s.Bytes()[9] = 42
	if m.Bytes()[9] != 42 {
		t.Error("the first descriptor is not the segment")
	}
}

// A peer may attach as many descriptors as the kernel lets it, to any kind of
// message: none stays open here.
func TestConnLeaksNoDescriptor(t *testing.T) {
	a, b := pair(t)
	d := newDoorbell(t)
	raw := func(msg []byte, n int) {
		t.Helper()
		fds := make([]int, n)
		for i := range fds {
			fds[i] = d.FD()
		}
		oob := unix.UnixRights(fds...)
		// Not unix.Sendmsg: it adds a byte to an empty message.
		hdr := unix.Msghdr{}
		var iov unix.Iovec
		if len(msg) > 0 {
			iov.Base = &msg[0]
			iov.SetLen(len(msg))
			hdr.Iov = &iov
			hdr.SetIovlen(1)
		}
		hdr.Control = &oob[0]
		hdr.SetControllen(len(oob))
		err := a.control(func(fd int) error {
			if _, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&hdr)), 0); errno != 0 {
				return errno
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	b.SetMaxFDs(4)
	noNewFDs(t)
	rows := []struct {
		name string
		msg  []byte
		fds  int
		buf  int
		want error
	}{
		{"one too many", []byte("m"), 5, 10, ErrTooManyFDs},
		{"two too many", []byte("m"), 6, 10, ErrTooManyFDs},
		{"as many as the kernel takes", []byte("m"), 253, 10, ErrTooManyFDs},
		{"with a message that is too long", make([]byte, 100), 4, 10, ErrMessageSize},
		{"with both", make([]byte, 100), 253, 10, ErrTooManyFDs},
		{"with an empty message", nil, 4, 10, io.EOF},
		{"many with an empty message", nil, 253, 10, io.EOF},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			noNewFDs(t)
			raw(row.msg, row.fds)
			n, fds, err := b.Recv(make([]byte, row.buf))
			if n != 0 || fds != nil || !errors.Is(err, row.want) {
				t.Errorf("Recv: %d bytes, %d descriptors, %v; want %v", n, len(fds), err, row.want)
			}
		})
	}
	raw([]byte("good"), 4)
	n, fds, err := b.Recv(make([]byte, 10))
	if n != 4 || len(fds) != 4 || err != nil {
		t.Errorf("the next good message: %d bytes, %d descriptors, %v", n, len(fds), err)
	}
	CloseFDs(fds)
}

func TestConnClose(t *testing.T) {
	noNewFDs(t)
	a, b := pair(t)
	recv := func(c *Conn) chan error {
		done := make(chan error, 1)
		go func() {
			_, _, err := c.Recv(make([]byte, 10))
			done <- err
		}()
		return done
	}
	mine, theirs := recv(a), recv(b)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-mine; !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.EOF) {
		t.Errorf("Recv of the closed end: %v, want net.ErrClosed", err)
	}
	if err := <-theirs; !errors.Is(err, io.EOF) {
		t.Errorf("Recv of the other end: %v, want io.EOF", err)
	}
	if _, _, err := a.Recv(make([]byte, 10)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Recv after Close: %v, want net.ErrClosed", err)
	}
	if err := b.Send([]byte("m"), nil); !errors.Is(err, unix.EPIPE) {
		t.Errorf("Send to the closed end: %v, want EPIPE", err)
	}
	if err := a.Close(); !errors.Is(err, ErrClosed) {
		t.Errorf("second Close: %v, want ErrClosed", err)
	}
}

// A child may hold a copy of the socket: the peer sees the hang-up all the same.
func TestConnCloseIsSeenDespiteCopies(t *testing.T) {
	noNewFDs(t)
	a, b := pair(t)
	var copied int
	if err := a.control(func(fd int) (err error) { copied, err = unix.Dup(fd); return err }); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(copied)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Recv(make([]byte, 10)); !errors.Is(err, io.EOF) {
		t.Errorf("Recv: %v, want io.EOF", err)
	}
}

func TestConnDeadline(t *testing.T) {
	_, b := pair(t)
	done := make(chan error, 1)
	go func() {
		_, _, err := b.Recv(make([]byte, 10))
		done <- err
	}()
	if err := b.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Recv: %v, want os.ErrDeadlineExceeded", err)
	}
	// A peer that never reads must not hold a sender for ever.
	if err := b.SetWriteDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var err error
	for err == nil {
		err = b.Send(make([]byte, MaxMessage), nil)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Send: %v, want os.ErrDeadlineExceeded", err)
	}
	if err := b.SetDeadline(time.Time{}); err != nil {
		t.Error(err)
	}
}

func TestPeerCred(t *testing.T) {
	a, _ := pair(t)
	got, err := a.PeerCred()
	if want := (Cred{PID: os.Getpid(), UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}); got != want || err != nil {
		t.Errorf("PeerCred() = %+v, %v, want %+v", got, err, want)
	}
}

func TestConnFromFDRefuses(t *testing.T) {
	noNewFDs(t)
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := ConnFromFD(fd); err == nil {
		t.Errorf("an eventfd became %v", c)
	}
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	if c, err := ConnFromFD(fd); err == nil {
		t.Errorf("a UDP socket became %v", c)
	}
}

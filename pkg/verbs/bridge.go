package verbs

import (
	"context"
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/devctl"
	"github.com/softroce/softroce/internal/uapi"
)

func init() {
	devctl.Of = func(d any) devctl.Device { return bridge{d.(*Device)} }
}

// bridge is a Device for the packages of this module that make requests of
// their own.
type bridge struct{ d *Device }

func (b bridge) Do(op string, code uapi.Op, req uapi.Body, rep devctl.Reply) error {
	return b.d.ctl.do(op, code, req, rep)
}

func (b bridge) Channel(op string, code uapi.Op, req uapi.Body, size int) (uint32, devctl.Records, error) {
	var rep uapi.HandleReply
	fds, err := b.d.ctl.call(op, code, req, &rep, nil)
	if err != nil {
		return 0, nil, err
	}
	if len(fds) != 1 {
		closeAll(fds)
		return 0, nil, &Error{Op: op, Errno: unix.EPROTO, Text: "the adapter sent no pipe"}
	}
	r, err := newRecords(fds[0], size)
	if err != nil {
		return 0, nil, &Error{Op: op, Errno: unix.EPROTO, Text: err.Error()}
	}
	return rep.Handle, bridgeRecords{r}, nil
}

func (b bridge) Stream(op string, code uapi.Op, req uapi.Body) (uint32, *os.File, error) {
	var rep uapi.HandleReply
	fds, err := b.d.ctl.call(op, code, req, &rep, nil)
	if err != nil {
		return 0, nil, err
	}
	if len(fds) != 1 {
		closeAll(fds)
		return 0, nil, &Error{Op: op, Errno: unix.EPROTO, Text: "the adapter sent no pipe"}
	}
	return rep.Handle, os.NewFile(uintptr(fds[0]), op), nil
}

func (b bridge) Done() <-chan struct{} { return b.d.dying }

type bridgeRecords struct{ r *records }

func (b bridgeRecords) Next(ctx context.Context, dst []byte) error {
	switch err := b.r.next(ctx, dst); {
	case err == nil:
		return nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return err
	}
	return dead("get CM event")
}

func (b bridgeRecords) Try(dst []byte) error {
	switch err := b.r.try(dst); {
	case err == nil:
		return nil
	case errors.Is(err, unix.EAGAIN):
		return errNoEvent
	}
	return dead("get CM event")
}

func (b bridgeRecords) SyscallConn() (syscall.RawConn, error) { return b.r.f.SyscallConn() }

func (b bridgeRecords) Close() { b.r.close() }

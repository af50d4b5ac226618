// Package devctl lets packages of this module beside pkg/verbs make requests to
// the adapter of a verbs.Device. It is no part of what programs see: the package
// verbs puts its side in, and pkg/rdmacm takes it out. It refuses to know what a
// request means.
package devctl

import (
	"context"
	"os"
	"syscall"

	"github.com/softroce/softroce/internal/uapi"
)

// Reply is a control message's answer.
type Reply interface {
	Decode(b []byte) error
}

// Device is a device's connection to its adapter. Errors are verbs.Error.
type Device interface {
	// Do makes a request. rep may be nil.
	Do(op string, code uapi.Op, req uapi.Body, rep Reply) error
	// Channel makes a request that is answered by a uapi.HandleReply and the
	// reading end of a pipe of records of size bytes.
	Channel(op string, code uapi.Op, req uapi.Body, size int) (handle uint32, r Records, err error)
	// Stream makes a request that is answered by a uapi.HandleReply and the reading
	// end of a pipe, which the caller closes.
	Stream(op string, code uapi.Op, req uapi.Body) (handle uint32, r *os.File, err error)
	// Done is closed when the adapter is gone.
	Done() <-chan struct{}
}

// Records reads the records of a pipe.
type Records interface {
	// Next waits for a record. It ends with ctx's error, or verbs.ErrDeviceDead.
	Next(ctx context.Context, dst []byte) error
	// Try is Next that does not wait. EAGAIN: there is no record.
	Try(dst []byte) error
	// SyscallConn gives the descriptor, for polling only.
	SyscallConn() (syscall.RawConn, error)
	Close()
}

// Of gives a *verbs.Device's connection. The package verbs sets it when it is
// initialised, which importing it makes sure of.
var Of func(device any) Device

package verbs

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Error is a failed verb. Errno is what the manual page of the call gives for
// the case; Text says what was wrong and, where there is one, the limit.
type Error struct {
	Op    string // the call, as in "modify QP"
	Errno unix.Errno
	Text  string // may be empty
}

// Error gives operation, reason and errno.
func (e *Error) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("%s: %s", e.Op, e.Errno.Error())
	}
	text := e.Text
	for after, found := strings.CutPrefix(text, e.Op+": "); found; after, found = strings.CutPrefix(text, e.Op+": ") {
		text = after // the adapter named the call, too
	}
	return fmt.Sprintf("%s: %s (%s)", e.Op, text, unix.ErrnoName(e.Errno))
}

// Unwrap lets errors.Is compare with the errno.
func (e *Error) Unwrap() error { return e.Errno }

// ErrDeviceDead is wrapped by every error of a Device whose adapter is gone;
// the errno is EIO.
var ErrDeviceDead = errors.New(deadText)

// deadText marks the errors that errors.Is finds to be ErrDeviceDead.
const deadText = "the adapter is gone"

// Is says that an error of a dead device is ErrDeviceDead.
func (e *Error) Is(target error) bool {
	return target == ErrDeviceDead && e.Errno == unix.EIO && e.Text == deadText
}

func dead(op string) error { return &Error{Op: op, Errno: unix.EIO, Text: deadText} }

func invalid(op, format string, args ...any) error {
	return &Error{Op: op, Errno: unix.EINVAL, Text: fmt.Sprintf(format, args...)}
}

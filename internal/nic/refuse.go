package nic

import (
	"errors"
	"fmt"
	"syscall"
)

// Error is a request refused: the errno of the verbs manual and one line
// that says what was asked, why it is refused and which limit applies.
type Error struct {
	Errno syscall.Errno
	Text  string
}

// Error returns the line.
func (e *Error) Error() string { return e.Text }

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

func refuse(errno syscall.Errno, format string, args ...any) error {
	return &Error{Errno: errno, Text: fmt.Sprintf(format, args...)}
}

// errnoOf returns the errno in err's chain, or fallback.
func errnoOf(err error, fallback syscall.Errno) syscall.Errno {
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != 0 {
		return errno
	}
	return fallback
}

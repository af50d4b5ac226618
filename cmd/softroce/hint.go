package main

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/perf"
	"github.com/softroce/softroce/internal/pingpong"
	"github.com/softroce/softroce/internal/rping"
)

// hinted says of an error that came of a failed completion where it is explained: by the adapter of the same socket.
func hinted(err error, socket string) error {
	failures := []error{pingpong.ErrCompletion, perf.ErrCompletion, rping.ErrCompletion}
	if err == nil || !slices.ContainsFunc(failures, func(e error) bool { return errors.Is(err, e) }) {
		return err
	}
	return withHint(err, socket)
}

// hintedConn is hinted for a connection of pkg/rdmanet, whose errors are those of sockets.
func hintedConn(err error, socket string) error {
	if errors.Is(err, unix.ETIMEDOUT) || errors.Is(err, unix.ECONNRESET) {
		return withHint(err, socket)
	}
	return err
}

func withHint(err error, socket string) error {
	ask := "softroce explain --last"
	if socket != "" {
		ask += " --socket " + socket
	}
	return fmt.Errorf("%w (%s says more)", err, ask)
}

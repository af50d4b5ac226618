// Command softroce is a RoCEv2 adapter in software: the daemon, and tools to
// try it, measure it and look into it. Flags, signals and output live here;
// everything else in the packages.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// Exit statuses. decode gives exitFailed a narrower meaning, see there.
const (
	exitFailed = 1 // the work was begun and failed
	exitUsage  = 2 // the command cannot be carried out as it was given
)

// exitError carries the exit status of an error. A nil err prints nothing.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// sameSignal is how long after a signal that ends a command another one is taken for
// the same; our own choice.
const sameSignal = 250 * time.Millisecond

func main() {
	ends := []os.Signal{syscall.SIGTERM, syscall.SIGINT}
	if !signal.Ignored(syscall.SIGHUP) { // nohup asks to outlive the terminal
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	// A second signal ends what does not end. Some senders, as timeout(1), send one twice.
	context.AfterFunc(ctx, func() { time.AfterFunc(sameSignal, stop) })
	err := newRoot().ExecuteContext(ctx)
	stop()
	os.Exit(exitStatus(err))
}

// exitStatus prints an error as one line and gives the exit status. What a
// command returned carries its own; any other error is cobra's, of arguments that
// it could not take.
func exitStatus(err error) int {
	if err == nil {
		return 0
	}
	var e *exitError
	if errors.As(err, &e) && e.err == nil {
		return e.code
	}
	fmt.Fprintln(os.Stderr, "softroce:", err)
	if e != nil {
		return e.code
	}
	return exitUsage
}

// working gives the errors of a command's work, and of its children's, the status
// exitFailed where they have none.
func working(c *cobra.Command) {
	if run := c.RunE; run != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			err := run(c, args)
			if e := (*exitError)(nil); err != nil && !errors.As(err, &e) {
				err = &exitError{exitFailed, err}
			}
			return err
		}
	}
	for _, sub := range c.Commands() {
		working(sub)
	}
}

// newRoot builds the whole command tree; the documentation generator uses it
// too.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "softroce",
		Short: "A RoCEv2 network adapter in software, in userspace",
		Long: `softroce is a RoCEv2 network adapter in software. "softroce daemon" is the adapter;
programs use it through the Go package pkg/verbs, with the verbs of RDMA.

Try it on one machine, without anything else:   softroce demo
Run an adapter:                                 softroce daemon --addr 192.0.2.1
Look at it, its objects and its counters:       softroce devinfo, softroce resource, softroce stat
What its queue pairs do now, live:              softroce top
What went wrong, in words:                      softroce explain [STATUS | QPN | --last]
Ping-pong with rdma-core's ibv_*_pingpong:       softroce pingpong [rc | uc | ud | srq] [HOST]
Ping by address, as rdma-core's rping does:      softroce rping {-s | -c -a HOST}
A pipe between two hosts over RDMA:             softroce nc {-l PORT | HOST PORT}`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version(),
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &exitError{exitUsage, fmt.Errorf("%w (see %s --help)", err, c.CommandPath())}
	})
	root.AddCommand(newDaemonCmd(), newDevinfoCmd(), newDemoCmd(), newDecodeCmd(), newCaptureCmd(), newTraceCmd(), newImpairCmd(), newPingpongCmd(), newPerfCmd(), newRpingCmd(), newCmtimeCmd(), newNCCmd(), newConformanceCmd(), newResourceCmd(), newStatCmd(), newTopCmd(), newExplainCmd(), newGIDsCmd())
	working(root)
	return root
}

// version is the module's version as the build recorded it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 && (v == "" || v == "(devel)") {
			v = s.Value[:12]
		}
	}
	return v
}

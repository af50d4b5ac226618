package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/inspect"
	"github.com/softroce/softroce/pkg/verbs"
)

func newTopCmd() *cobra.Command {
	var f inspectFlags
	var once, busy bool
	var order string
	every := inspect.TopEvery
	c := &cobra.Command{
		Use:   "top [flags]",
		Short: "Watch the queue pairs live: rates, retransmissions, waits, errors",
		Long: `top asks a running daemon again and again, and shows what each queue pair did meanwhile: bytes, messages and packets a
second in both directions, packets sent again, RNR waits (and the share of the time that the peer asked for), ACK timeouts,
NAKs of lost packets, send requests that wait, errors; with state, peer and program. What went wrong with one of them says
"softroce explain" with its number.

On a terminal it goes on until q or ctrl-C; columns that do not fit are left out, the least needed first. Keys: b, m, p, r, w,
t, e, s, u, n sort by bytes, messages, packets, resent packets, waits, timeouts, errors, state, process, number; i hides
those that are idle; + and - change the interval; j and k scroll.

With --once, or where the output is no terminal, it looks twice, an interval apart, and prints one table with every column.`,
		Example: `  softroce top
  softroce top --sort resent --busy
  softroce top --once --interval 5s --json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			filter, err := f.filter(c)
			switch {
			case err != nil:
				return err
			case every < inspect.TopLeast:
				return &exitError{exitUsage, fmt.Errorf("top: --interval=%v is less than %v", every, inspect.TopLeast)}
			case !slices.Contains(inspect.TopSortNames(), order):
				return &exitError{exitUsage, fmt.Errorf("top: %q is no order: want %s", order, strings.Join(inspect.TopSortNames(), ", "))}
			}
			dev, err := verbs.Open(&verbs.Options{Socket: f.socket})
			if err != nil {
				return err
			}
			defer dev.Close()
			top := &inspect.Top{Filter: filter, Sort: order, Busy: busy, Every: every}
			if size := terminalSize(c.OutOrStdout()); size != nil && !once && !f.json {
				return liveTop(c.Context(), dev, top, size)
			}
			return onceTop(c, dev, top, f.json)
		},
	}
	f.addChoice(c)
	c.Flags().BoolVar(&f.json, "json", false, "print one table as JSON")
	c.Flags().BoolVar(&once, "once", false, "print one table")
	c.Flags().BoolVar(&busy, "busy", false, "leave out queue pairs that did nothing")
	c.Flags().DurationVar(&every, "interval", every, "how long after a look the next one comes")
	c.Flags().StringVar(&order, "sort", inspect.TopSorts[0].Name, "what to sort by: "+strings.Join(inspect.TopSortNames(), ", "))
	if err := c.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(inspect.TopSortNames(), cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag is there
	}
	return c
}

// onceTop looks twice and prints what it saw.
func onceTop(c *cobra.Command, dev *verbs.Device, top *inspect.Top, asJSON bool) error {
	err := top.Look(dev, time.Now())
	if err != nil {
		return err
	}
	select {
	case <-c.Context().Done():
		return c.Context().Err()
	case <-time.After(top.Every):
	}
	look := func(src inspect.Source, now time.Time) (inspect.View, error) {
		err := top.Look(src, now)
		return top.View(), err
	}
	return inspect.Output{W: c.OutOrStdout(), JSON: asJSON}.Show(c.Context(), dev, look)
}

// liveTop shows the view on the terminal, which is given back as it was.
func liveTop(ctx context.Context, dev *verbs.Device, top *inspect.Top, size func() (int, int)) error {
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, unix.SIGWINCH)
	defer signal.Stop(resized)
	again := make(chan struct{})
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-resized:
			}
			select {
			case <-ctx.Done():
				return
			case again <- struct{}{}:
			}
		}
	}()
	term := inspect.Terminal{W: os.Stdout, Size: size, Resized: again}
	if isTerminal(os.Stdin) {
		restore, err := byKeys(int(os.Stdin.Fd()))
		if err != nil {
			return err
		}
		defer restore()
		term.Keys = typed(ctx)
	}
	return top.Run(ctx, dev, term)
}

// byKeys makes a terminal give each key at once and show none. Ctrl-C stays a
// signal; what would stop or kill the program with the terminal as it is then, does
// nothing.
func byKeys(fd int) (restore func(), err error) {
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	raw := *old
	raw.Lflag &^= unix.ICANON | unix.ECHO
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	raw.Cc[unix.VSUSP], raw.Cc[unix.VQUIT] = 0, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, old) }, nil // at the end; a terminal that is gone needs nothing
}

// typed gives what is typed, until the terminal ends. Its reader stays until the
// program does.
func typed(ctx context.Context) <-chan byte {
	keys := make(chan byte)
	go func() {
		defer close(keys)
		var b [1]byte
		for {
			n, err := os.Stdin.Read(b[:])
			if err != nil && !errors.Is(err, unix.EINTR) {
				return
			}
			if n == 0 {
				continue
			}
			select {
			case keys <- b[0]:
			case <-ctx.Done():
				return
			}
		}
	}()
	return keys
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/internal/tap"
	"github.com/softroce/softroce/internal/trace"
	"github.com/softroce/softroce/pkg/verbs"
)

// traceFlags are the options of trace.
type traceFlags struct {
	socket, html, peer string
	qps                []string
	live, text, all    bool
	seconds            seconds
	choice             tap.Options
}

func newTraceCmd() *cobra.Command {
	var f traceFlags
	c := &cobra.Command{
		Use:   "trace [FILE | --live]",
		Short: "Say what happened on each connection of a capture: losses, waits, refusals, as text or a page",
		Long: `trace reads a pcap or pcapng, of softroce or of any other RoCEv2 adapter, or captures from a running adapter (--live),
and tells the story of each connection: requests and their answers, losses, packets sent again, RNR waits,
timeouts, refusals, stalls, round-trip times; first in words, then as a ladder. It finds by itself which two queue
pairs belong together, also when the capture begins in the middle. FILE may be "-".

--html writes one page that needs no network: the same words, a plot of PSNs over time that shows stalls at a
glance, and a ladder whose packets show all their headers at a click. It holds what the capture holds of headers and keys,
but no payload.

The exit status is 1 when a request was refused or has no answer, 2 when the file cannot be read.`,
		Example: `  softroce trace now.pcapng
  softroce trace --live --seconds 5 --html now.html
  tcpdump -s 128 -w - udp port 4791 | softroce trace --qp 0x11 -`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var err error
			if f.choice, err = parseChoice(f.qps, f.peer); err == nil && f.live == (len(args) == 1) {
				err = errors.New("give a file, or --live")
			}
			if err != nil {
				return &exitError{exitUsage, fmt.Errorf("trace: %w", err)}
			}
			t, err := f.read(c, args)
			if err != nil {
				return err
			}
			return f.write(c.Context(), t, c.OutOrStdout())
		},
	}
	fl := c.Flags()
	fl.BoolVar(&f.live, "live", false, "capture from the running adapter")
	secondsVar(c, &f.seconds, "seconds", "", 5, "with --live: for so long, or until SIGINT; 0: until then")
	fl.BoolVar(&f.text, "text", false, "print the text; the default without --html")
	fl.BoolVar(&f.all, "all", false, "all packets in the text's ladders, not only the first and those that matter")
	fl.StringVar(&f.html, "html", "", "write a page to this file")
	addChoice(c, &f.qps, &f.peer)
	addSocketFlag(c, &f.socket)
	return c
}

// read gets the packets.
func (f *traceFlags) read(c *cobra.Command, args []string) (*trace.Trace, error) {
	in := c.InOrStdin()
	switch {
	case f.live:
		tape, err := f.record(c.Context(), c.ErrOrStderr())
		if err != nil {
			return nil, fmt.Errorf("trace: %w", err)
		}
		in = tape
	default:
		file, err := openInput(c.Context(), args[0], in)
		if err != nil {
			return nil, &exitError{exitUsage, fmt.Errorf("trace: %w", err)}
		}
		defer file.Close()
		in = file
	}
	t, err := trace.Read(in, trace.Options{QPNs: f.choice.QPNs, Peer: f.choice.Peer})
	if err != nil {
		return nil, &exitError{exitUsage, fmt.Errorf("trace: %w", err)}
	}
	return t, nil
}

// traceRoom is how much of a running adapter is kept, in bytes; our own choice.
const traceRoom = 512 << 20

// record captures for a while.
func (f *traceFlags) record(ctx context.Context, stderr io.Writer) (io.Reader, error) {
	dev, err := verbs.Open(&verbs.Options{Socket: f.socket})
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	var tape bytes.Buffer
	n, err := record(ctx, dev, f.choice, f.seconds, func(r io.Reader) (bool, error) {
		return capture.Split{}.Copy(io.LimitReader(r, traceRoom), func(int) (io.WriteCloser, error) { return keepOpen{&tape}, nil })
	})
	if errors.Is(err, capture.ErrFormat) && tape.Len() > traceRoom/2 {
		fmt.Fprintln(stderr, "trace: only the first 512 MiB are looked at")
		err = nil
	}
	if err == nil && n.Written == 0 {
		err = errors.New("the adapter sent and received nothing meanwhile that this user may see")
	}
	return &tape, err
}

// write writes what was asked for.
func (f *traceFlags) write(ctx context.Context, t *trace.Trace, stdout io.Writer) error {
	if f.html != "" {
		if err := f.page(ctx, t); err != nil {
			return fmt.Errorf("trace: %w", err)
		}
	}
	if f.text || f.html == "" {
		o := trace.TextOptions{All: f.all}
		if size := terminalSize(stdout); size != nil {
			o.Width, _ = size()
			o.Colour = os.Getenv("NO_COLOR") == ""
		}
		if err := t.Text(stdout, o); err != nil {
			return fmt.Errorf("trace: %w", err)
		}
	}
	for _, c := range t.Conns {
		for _, found := range c.Findings() {
			if found.Weight == trace.Fail {
				return &exitError{exitFailed, nil}
			}
		}
	}
	return nil
}

// page writes the page. It holds keys: a new file is its owner's alone.
func (f *traceFlags) page(ctx context.Context, t *trace.Trace) error {
	file, err := openFile(ctx, f.html, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	return errors.Join(t.HTML(file), file.Close())
}

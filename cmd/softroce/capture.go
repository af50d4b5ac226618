package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/internal/inspect"
	"github.com/softroce/softroce/internal/tap"
	"github.com/softroce/softroce/pkg/verbs"
)

// captureFlags are the options of capture.
type captureFlags struct {
	socket, write, peer, size string
	qps                       []string
	ring                      int
	seconds                   seconds
	count                     uint64
	options                   tap.Options
	bytes                     int64
}

func newCaptureCmd() *cobra.Command {
	var f captureFlags
	c := &cobra.Command{
		Use:   "capture [-w FILE]",
		Short: "Write the packets of a running adapter to a pcapng, each with a comment",
		Long: `capture asks a running daemon for its packets and writes them to a pcapng that tcpdump, Wireshark, softroce decode
and softroce trace read. Each packet has a comment: what became of it (accepted, duplicate, out of sequence, dropped
and why), the adapter's queue pair, and the work request that it belongs to, where it is known.

Root and the daemon's own user get the packets of every program, others those of their own user's queue pairs. The
adapter never waits for the file: packets that a slow reader has no room for are left out, counted, and noted in the
comment of the next one. A full disk ends the capture, not the transfers. Packets hold payloads and keys.

It ends at SIGINT or SIGTERM, after --seconds, or after --count packets; what waits then has five seconds to be written.`,
		Example: `  softroce capture -w now.pcapng --seconds 5
  softroce capture --qp 0x11 -w - | softroce decode -
  softroce capture -w day.pcapng --ring 10 --size 100M     # day.1.pcapng and so on, the last ten`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(c.OutOrStdout()); err != nil {
				return &exitError{exitUsage, fmt.Errorf("capture: %w", err)}
			}
			return f.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	fl := c.Flags()
	fl.StringVarP(&f.write, "write", "w", "-", `file to write, "-" for the standard output`)
	fl.IntVar(&f.ring, "ring", 0, "keep so many files of --size each, the oldest goes first")
	fl.StringVar(&f.size, "size", "", "bytes of a file of the ring, as 100M")
	addChoice(c, &f.qps, &f.peer)
	secondsVar(c, &f.seconds, "seconds", "", 0, "end after so many seconds")
	fl.Uint64Var(&f.count, "count", 0, "end after so many packets")
	addSocketFlag(c, &f.socket)
	return c
}

// addChoice adds the options that choose packets.
func addChoice(c *cobra.Command, qps *[]string, peer *string) {
	c.Flags().StringSliceVar(qps, "qp", nil, "only these queue pairs, by number: decimal, or hexadecimal after 0x")
	c.Flags().StringVar(peer, "peer", "", "only packets from and to this address")
}

// parseChoice reads them.
func parseChoice(qps []string, peer string) (o tap.Options, err error) {
	for _, s := range qps {
		n, err := strconv.ParseUint(s, 0, 24)
		if err != nil {
			return o, fmt.Errorf("--qp %q is no queue pair number: want 0 to 16777215, or 0x0 to 0xffffff", s)
		}
		o.QPNs = append(o.QPNs, uint32(n))
	}
	if peer != "" {
		if o.Peer, err = netip.ParseAddr(peer); err != nil {
			return o, fmt.Errorf("--peer %q is not an IP address: %w", peer, err)
		}
	}
	return o, nil
}

func (f *captureFlags) check(stdout io.Writer) (err error) {
	if f.options, err = parseChoice(f.qps, f.peer); err != nil {
		return err
	}
	if f.size != "" {
		if f.bytes, err = parseBytes(f.size); err != nil {
			return fmt.Errorf("--size: %w", err)
		}
	}
	switch {
	case f.ring < 0:
		return errors.New("--ring is not negative")
	case (f.ring > 0) != (f.bytes > 0):
		return errors.New("--ring and --size go together")
	case f.ring > 0 && f.write == "-":
		return errors.New("a ring needs a file: -w FILE")
	case f.write == "-" && terminalSize(stdout) != nil:
		return errors.New("the standard output is a terminal: give a file with -w FILE, or a pipe")
	}
	return nil
}

// parseBytes reads a size as 500000, 100K, 20M or 1G.
func parseBytes(s string) (int64, error) {
	digits := strings.TrimRight(s, "kKmMgG")
	shift, known := map[string]int{"": 0, "K": 10, "M": 20, "G": 30}[strings.ToUpper(s[len(digits):])]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || !known || n <= 0 || n > 1<<32 {
		return 0, fmt.Errorf("%q is no number of bytes, as 500000, 100K, 20M or 1G", s)
	}
	return n << shift, nil
}

func (f *captureFlags) run(ctx context.Context, stdout, stderr io.Writer) error {
	dev, err := verbs.Open(&verbs.Options{Socket: f.socket})
	if err != nil {
		return err
	}
	defer dev.Close()
	files := captureFiles{f: f, stdout: stdout}
	var written uint64 // the adapter may have sent more than was taken
	split := capture.Split{Size: f.bytes, Count: f.count, OnPacket: func() { written++ }}
	n, err := record(ctx, dev, f.options, f.seconds, func(r io.Reader) (bool, error) {
		return split.Copy(r, func(n int) (io.WriteCloser, error) { return files.open(ctx, n) })
	})
	fmt.Fprint(stderr, inspect.Count(written, "packet"), " written")
	if n.Lost > 0 {
		fmt.Fprintf(stderr, ", %d lost because this end was too slow", n.Lost)
	}
	fmt.Fprintln(stderr)
	if err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	return nil
}

// captureGrace is how long what a capture has at its end may take to be written; our
// own choice.
const captureGrace = 5 * time.Second

// record captures until ctx ends, the seconds are over (0: never) or take has
// enough or fails.
func record(ctx context.Context, dev *verbs.Device, o tap.Options, length seconds, take func(r io.Reader) (enough bool, err error)) (n tap.Stats, err error) {
	if length > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, length.duration())
		defer cancel()
	}
	c, err := tap.Start(dev, o)
	if err != nil {
		return n, err
	}
	defer c.Close()
	var once sync.Once
	var stopErr error
	stop := func() { once.Do(func() { n, stopErr = c.Stop() }) }
	release := context.AfterFunc(ctx, stop)
	defer release()
	taken := make(chan error, 1)
	go func() {
		_, err := take(c)
		taken <- err
	}()
	select {
	case err = <-taken:
	case <-ctx.Done():
		select {
		case err = <-taken:
		case <-time.After(captureGrace):
			err = errors.New("its reader does not take what is left")
		}
	}
	ended := ctx.Err() != nil
	stop() // also waits for the one that runs
	if err == nil && stopErr != nil && !ended {
		err = stopErr // the daemon is gone
	}
	return n, err
}

// captureFiles opens the files of a capture.
type captureFiles struct {
	f      *captureFlags
	stdout io.Writer
}

// open opens file n and removes the one that the ring has no room for. Captures
// hold payloads and keys: a new file is its owner's alone.
func (s captureFiles) open(ctx context.Context, n int) (io.WriteCloser, error) {
	if s.f.write == "-" {
		return keepOpen{s.stdout}, nil
	}
	if n > s.f.ring && s.f.ring > 0 {
		_ = os.Remove(s.name(n - s.f.ring)) // somebody may have moved it
	}
	return openFile(ctx, s.name(n), os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
}

func (s captureFiles) name(n int) string {
	if s.f.ring == 0 {
		return s.f.write
	}
	ext := filepath.Ext(s.f.write)
	return fmt.Sprintf("%s.%d%s", strings.TrimSuffix(s.f.write, ext), n, ext)
}

// keepOpen is a writer that others close.
type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }

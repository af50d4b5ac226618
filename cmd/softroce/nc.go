package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/nc"
)

// ncFlags are the options as given.
type ncFlags struct {
	socket  string
	device  string
	listen  bool
	in, out string
	local   string
	seconds seconds
	verbose bool

	host string
	port uint16
}

func newNCCmd() *cobra.Command {
	f := &ncFlags{}
	c := &cobra.Command{
		Use:   "nc {-l [ADDR] PORT | HOST PORT} [flags]",
		Short: "A pipe between two hosts over RDMA",
		Long: `nc passes standard input to the other host's standard output and the other way round, over a byte stream of package
pkg/rdmanet. With -l it waits for one client, at all addresses of the adapter or at ADDR; without it is the client.
The port is one of the connection manager's, and has nothing to do with TCP's. Both ends must be softroce nc, or
programs with rdmanet.

The end of the input is passed on, and nc ends when both directions have ended; an input that is a terminal need not
be ended when the peer's has. Its status is 0 when all went, and 1 when something failed, when it was stopped
(ctrl-C), or when the peer failed or was stopped: what the peer has is then not taken for the whole. That the peer
fails is not seen any more once its own input has ended and its adapter has all data.

A file or a pipe at either end has a progress display on the terminal. Data is not encrypted.`,
		Example: `  softroce nc -l 7000 > copy               # on one host
  softroce nc 192.0.2.1 7000 < file        # on the other

  softroce nc -l 7000 --out copy.tar --in /dev/null
  tar -c dir | softroce nc 192.0.2.1 7000`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.address(args); err != nil {
				return &exitError{exitUsage, err}
			}
			return runNC(c.Context(), f, c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	fl := c.Flags()
	fl.BoolVarP(&f.listen, "listen", "l", false, "be the server, for one client")
	fl.StringVar(&f.in, "in", "", "file to send (default: standard input)")
	fl.StringVar(&f.out, "out", "", "file to write what comes to (default: standard output)")
	fl.StringVarP(&f.local, "source", "s", "", "client: the own address (default: by the routing table)")
	secondsVar(c, &f.seconds, "wait", "w", 0, "client: seconds to connect in (default: over a minute)")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "say who connects and how much went, to standard error")
	fl.StringVarP(&f.device, "ib-dev", "d", "", "name that the adapter must have (default: any)")
	addSocketFlag(c, &f.socket)
	return c
}

// address takes the arguments.
func (f *ncFlags) address(args []string) error {
	switch {
	case len(args) == 2:
		f.host = args[0]
	case !f.listen:
		return errors.New("nc: say host and port, or -l and a port")
	}
	service := args[len(args)-1]
	port, err := strconv.ParseUint(service, 10, 16)
	switch {
	case err != nil || port == 0:
		return fmt.Errorf("nc: %q is not a port: 1 to 65535", service)
	case f.listen && (f.local != "" || f.seconds != 0):
		return errors.New("nc: -s and -w are the client's")
	}
	f.port = uint16(port)
	return nil
}

// open opens the files that take the place of the standard ones.
func (f *ncFlags) open(in io.Reader, out io.Writer) (io.Reader, io.Writer, func() error, error) {
	var files []*os.File
	closeAll := func() (err error) {
		for _, file := range files {
			err = errors.Join(err, file.Close())
		}
		return err
	}
	if f.in != "" {
		file, err := os.Open(f.in)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("--in: %w", err)
		}
		in, files = file, append(files, file)
	}
	if f.out != "" {
		file, err := os.Create(f.out)
		if err != nil {
			_ = closeAll() // that error is the one to report
			return nil, nil, nil, fmt.Errorf("--out: %w", err)
		}
		out, files = file, append(files, file)
	}
	return in, out, closeAll, nil
}

func runNC(ctx context.Context, f *ncFlags, stdin io.Reader, stdout, errs io.Writer) (err error) {
	cfg := nc.Config{Wait: f.seconds.duration()}
	var host netip.Addr
	if f.listen {
		if host, err = lookUp(ctx, f.host); err != nil {
			return err
		}
	}
	if cfg.Local, err = lookUp(ctx, f.local); err != nil {
		return &exitError{exitUsage, fmt.Errorf("-s: %w", err)}
	}
	dev, err := openDevice(f.socket, f.device)
	if err != nil {
		return err
	}
	defer dev.Close()
	in, out, closeFiles, err := f.open(stdin, stdout)
	if err != nil {
		return err
	}
	defer func() {
		if e := closeFiles(); err == nil {
			err = e // what is written late can fail late
		}
	}()
	t := newNCText(f, in, out, errs)
	cfg.In, cfg.Out, cfg.Person = in, out, isTTY(in)
	cfg.Listening, cfg.Connected, cfg.Progress = t.listening, t.connected, t.progress
	var rep nc.Report
	if f.listen {
		rep, err = nc.Server(ctx, dev, netip.AddrPortFrom(host, f.port), cfg)
	} else {
		rep, err = nc.Client(ctx, dev, net.JoinHostPort(f.host, strconv.Itoa(int(f.port))), cfg)
	}
	t.end(rep)
	if err != nil && errors.Is(err, ctx.Err()) {
		return errors.New("nc: stopped before the end")
	}
	if rep.Elapsed > 0 { // it was connected
		err = hintedConn(err, f.socket)
	}
	return err
}

// isTTY says whether a person is at the other end of a stream.
func isTTY(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && isTerminal(f)
}

// ncText is what nc says of its work.
type ncText struct {
	f      *ncFlags
	errs   io.Writer
	p      *progress
	total  int64 // bytes of the file that is sent; 0: not known
	moves  bool  // a file or a pipe is at one end
	screen bool  // what comes goes to a terminal

	last nc.Report // of the last line of progress
	rate float64   // bytes a second, of late
}

func newNCText(f *ncFlags, in io.Reader, out io.Writer, errs io.Writer) *ncText {
	t := &ncText{f: f, errs: errs, p: newProgress(errs), screen: isTTY(out)}
	for _, stream := range []any{in, out} {
		file, ok := stream.(*os.File)
		if !ok {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(int(file.Fd()), &st) != nil {
			continue
		}
		kind := st.Mode & unix.S_IFMT
		t.moves = t.moves || kind == unix.S_IFREG || kind == unix.S_IFIFO
		if stream == any(in) && kind == unix.S_IFREG {
			at, _ := unix.Seek(int(file.Fd()), 0, unix.SEEK_CUR) // 0 where it is not known
			t.total = st.Size - at
		}
	}
	return t
}

func (t *ncText) say(format string, args ...any) {
	if t.f.verbose {
		t.p.clear()
		fmt.Fprintf(t.errs, "softroce: "+format+"\n", args...)
	}
}

func (t *ncText) listening(a net.Addr)           { t.say("listening on %v", a) }
func (t *ncText) connected(local, peer net.Addr) { t.say("connected: %v to %v", local, peer) }

func (t *ncText) progress(r nc.Report) {
	if !t.moves || t.screen && r.Received > 0 {
		t.p.clear() // the screen is for what comes
		return
	}
	if dt := (r.Elapsed - t.last.Elapsed).Seconds(); dt > 0 {
		now := float64(r.Sent+r.Received-t.last.Sent-t.last.Received) / dt
		if t.last.Elapsed == 0 {
			t.rate = now
		}
		t.rate += (now - t.rate) / 4
	}
	t.last = r
	t.p.show(t.line(r))
}

func (t *ncText) line(r nc.Report) string {
	text := ""
	if r.Sent > 0 || r.Received == 0 {
		text = mib(r.Sent) + " sent"
		if t.total > 0 {
			text = fmt.Sprintf("%s of %s sent, %d %%", mib(r.Sent), mib(t.total), min(100*r.Sent/t.total, 100))
		}
	}
	if r.Received > 0 {
		if text != "" {
			text += ", "
		}
		text += mib(r.Received) + " received"
	}
	return fmt.Sprintf("%s, %.1f MiB/s", text, t.rate/(1<<20))
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// end says how much went.
func (t *ncText) end(r nc.Report) {
	t.p.clear()
	if s := r.Elapsed.Seconds(); s > 0 {
		t.say("%d bytes sent, %d received in %.3f seconds, %.1f MiB/s", r.Sent, r.Received, s, float64(r.Sent+r.Received)/s/(1<<20))
	}
}

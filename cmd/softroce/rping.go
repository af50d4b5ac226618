package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/softroce/softroce/internal/rping"
)

// rpingFlags are the options as given.
type rpingFlags struct {
	socket         string
	device         string
	server, client bool
	addr, local    string
	port           uint16
	verbose, debug bool
	json           bool
	cfg            rping.Config
}

func newRpingCmd() *cobra.Command {
	f := &rpingFlags{}
	c := &cobra.Command{
		Use:   "rping {-s | -c -a HOST} [flags]",
		Short: "Ping by the connection manager and RDMA, with softroce or rdma-core's rping",
		Long: `rping connects to an address by the RDMA connection manager and passes a buffer to and fro: the server reads it by
RDMA READ and writes it back by RDMA WRITE. It has rdma-core's rping's options and way of working, so either end
can be that program, on any RoCEv2 adapter. Both ends need the same -S.

The server (-s) serves one client and ends when it hangs up; with -P it serves one after the other. The client
(-c) pings until it is stopped, or as often as -C says. The port is one of the connection manager's, and has
nothing to do with TCP's.`,
		Example: `  softroce rping -s                                  # server
  softroce rping -c -a 192.0.2.1 -v -C 10            # client
  softroce rping -c -a 192.0.2.1 -V -S 4096 -C 1000  # client, which checks the data`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return runRping(c.Context(), f, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	fl := c.Flags()
	fl.BoolVarP(&f.server, "server", "s", false, "be the server")
	fl.BoolVarP(&f.client, "client", "c", false, "be the client")
	c.MarkFlagsMutuallyExclusive("server", "client")
	c.MarkFlagsOneRequired("server", "client")
	fl.StringVarP(&f.addr, "addr", "a", "", "client: the server's name or address; server: where to listen (default: everywhere)")
	fl.StringVarP(&f.local, "source", "I", "", "client: the own address (default: by the routing table)")
	fl.Uint16VarP(&f.port, "port", "p", rping.DefaultPort, "port of the connection manager")
	fl.IntVarP(&f.cfg.Size, "size", "S", rping.DefaultSize, "bytes of a ping, 23 to 65535")
	fl.IntVarP(&f.cfg.Count, "count", "C", 0, "number of pings (default: until the client is stopped)")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "print the data of each ping")
	fl.BoolVarP(&f.cfg.Check, "validate", "V", false, "client: check the data")
	fl.BoolVarP(&f.debug, "debug", "d", false, "print each step, to standard error")
	fl.BoolVarP(&f.cfg.Persistent, "persistent", "P", false, "server: serve clients until it is stopped, several at a time")
	fl.StringVar(&f.device, "ib-dev", "", "name that the adapter must have (default: any)")
	fl.BoolVar(&f.json, "json", false, "print the outcome as JSON, and nothing else")
	addSocketFlag(c, &f.socket)
	return c
}

// config checks the options and turns them into a configuration.
func (f *rpingFlags) config(ctx context.Context) (rping.Config, error) {
	cfg := f.cfg
	switch {
	case f.client && f.addr == "":
		return cfg, errors.New("-c: say where the server is, with -a")
	case f.client && cfg.Persistent:
		return cfg, errors.New("-P is the server's")
	case f.server && (cfg.Check || f.local != ""):
		return cfg, errors.New("-V and -I are the client's")
	case f.port == 0:
		return cfg, errors.New("-p 0 is no port")
	case cfg.Size < rping.MinSize:
		return cfg, fmt.Errorf("-S %d is less than %d", cfg.Size, rping.MinSize)
	}
	addr, err := lookUp(ctx, f.addr)
	if err != nil {
		return cfg, fmt.Errorf("-a: %w", err)
	}
	if cfg.Local, err = lookUp(ctx, f.local); err != nil {
		return cfg, fmt.Errorf("-I: %w", err)
	}
	cfg.Addr = netip.AddrPortFrom(addr, f.port)
	return cfg, cfg.Validate()
}

// lookUp is the first address of a host; of none it is not valid.
func lookUp(ctx context.Context, host string) (netip.Addr, error) {
	if host == "" {
		return netip.Addr{}, nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, err
	}
	return addrs[0].Unmap(), nil
}

func runRping(ctx context.Context, f *rpingFlags, out, errs io.Writer) error {
	cfg, err := f.config(ctx)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	dev, err := openDevice(f.socket, f.device)
	if err != nil {
		return err
	}
	defer dev.Close()
	t := &rpingText{f: f, out: out, errs: errs, p: newProgress(errs)}
	t.listen(&cfg)
	run := rping.Client
	if f.server {
		run = rping.Server
	}
	rep, err := run(ctx, dev, cfg)
	t.p.clear()
	stopped := err != nil && errors.Is(err, ctx.Err()) // how a run without end ends
	if stopped && (cfg.Persistent || f.client && cfg.Count == 0) {
		err = nil
	}
	if e := t.report(rep); err == nil {
		err = e
	}
	return hinted(err, f.socket)
}

// rpingText prints what a run tells; several clients may tell at a time.
type rpingText struct {
	f         *rpingFlags
	out, errs io.Writer
	p         *progress

	mu    sync.Mutex
	pings int
	shown time.Time
}

// listen has the configuration tell what the options ask for.
func (t *rpingText) listen(cfg *rping.Config) {
	who := "ping data: "
	if t.f.server {
		who = "server ping data: "
	}
	cfg.Ping = func(data []byte) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.pings++
		switch {
		case t.f.verbose && !t.f.json:
			fmt.Fprintf(t.out, "%s%s\n", who, data)
		case time.Since(t.shown) > 200*time.Millisecond:
			t.shown = time.Now()
			t.p.show(fmt.Sprintf("%d pings", t.pings))
		}
	}
	if t.f.debug {
		cfg.Ready = func(a netip.AddrPort) { t.debug("listening on %v", a) }
		cfg.Connected = func(local, peer netip.AddrPort) { t.debug("connected: %v to %v", local, peer) }
		cfg.Debug = func(step string) { t.debug("%s", step) }
	}
	if cfg.Persistent {
		cfg.Served = func(rep *rping.Report, err error) {
			if e := t.report(rep); err == nil {
				err = e
			}
			if err != nil {
				t.debug("%v", err)
			}
		}
	}
}

func (t *rpingText) debug(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.p.clear()
	fmt.Fprintf(t.errs, "softroce: "+format+"\n", args...)
}

// rpingJSON is the report for machines.
type rpingJSON struct {
	Local   netip.AddrPort `json:"local"`
	Peer    netip.AddrPort `json:"peer"`
	Pings   int            `json:"pings"`
	Size    int            `json:"size"`
	Elapsed time.Duration  `json:"elapsed_ns"`
	Checked bool           `json:"checked"`
}

// report prints the outcome of a connection, if there was one.
func (t *rpingText) report(r *rping.Report) error {
	if r == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.p.clear()
	if t.f.json {
		return json.NewEncoder(t.out).Encode(rpingJSON{r.Local, r.Peer, r.Pings, r.Size, r.Elapsed, r.Checked})
	}
	checked := ""
	if r.Checked {
		checked = ", checked"
	}
	_, err := fmt.Fprintf(t.out, "%d pings of %d bytes with %v in %.3f seconds%s\n", r.Pings, r.Size, r.Peer, r.Elapsed.Seconds(), checked)
	return err
}

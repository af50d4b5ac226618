package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/softroce/softroce/internal/perf"
	"github.com/softroce/softroce/pkg/bth"
)

// perfFlags are the options as given.
type perfFlags struct {
	socket  string
	device  string
	ibPort  int
	bw, lat bool
	size    int
	all     bool
	mtu     int
	seconds seconds
	atomic  string
	json    bool
	cfg     perf.Config
}

func newPerfCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "perf",
		Short: "Measure bandwidth and latency of the verbs, as perftest does",
		Long: `perf measures the bandwidth (--bw) or the latency (--lat) of a verb between two daemons, with the options,
defaults and table of perftest's ib_write_bw, ib_read_lat and so on. Without HOST it is the server, which
serves one client; with HOST it is the client, whose options say what is measured.

It talks to itself, not to perftest: both ends must be softroce perf. Before the first packet they speak over TCP;
with -R the connection manager connects them, and all goes over RDMA. It then chooses GID and path MTU.

A bandwidth's peak is that of the best tenth of the run; MB is 2^20 bytes. Latency of write and send is half of
the way there and back, of read and atomic the whole. Data is not checked unless --check is given.`,
		Example: `  softroce perf write --bw                        # server
  softroce perf write --bw -a -D 1 192.0.2.1      # client, all sizes, a second each`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return &exitError{exitUsage, errors.New("perf: say what to measure: write, read, send or atomic (see softroce perf --help)")}
		},
	}
	for _, op := range []struct {
		op   perf.Op
		what string
	}{
		{perf.Write, "RDMA WRITE"},
		{perf.Read, "RDMA READ"},
		{perf.Send, "SEND into posted receives"},
		{perf.Atomic, "fetch-and-add or compare-and-swap of 8 bytes"},
	} {
		c.AddCommand(newPerfOpCmd(op.op, op.what))
	}
	return c
}

func newPerfOpCmd(op perf.Op, what string) *cobra.Command {
	f := &perfFlags{cfg: perf.Config{Params: perf.Params{Op: op}}}
	c := &cobra.Command{
		Use:   string(op) + " {--bw | --lat} [flags] [HOST]",
		Short: "Measure " + what,
		Long: "Measure " + what + `. Without HOST this is the server: start it with the same of --bw and --lat; the rest is
the client's to say. It talks to itself, not to perftest.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				f.cfg.Host = args[0]
			}
			return runPerf(c.Context(), f, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	fl := c.Flags()
	fl.BoolVar(&f.bw, "bw", false, "measure bandwidth")
	fl.BoolVar(&f.lat, "lat", false, "measure latency")
	c.MarkFlagsMutuallyExclusive("bw", "lat")
	c.MarkFlagsOneRequired("bw", "lat")
	if op != perf.Atomic {
		fl.IntVarP(&f.size, "size", "s", 0, "bytes of a message (default 65536; latency 2)")
		fl.BoolVarP(&f.all, "all", "a", false, "all sizes, the powers of two from 2 to 8388608")
		c.MarkFlagsMutuallyExclusive("size", "all")
	} else {
		fl.StringVarP(&f.atomic, "atomic_type", "A", "FETCH_AND_ADD", "FETCH_AND_ADD or CMP_AND_SWAP")
	}
	fl.IntVarP(&f.cfg.Iters, "iters", "n", 0, "operations of each queue pair and size (default 1000; write --bw 5000)")
	secondsVar(c, &f.seconds, "duration", "D", 0, "measure each size for so many seconds instead")
	c.MarkFlagsMutuallyExclusive("iters", "duration")
	fl.IntVarP(&f.cfg.TxDepth, "tx-depth", "t", perf.DefaultTxDepth, "requests in flight of a queue pair")
	fl.IntVarP(&f.cfg.QPs, "qp", "q", 1, "number of queue pairs; latency has 1")
	fl.IntVarP(&f.cfg.CQMod, "cq-mod", "Q", 0, "signal one of so many requests (default 100, at most half of --tx-depth)")
	fl.IntVarP(&f.mtu, "mtu", "m", 0, "path MTU: 256 to 4096 (default: the port's active MTU)")
	if op == perf.Send {
		fl.IntVarP(&f.cfg.RxDepth, "rx-depth", "r", perf.DefaultRxDepth, "receives posted of a queue pair")
	}
	if op == perf.Send || op == perf.Write {
		fl.IntVarP(&f.cfg.Inline, "inline", "I", 0, "largest message to send inline; negative: none (default: none; latency as much as perftest)")
	} else {
		fl.IntVarP(&f.cfg.RDAtomic, "outs", "o", 16, "READs and atomics of a queue pair on the wire at a time")
	}
	events := "sleep on completion events instead of polling (this side)"
	if op == perf.Write {
		events += "; latency is then of WRITE with immediate data, and both sides need it"
	}
	fl.BoolVarP(&f.cfg.Events, "events", "e", false, events)
	fl.IntVarP(&f.cfg.Port, "port", "p", perf.DefaultPort, "TCP port of the exchange; with -R one of the connection manager's")
	fl.BoolVarP(&f.cfg.CM, "rdma_cm", "R", false, "connect by the connection manager, without TCP; both sides need it")
	fl.StringVarP(&f.device, "ib-dev", "d", "", "name that the adapter must have (default: any)")
	fl.IntVarP(&f.ibPort, "ib-port", "i", 1, "port of the adapter, which has one")
	fl.Uint8VarP(&f.cfg.GIDIndex, "gid-index", "x", 0, "index of the local address in the GID table")
	fl.Uint8Var(&f.cfg.TrafficClass, "tclass", 0, "traffic class of this side's packets")
	fl.BoolVar(&f.cfg.Check, "check", false, "compare the data that arrives with what was sent")
	fl.BoolVar(&f.json, "json", false, "print JSON")
	addSocketFlag(c, &f.socket)
	return c
}

// config checks the options and turns them into a configuration.
func (f *perfFlags) config() (perf.Config, error) {
	cfg := f.cfg
	cfg.Latency = f.lat
	cfg.Imm = f.cfg.Events && f.lat && cfg.Op == perf.Write
	switch {
	case f.ibPort != 1:
		return cfg, fmt.Errorf("-i %d: the adapter has port 1 only", f.ibPort)
	case f.size < 0:
		return cfg, fmt.Errorf("-s %d is negative", f.size)
	case f.all:
		cfg.Sizes = perf.AllSizes()
	case f.size > 0:
		cfg.Sizes = []int{f.size}
	}
	cfg.Duration = f.seconds.duration()
	if f.mtu != 0 {
		var ok bool
		if cfg.MTU, ok = bth.MTUFromBytes(f.mtu); !ok {
			return cfg, fmt.Errorf("-m %d is not a path MTU: 256, 512, 1024, 2048 or 4096", f.mtu)
		}
	}
	switch f.atomic {
	case "", "FETCH_AND_ADD":
	case "CMP_AND_SWAP":
		cfg.CompareSwap = true
	default:
		return cfg, fmt.Errorf("-A %q: want FETCH_AND_ADD or CMP_AND_SWAP", f.atomic)
	}
	return cfg, nil
}

func runPerf(ctx context.Context, f *perfFlags, out, errs io.Writer) error {
	cfg, err := f.config()
	if err != nil {
		return &exitError{exitUsage, err}
	}
	dev, err := openDevice(f.socket, f.device)
	if err != nil {
		return err
	}
	defer dev.Close()
	p := newProgress(errs)
	if !f.json {
		cfg.Started = func(r *perf.Report) { perf.PrintHeader(out, r) }
		cfg.Row = func(r *perf.Row) {
			p.clear()
			perf.PrintRow(out, r)
		}
	}
	cfg.Progress = func(g perf.Progress) { p.show(fmt.Sprintf("%d bytes: %.0f %%", g.Size, 100*g.Part)) }
	rep, err := perf.Run(ctx, dev, cfg)
	p.clear()
	var param *perf.ParamError
	switch {
	case errors.As(err, &param):
		return &exitError{exitUsage, err}
	case err != nil:
		return hinted(err, f.socket)
	}
	if f.json {
		return json.NewEncoder(out).Encode(rep)
	}
	perf.PrintFooter(out)
	return nil
}

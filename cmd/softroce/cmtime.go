package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/softroce/softroce/internal/cmtime"
)

// cmtimeFlags are the options as given.
type cmtimeFlags struct {
	socket, device string
	server, bind   string
	port           uint16
	timeout        int
	json           bool
	cfg            cmtime.Config
}

func newCmtimeCmd() *cobra.Command {
	f := &cmtimeFlags{}
	c := &cobra.Command{
		Use:   "cmtime [-s HOST] [flags]",
		Short: "Measure connecting and disconnecting, with softroce or rdma-core's cmtime",
		Long: `cmtime connects many times by the RDMA connection manager, disconnects, and prints how long each step took: of all
connections together, and of the slowest and the fastest one. Each step of all connections comes before the next
step, and no data is sent. It has rdma-core's cmtime's options, and either end can be that program.

With -s it is the client. Without it is the server, which prints nothing but where it listens, and serves until it
is stopped, or until as many connections have ended as -c says.`,
		Example: `  softroce cmtime                             # server
  softroce cmtime -s 192.0.2.1 -c 1000        # client`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.server != "" && !c.Flags().Changed("connections") {
				f.cfg.Conns = cmtime.DefaultConns
			}
			return runCmtime(c.Context(), f, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	fl := c.Flags()
	fl.StringVarP(&f.server, "server", "s", "", "be the client of this server, a name or an address")
	fl.StringVarP(&f.bind, "bind", "b", "", "own address (default: server, everywhere; client, by the routing table)")
	fl.IntVarP(&f.cfg.Conns, "connections", "c", 0, "number of connections (default: client 100, server until it is stopped)")
	fl.Uint16VarP(&f.port, "port", "p", cmtime.DefaultPort, "port of the connection manager")
	fl.IntVarP(&f.cfg.Retries, "retries", "r", cmtime.DefaultRetries, "how often to resolve an address again")
	fl.IntVarP(&f.timeout, "timeout", "t", int(cmtime.DefaultTimeout/time.Millisecond), "milliseconds that an address may take to resolve")
	fl.StringVarP(&f.device, "ib-dev", "d", "", "name that the adapter must have (default: any)")
	fl.BoolVar(&f.json, "json", false, "print JSON")
	addSocketFlag(c, &f.socket)
	return c
}

// config checks the options and turns them into a configuration.
func (f *cmtimeFlags) config(ctx context.Context) (cmtime.Config, error) {
	cfg := f.cfg
	switch {
	case f.port == 0:
		return cfg, errors.New("-p 0 is no port")
	case f.timeout < 1:
		return cfg, fmt.Errorf("-t %d is less than 1", f.timeout)
	case f.server != "" && cfg.Conns < 1:
		return cfg, fmt.Errorf("-c %d is less than 1", cfg.Conns)
	}
	own, err := lookUp(ctx, f.bind)
	if err != nil {
		return cfg, fmt.Errorf("-b: %w", err)
	}
	to := own
	if f.server != "" {
		cfg.Local = own
		if to, err = lookUp(ctx, f.server); err != nil {
			return cfg, fmt.Errorf("-s: %w", err)
		}
	}
	cfg.Addr = netip.AddrPortFrom(to, f.port)
	cfg.Timeout = time.Duration(f.timeout) * time.Millisecond
	return cfg, cfg.Validate()
}

func runCmtime(ctx context.Context, f *cmtimeFlags, out, errs io.Writer) error {
	cfg, err := f.config(ctx)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	dev, err := openDevice(f.socket, f.device)
	if err != nil {
		return err
	}
	defer dev.Close()
	if f.server == "" {
		cfg.Ready = func(a netip.AddrPort) { fmt.Fprintf(errs, "softroce: listening on %v\n", a) }
		_, err = cmtime.Server(ctx, dev, cfg)
		if cfg.Conns == 0 && ctx.Err() != nil {
			err = nil // how a server without end ends
		}
		return err
	}
	p, shown := newProgress(errs), time.Time{}
	cfg.Progress = func(step string, done, total int) {
		if time.Since(shown) > 200*time.Millisecond {
			shown = time.Now()
			p.show(fmt.Sprintf("%s: %d of %d", step, done, total))
		}
	}
	rep, err := cmtime.Client(ctx, dev, cfg)
	p.clear()
	if err != nil {
		return err
	}
	return printCmtime(out, rep, f.json)
}

// cmtimeJSON is the report for machines.
type cmtimeJSON struct {
	Addr        netip.AddrPort `json:"addr"`
	Connections int            `json:"connections"`
	Steps       []stepJSON     `json:"steps"`
}

type stepJSON struct {
	Name  string        `json:"name"`
	Total time.Duration `json:"total_ns"`
	Min   time.Duration `json:"min_ns"`
	Max   time.Duration `json:"max_ns"`
}

// printCmtime prints the table of rdma-core's program.
func printCmtime(w io.Writer, r *cmtime.Report, asJSON bool) error {
	if asJSON {
		j := cmtimeJSON{Addr: r.Addr, Connections: r.Conns}
		for _, s := range r.Steps {
			j.Steps = append(j.Steps, stepJSON(s))
		}
		return json.NewEncoder(w).Encode(j)
	}
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	fmt.Fprintf(w, "%-13s %11s %10s %10s %10s\n", "step", "total ms", "max ms", "min us", "us / conn")
	for _, s := range r.Steps {
		fmt.Fprintf(w, "%-13s %11.2f %10.2f %10.2f %10.2f\n",
			s.Name, us(s.Total)/1000, us(s.Max)/1000, us(s.Min), us(s.Total)/float64(r.Conns))
	}
	return nil
}

package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/softroce/softroce/internal/inspect"
)

func newStatCmd() *cobra.Command {
	var f inspectFlags
	var nonZero bool
	c := &cobra.Command{
		Use:   "stat [qp | COUNTER...] [flags]",
		Short: "Show the adapter's counters, or those of each queue pair",
		Long: `stat asks a running daemon and shows what rdma statistic shows of an adapter: every counter since the daemon
started, with what it counts; with names (or quoted patterns, as 'drop_*') those alone. The counters that kernel
rdma_rxe has, have its names.

"stat qp" shows the counters of each queue pair with the program that it belongs to: of every program for root and the
daemon's own user, for others of their own.

With --watch there is what a second brought beside each value. A terminal shows the latest state, without the counters
that are 0, cut to its size; otherwise every line has the time in front.`,
		Example: `  softroce stat
  softroce stat retransmits local_ack_timeout_err 'drop_*'
  softroce stat --watch
  softroce stat qp --pid 1234 --watch=5s --json`,
		ValidArgs: []string{"qp"},
		RunE: func(c *cobra.Command, args []string) error {
			filter, err := f.filter(c)
			if err != nil {
				return err
			}
			o := inspect.StatOptions{Names: args, NonZero: nonZero, Rates: f.watch > 0}
			look := inspect.Stat(o)
			switch {
			case slices.Contains(args, "qp"):
				if len(args) > 1 {
					return &exitError{exitUsage, fmt.Errorf("stat qp: it takes no names, and got %d%s", len(args)-1, strayWatch(args[1]))}
				}
				look = inspect.StatQPs(filter, o)
			case filter.OfQPs() || len(f.pids) > 0:
				return &exitError{exitUsage, errors.New("stat: --pid, --qpn, --state and --type are for queue pairs (stat qp)")}
			case f.onTerminal(c.OutOrStdout()):
				o.NonZero = true
				look = inspect.Stat(o)
			}
			err = f.show(c.Context(), c.OutOrStdout(), look)
			if errors.Is(err, inspect.ErrNoCounter) {
				return &exitError{exitUsage, fmt.Errorf("stat: %w%s", err, strayWatch(args[len(args)-1]))}
			}
			return err
		},
	}
	f.add(c)
	c.Flags().BoolVar(&nonZero, "nonzero", false, "leave out counters that are 0, and queue pairs that counted nothing")
	return c
}

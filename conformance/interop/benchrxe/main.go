// Command benchrxe compares softroce with kernel rdma_rxe inside the guest of the interoperability lab, in one interleaved
// run. conformance/interop/bench.sh boots the guest and starts it in the lab's namespace; it copies itself and the softroce
// command into the guest and starts itself there with -guest, which measures. Out here it writes the table and the JSON.
//
// It refuses to measure by itself: the figures are those of `softroce perf` and of perftest.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

type options struct {
	softroce string // path of the command, on the side where this runs
	flags    string // further flags of the daemons
	run      string // regular expression over configurations
	rounds   int
	out      string // directory of performance.md and bench-rxe.json; empty: print only
	guest    bool
}

func main() {
	var o options
	flag.StringVar(&o.softroce, "softroce", "", "path of the softroce command, a static binary")
	flag.StringVar(&o.flags, "daemon-flags", "", "further flags for both daemons")
	flag.StringVar(&o.run, "run", "", "measure only what this regular expression matches")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of the interleaved run")
	flag.StringVar(&o.out, "out", "", "directory of performance.md and bench-rxe.json (default: print only)")
	flag.BoolVar(&o.guest, "guest", false, "measure: this is the guest")
	flag.Parse()

	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	play := o.outside
	if o.guest {
		play = o.inside
	}
	if err := play(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench-rxe:", err)
		cancel()
		os.Exit(1)
	}
}

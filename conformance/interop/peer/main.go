// Command peer is this side of the interoperability lab: it plays every case between the guest (kernel rdma_rxe) and
// softroce, in both roles, captures what passes on the wire, and judges. conformance/interop/run.sh boots the guest and
// starts it inside the lab's network namespace; it starts and ends the softroce daemon itself.
//
// It refuses to know softroce's engine: softroce is reached by its command and by pkg/verbs alone.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type options struct {
	softroce  string // the command
	logs      string // directory
	state     string // directory of the daemon's socket
	run       string // regular expression over case names
	reference bool
	keep      bool
	list      bool
	exec      int
	tun       string // link of softroce's own
	packet    bool   // softroce is on the packet backend
}

func main() {
	var o options
	flag.StringVar(&o.softroce, "softroce", "", "path of the softroce command")
	flag.StringVar(&o.logs, "logs", "", "directory for logs and captures")
	flag.StringVar(&o.state, "state", "", "directory for the daemon's socket")
	flag.StringVar(&o.run, "run", "", "play only the cases whose name this regular expression matches")
	flag.BoolVar(&o.reference, "reference", false, "guest 2 takes softroce's place: kernel rxe against kernel rxe")
	flag.BoolVar(&o.keep, "keep", false, "keep logs and captures of passed cases")
	flag.BoolVar(&o.list, "list", false, "list the cases and stop")
	flag.StringVar(&o.tun, "tun", "", "softroce is on this TUN link of the namespace")
	flag.BoolVar(&o.packet, "packet", false, "softroce is on the packet backend")
	flag.IntVar(&o.exec, "exec", 0, "run the arguments as a command in guest `N` and stop")
	flag.Parse()

	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	os.Exit(o.main(ctx))
}

func (o options) main(ctx context.Context) int {
	if o.exec > 0 {
		out, status, err := guest{o.exec}.exec(ctx, time.Hour, strings.Join(flag.Args(), " "))
		fmt.Print(out)
		if err != nil {
			fmt.Fprintln(os.Stderr, "peer:", err)
			return 1
		}
		return status
	}
	filter, err := regexp.Compile(o.run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "peer: -run:", err)
		return 2
	}
	l := &lab{options: o, guest: guest{1}}
	var cases []testCase
	for _, c := range l.cases() {
		if filter.MatchString(c.name) {
			cases = append(cases, c)
		}
	}
	if o.list {
		for _, c := range cases {
			fmt.Printf("%-40s %s\n", c.name, c.about)
		}
		return 0
	}
	if len(cases) == 0 {
		fmt.Fprintf(os.Stderr, "peer: no case matches %s\n", strconv.Quote(o.run))
		return 2
	}
	return l.play(ctx, cases)
}

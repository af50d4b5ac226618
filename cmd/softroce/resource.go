package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/inspect"
	"github.com/softroce/softroce/pkg/verbs"
)

// inspectFlags are the options that resource and stat share.
type inspectFlags struct {
	socket              string
	json                bool
	watch               time.Duration
	pids                []int
	qpns, states, types []string
}

const watchDefault = "1s"

func (f *inspectFlags) add(c *cobra.Command) {
	f.addChoice(c)
	fl := c.Flags()
	fl.BoolVar(&f.json, "json", false, "print JSON; with --watch an object a line")
	fl.DurationVarP(&f.watch, "watch", "w", 0, "show it again and again, so long after one another (--watch alone: "+watchDefault+")")
	fl.Lookup("watch").NoOptDefVal = watchDefault
}

// addChoice adds the options that choose objects, and the socket's.
func (f *inspectFlags) addChoice(c *cobra.Command) {
	fl := c.Flags()
	fl.IntSliceVar(&f.pids, "pid", nil, "only what belongs to these processes")
	fl.StringSliceVar(&f.qpns, "qpn", nil, "only these queue pairs, by number: decimal, or hexadecimal after 0x")
	fl.StringSliceVar(&f.states, "state", nil, "only queue pairs in these states: "+strings.Join(inspect.States, ", "))
	fl.StringSliceVar(&f.types, "type", nil, "only queue pairs of these types: "+strings.Join(inspect.Types, ", "))
	addSocketFlag(c, &f.socket)
	for name, words := range map[string][]string{"state": inspect.States, "type": inspect.Types} {
		if err := c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic(err) // the flag is there
		}
	}
}

// filter reads the options that choose.
func (f *inspectFlags) filter(c *cobra.Command) (inspect.Filter, error) {
	filter, err := inspect.NewFilter(f.pids, f.qpns, f.states, f.types)
	if c.Flags().Changed("watch") && f.watch < time.Millisecond {
		err = errors.Join(err, fmt.Errorf("--watch=%v is less than a millisecond", f.watch))
	}
	filter.Self = os.Getpid()
	if err != nil {
		err = &exitError{exitUsage, fmt.Errorf("%s: %w", c.Name(), err)}
	}
	return filter, err
}

// show shows the adapter of the daemon until it is done or ctx ends.
func (f *inspectFlags) show(ctx context.Context, w io.Writer, look inspect.Look) error {
	dev, err := verbs.Open(&verbs.Options{Socket: f.socket})
	if err != nil {
		return err
	}
	defer dev.Close()
	return inspect.Output{W: w, JSON: f.json, Every: f.watch, Size: terminalSize(w)}.Show(ctx, dev, look)
}

// onTerminal says whether what is watched is redrawn.
func (f *inspectFlags) onTerminal(w io.Writer) bool {
	return f.watch > 0 && !f.json && terminalSize(w) != nil
}

// terminalSize is how to ask for the size of the terminal that w is; nil: it is
// none.
func terminalSize(w io.Writer) func() (columns, lines int) {
	f, ok := w.(*os.File)
	if !ok || !isTerminal(f) {
		return nil
	}
	return func() (int, int) {
		size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
		if err != nil || size.Row == 0 {
			return 0, 24 // a terminal that does not know
		}
		return int(size.Col), int(size.Row)
	}
}

// strayWatch explains an argument that was meant for --watch.
func strayWatch(arg string) string {
	if _, err := time.ParseDuration(arg); err == nil {
		return " (an interval is written --watch=" + arg + ")"
	}
	return ""
}

func newResourceCmd() *cobra.Command {
	var f inspectFlags
	var names, help []string
	for _, k := range inspect.Kinds {
		names = append(names, k.Name)
		help = append(help, fmt.Sprintf("  %-5s %s", k.Name, k.What))
	}
	c := &cobra.Command{
		Use:   "resource [" + strings.Join(names, " | ") + "] [flags]",
		Short: "Show what programs have of the adapter: queue pairs, regions and so on",
		Long: `resource asks a running daemon and shows what rdma resource show shows of an adapter: how many objects of each
kind there are, or with a kind each one, with the program that it belongs to.

` + strings.Join(help, "\n") + `

Root and the daemon's own user see the objects of every program, others those of their own. Keys are shown to the
user alone whose memory they open. "-" stands for what an object does not have; with --json that is null.

A number of a protection domain, completion queue and so on is one of its program: CTX tells programs apart.

With --watch a terminal shows the latest state, cut to its size; otherwise every line has the time in front.`,
		Example: `  softroce resource                           # how many there are
  softroce resource qp --state RTS,SQE
  softroce resource mr --pid 1234 --json
  softroce resource qp --watch=200ms`,
		ValidArgs: names,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) > 1:
				return fmt.Errorf("resource: want one kind, got %d%s", len(args), strayWatch(args[1]))
			case len(args) == 1 && !slices.Contains(names, args[0]):
				return fmt.Errorf("resource: %q is no kind: want one of %s%s", args[0], strings.Join(names, ", "), strayWatch(args[0]))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			filter, err := f.filter(c)
			if err != nil {
				return err
			}
			look := inspect.Summary(filter)
			if len(args) == 1 {
				kind, _ := inspect.KindOf(args[0])
				if filter.OfQPs() && kind.Name != "qp" {
					return &exitError{exitUsage, fmt.Errorf("resource %s: --qpn, --state and --type are for queue pairs (resource qp)", kind.Name)}
				}
				look = inspect.Resources(kind, filter)
			}
			return f.show(c.Context(), c.OutOrStdout(), look)
		},
	}
	f.add(c)
	return c
}

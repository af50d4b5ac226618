package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/softroce/softroce/internal/inspect"
	"github.com/softroce/softroce/pkg/verbs"
)

// explainLast is how many failures --last explains at most.
const explainLast = 10

func newExplainCmd() *cobra.Command {
	var socket string
	var asJSON bool
	var last int
	c := &cobra.Command{
		Use:   "explain {STATUS | QPN | ERRNO | --last[=N]}",
		Short: "Explain a completion status, an errno or a queue pair's failure in words",
		Long: `explain says what a completion status means, what usually causes it and what to change: by number or by name, as 12
or IBV_WC_RETRY_EXC_ERR or RETRY_EXC_ERR; likewise the errno of a call by its name (EINVAL).

For a queue pair (0x and its number, as softroce resource qp shows it; decimal above 23) it asks a running daemon and says
what went wrong with it first, what was seen on the wire (retries, timeouts, NAKs sent and received, packets that were not
accepted), which attribute with which value it came of, and what to change. It works also for a queue pair that has not
failed, and for one that is gone when its failure is among the last 64 of the adapter.

--last explains the last failure of any queue pair that you may see, --last=5 the last five, the newest first: root and the
daemon's own user those of every program, others those of their own. It says so when the program is gone since, and names
first the queue pairs that wait in vain right now, which have not failed yet.`,
		Example: `  softroce explain 12
  softroce explain 0x00a1b2
  softroce explain --last
  softroce explain EINVAL`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case last < 0 || last > explainLast:
				return errors.New("explain: --last takes 1 to 10")
			case len(args) == 1 && last > 0:
				return errors.New("explain: either --last or what to explain, not both (--last=N is written with =)")
			case len(args) != 1 && last == 0:
				return errors.New("explain: want one status, queue pair number or errno, or --last")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			var asked inspect.Asked
			if len(args) == 1 {
				var err error
				if asked, err = inspect.ParseAsked(args[0]); err != nil {
					return &exitError{exitUsage, err}
				}
			}
			list, err := explain(c.Context(), socket, asked, last)
			if err != nil {
				return err
			}
			return inspect.WriteExplanations(c.OutOrStdout(), list, asJSON)
		},
	}
	addSocketFlag(c, &socket)
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	c.Flags().IntVar(&last, "last", 0, "explain the last failures, so many (--last alone: 1)")
	c.Flags().Lookup("last").NoOptDefVal = "1"
	return c
}

// explain finds what was asked for; statuses and errnos need no daemon.
func explain(ctx context.Context, socket string, asked inspect.Asked, last int) ([]inspect.Explanation, error) {
	switch {
	case asked.Status != nil:
		return []inspect.Explanation{inspect.ExplainStatus(*asked.Status)}, nil
	case asked.Errno != "":
		e, _ := inspect.ExplainErrno(asked.Errno)
		return []inspect.Explanation{e}, nil
	}
	dev, err := verbs.Open(&verbs.Options{Socket: socket})
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	var list []inspect.Explanation
	if last > 0 {
		list, err = explainLatest(ctx, dev, last)
	} else {
		list, err = inspect.ExplainQP(dev, asked.QPN)
	}
	if rules, rulesErr := dev.ImpairRules(); rulesErr == nil {
		inspect.Impaired(list, rules)
	}
	return list, err
}

// waitingLook is how long a queue pair is watched that may wait in vain; our own choice.
const waitingLook = 200 * time.Millisecond

// explainLatest explains the last failures, behind the queue pairs that wait in vain now.
func explainLatest(ctx context.Context, dev *verbs.Device, last int) ([]inspect.Explanation, error) {
	before, err := dev.Resources(verbs.ResourceQP)
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(waitingLook):
	}
	now, err := dev.Resources(verbs.ResourceQP)
	if err != nil {
		return nil, err
	}
	waiting := inspect.Waiting(before, now, os.Getpid())
	list, err := inspect.ExplainLast(dev, last, os.Getpid())
	if errors.Is(err, inspect.ErrNothing) && len(waiting) > 0 {
		err = nil
	}
	return append(waiting, list...), err
}

func newGIDsCmd() *cobra.Command {
	var f struct {
		socket string
		json   bool
	}
	c := &cobra.Command{
		Use:   "gids",
		Short: "Show the adapter's addresses: index, type, interface, usable or not and why",
		Long: `gids asks a running daemon and shows every address that the adapter has or should have: the index that programs give
as sgid_index, the address and its GID, the type, the interface with its MTU, and whether it can be used. An address without an
index is not in the table; WHY says what keeps it out, or what keeps one that is in it from working: it is on no interface,
the link is down, duplicate address detection has not ended, another adapter has it.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			dev, err := verbs.Open(&verbs.Options{Socket: f.socket})
			if err != nil {
				return err
			}
			defer dev.Close()
			return inspect.Output{W: c.OutOrStdout(), JSON: f.json}.Show(c.Context(), dev, inspect.GIDs(dev))
		},
	}
	addSocketFlag(c, &f.socket)
	c.Flags().BoolVar(&f.json, "json", false, "print a JSON list")
	return c
}

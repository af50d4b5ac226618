package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/softroce/softroce/conformance/cases"
	"github.com/softroce/softroce/conformance/report"
	"github.com/softroce/softroce/conformance/suite"
)

func newConformanceCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "conformance",
		Short: "Test a RoCEv2 endpoint from outside, packet by packet",
		Long: `conformance tests what a RoCEv2 requester and responder does: softroce, kernel rdma_rxe, or an adapter. The tester
makes every packet itself and sees every one that comes back; a small agent on the target's side makes the queue pairs
and memory ("softroce conformance agent", or agent.py on rdma-core). docs/conformance.md says more.

On the target's host:    softroce daemon --addr 192.0.2.1 & softroce conformance agent --tester 192.0.2.2
On another:              softroce conformance run --target 192.0.2.1`,
	}
	c.AddCommand(newConformanceRunCmd(), newConformanceListCmd(), newConformanceShowCmd(), newConformanceReportCmd(), newConformanceAgentCmd())
	return c
}

func newConformanceListCmd() *cobra.Command {
	var level, choice string
	var untested bool
	c := &cobra.Command{
		Use:   "list [flags]",
		Short: "List the cases: id, level, title",
		Long: `list prints one case a line: its id, its level, and its title, which is what is sent and what is expected then. With
--untested it prints the statements that have no case, and why.`,
		Example: `  softroce conformance list --level must
  softroce conformance list --only RDR,PSN`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			lowest, err := suite.ParseLevel(level)
			if err != nil {
				return &exitError{exitUsage, fmt.Errorf("list: --level: %w", err)}
			}
			only, err := parseOnly(choice)
			if err != nil {
				return &exitError{exitUsage, fmt.Errorf("list: --only: %w", err)}
			}
			cfg := suite.Config{Level: lowest, Only: only}
			return listCases(c.OutOrStdout(), cfg.Selected(), untested)
		},
	}
	c.Flags().StringVar(&level, "level", "may", "list this level and those above: may, should, must")
	addOnlyFlag(c, &choice)
	c.Flags().BoolVar(&untested, "untested", false, "the statements that have no case, and why, instead")
	return c
}

// addOnlyFlag adds --only, which has the name --section, too.
func addOnlyFlag(c *cobra.Command, only *string) {
	c.Flags().StringVar(only, "only", "", "cases by id, section's prefix or pattern, as RDR,ATM-03,PSN-1*; also --section (default: all)")
	c.Flags().StringVar(only, "section", "", "the same")
	c.MarkFlagsMutuallyExclusive("only", "section")
	if err := c.Flags().MarkHidden("section"); err != nil {
		panic(err) // the flag is there
	}
}

func listCases(w io.Writer, statements []suite.Statement, untested bool) error {
	var b strings.Builder
	for _, s := range statements {
		has, why := tested(s.ID)
		switch {
		case has && !untested:
			fmt.Fprintf(&b, "%-6s  %-6s  %s\n", s.ID, s.Level, report.Title(s))
		case !has && untested:
			fmt.Fprintf(&b, "%-6s  %-6s  %s (%s)\n", s.ID, s.Level, report.Title(s), why)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// tested says whether a statement has a case, and if not why.
func tested(id string) (has bool, why string) {
	for _, c := range cases.All() {
		if c.ID == id {
			return true, ""
		}
	}
	for _, u := range cases.NotTestable() {
		if u.ID == id {
			return false, u.Reason
		}
	}
	return false, "no case yet"
}

// parseOnly takes a list of ids, sections' prefixes and patterns apart; each must fit a statement.
func parseOnly(list string) ([]string, error) {
	var only []string
	for word := range strings.SplitSeq(list, ",") {
		word = strings.ToUpper(strings.TrimSpace(word))
		if word == "" {
			continue
		}
		cfg := suite.Config{Only: []string{word}}
		if len(cfg.Selected()) == 0 {
			return nil, fmt.Errorf("%q is no statement and no section (see softroce conformance list)", word)
		}
		only = append(only, word)
	}
	return only, nil
}

func newConformanceShowCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "show ID...",
		Short:   "Show a statement: what is sent, what is expected, and its clause",
		Example: `  softroce conformance show RDR-08`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			for i, id := range args {
				s, ok := suite.Lookup(strings.ToUpper(id))
				if !ok {
					return &exitError{exitUsage, fmt.Errorf("show: there is no statement %q (see softroce conformance list)", id)}
				}
				if i > 0 {
					fmt.Fprintln(c.OutOrStdout())
				}
				showStatement(c.OutOrStdout(), s)
			}
			return nil
		},
	}
}

func showStatement(w io.Writer, s suite.Statement) {
	fmt.Fprintf(w, "%s (%v), statement %d of %d\n", s.ID, s.Level, s.Number, len(suite.Statements()))
	for _, l := range [][2]string{
		{"section", s.Section}, {"stimulus", s.Stimulus}, {"expected", s.Expected}, {"clause", s.Clause}, {"tested", testedWords(s.ID)},
	} {
		fmt.Fprintf(w, "  %-9s %s\n", l[0], l[1])
	}
	if strings.Contains(s.Clause, "[S]") {
		fmt.Fprintln(w, "  [S]       known from the specification, not read again there, and confirmed by no implementation or capture")
	}
	if strings.Contains(s.Clause, "[?]") {
		fmt.Fprintln(w, "  [?]       not settled")
	}
}

func testedWords(id string) string {
	has, why := tested(id)
	if !has {
		return "no: " + why
	}
	for _, c := range cases.All() {
		if c.ID == id && len(c.Needs) > 0 {
			return "yes, where the target has " + strings.Join(c.Needs, ", ")
		}
	}
	return "yes"
}

func newConformanceReportCmd() *cobra.Command {
	var out string
	c := &cobra.Command{
		Use:   "report --out FILE RESULT...",
		Short: "Make one HTML page of the results of several targets",
		Long: `report reads what "softroce conformance run --json" wrote, one file a target, and writes a page that shows what came of
each statement on each target, with the packets. The page needs no network.`,
		Example: `  softroce conformance report --out page.html softroce.json rxe.json`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			var runs []*report.Run
			for _, name := range args {
				if sameFile(out, name) {
					return &exitError{exitUsage, fmt.Errorf("report: --out %s would overwrite the results that it is made of", out)}
				}
				r, err := readRun(name)
				if err != nil {
					return &exitError{exitUsage, fmt.Errorf("report: %w", err)}
				}
				runs = append(runs, r)
			}
			return writeTo(out, func(w io.Writer) error { return report.WritePage(w, runs) })
		},
	}
	c.Flags().StringVar(&out, "out", "", "file for the page")
	_ = c.MarkFlagRequired("out") // the flag is there
	return c
}

func readRun(name string) (*report.Run, error) {
	f, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := report.ReadJSON(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

// openRegular opens a file that has an end: reading a pipe might wait for ever.
func openRegular(name string) (*os.File, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file (%s)", name, info.Mode().Type())
	}
	return os.Open(name)
}

// sameFile says whether two names are of one file.
func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// writeTo writes a file, or standard output for "-".
func writeTo(name string, write func(io.Writer) error) error {
	if name == "-" {
		return write(os.Stdout)
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

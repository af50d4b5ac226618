package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/cases"
	"github.com/softroce/softroce/conformance/report"
	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/wire"
)

// conformanceFlags are the settings of a run as given.
type conformanceFlags struct {
	target, agent, token string
	cm                   uint16
	except, golden       string
	local, iface         string
	name                 string
	only, level          string
	seed                 uint64
	wait, quiet          time.Duration
	exceptions           string

	pcap, json, junit, html string
}

func newConformanceRunCmd() *cobra.Command {
	f := &conformanceFlags{}
	c := &cobra.Command{
		Use:   "run --target HOST [flags]",
		Short: "Run the cases against a target",
		Long: `run tests the RoCEv2 endpoint at HOST, with the help of the agent there. It sends from an address of this host at
which no RoCEv2 adapter serves; it needs root, or CAP_NET_RAW. With --cm no agent is needed, and fewer cases can be
run: those that have enough with a connection to something that listens, as rping -s -P does on port 7174.

It prints a tree of the cases by section: a tick for what passed, a dash for what was skipped, a cross for what failed,
with what was expected, what came, and the packets. --json, --junit and --html write the same to files; "-" is standard
output, in place of the tree.

A file of exceptions has lines "ID reason": statements that the target is known to fail, for a reason outside of it.

With --golden the file has what an earlier run against the same target found, and only what differs from it counts: a
driver whose deviations are known is watched that way.

The status is 0 when no must failed, 1 when one did that is no exception, or when an exception passes or has no case, or
when something differs from --golden,
and 2 when the run could not be made.`,
		Example: `  softroce conformance run --target 192.0.2.1
  softroce conformance run --target 192.0.2.1 --only RDR,ATM-03 --pcap .
  softroce conformance run --target 192.0.2.1 --cm 7174
  softroce conformance run --target fe80::1%eth1 --level must --json result.json --html result.html`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.cm == 0 && c.Flags().Changed("cm") {
				return &exitError{exitUsage, errors.New("conformance: --cm: 0 is no port")}
			}
			return runConformance(c.Context(), f, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.target, "target", "", "address or name of the endpoint to test")
	fl.StringVar(&f.agent, "agent", "", "HOST or HOST:PORT of the agent (default: the target, port 4792)")
	fl.StringVar(&f.token, "token", "", "the word that the agent was started with")
	fl.Uint16Var(&f.cm, "cm", 0, "do without an agent: connect to this port by the connection manager, to an rping -s -P for instance")
	fl.StringVar(&f.local, "local", "", "address to send from (default: the host's choice)")
	fl.StringVar(&f.iface, "iface", "", "interface to send from (default: the one of the route to the target)")
	fl.StringVar(&f.name, "name", "", "what reports call the target (default: its device and address)")
	addOnlyFlag(c, &f.only)
	fl.StringVar(&f.except, "except", "", "cases to leave out, likewise: what the target does not survive for instance")
	fl.StringVar(&f.level, "level", "may", "run this level and those above: may, should, must")
	fl.Uint64Var(&f.seed, "seed", 1, "where a case's random numbers begin")
	fl.DurationVar(&f.wait, "wait", 2*time.Second, "how long an answer may take")
	fl.DurationVar(&f.quiet, "quiet", 30*time.Millisecond, "how long a silence must last to be believed")
	fl.StringVar(&f.exceptions, "exceptions", "", "file that names statements that the target is known to fail")
	fl.StringVar(&f.golden, "golden", "", "results of an earlier run (--json): what ends otherwise than there is what counts")
	fl.StringVar(&f.pcap, "pcap", "", "directory for the packets, a pcapng a case; it is made")
	fl.StringVar(&f.json, "json", "", "file for the results as JSON")
	fl.StringVar(&f.junit, "junit", "", "file for the results as JUnit's XML")
	fl.StringVar(&f.html, "html", "", "file for the results as one HTML page")
	_ = c.MarkFlagRequired("target") // the flag is there
	c.MarkFlagsMutuallyExclusive("golden", "exceptions")
	return c
}

// runConformance makes a run. What keeps it from being made has the status exitUsage.
func runConformance(ctx context.Context, f *conformanceFlags, stdout, stderr io.Writer) error {
	cfg, err := f.config()
	if err == nil && f.cm != 0 && (f.agent != "" || f.token != "") {
		err = errors.New("--cm: there is no agent then, and no --agent or --token")
	}
	if err != nil {
		return &exitError{exitUsage, fmt.Errorf("conformance: %w", err)}
	}
	ex, err := f.readExceptions()
	if err != nil {
		return &exitError{exitUsage, fmt.Errorf("conformance: %w", err)}
	}
	golden, err := f.readGolden()
	if err != nil {
		return &exitError{exitUsage, fmt.Errorf("conformance: --golden: %w", err)}
	}
	target, err := resolveTarget(ctx, f.target)
	if err != nil {
		return &exitError{exitUsage, fmt.Errorf("conformance: %w", err)}
	}
	var local netip.Addr
	if f.local != "" {
		if local, err = netip.ParseAddr(f.local); err != nil {
			return &exitError{exitUsage, fmt.Errorf("conformance: --local: %w", err)}
		}
	}
	link, err := wire.Open(wire.Config{Remote: target, Local: local, Iface: f.iface})
	if err != nil {
		return &exitError{exitUsage, fmt.Errorf("conformance: %w", err)}
	}
	defer func() { _ = link.Close() }() // nothing depends on it any more
	cfg.Link = link
	if cfg.Dial = f.dialer(ctx, target, link.Local()); f.cm != 0 {
		cm := suite.NewCM(link, f.cm, f.seed)
		cfg.Dial = func() (suite.Agent, *agent.Hello, error) { return cm, cm.Hello(), nil }
	}
	s := &conformanceRun{flags: f, exceptions: ex, golden: golden, target: target, stdout: stdout, stderr: stderr}
	return s.run(ctx, cfg)
}

// config turns flags into a run's configuration, but for the link and the agent.
func (f *conformanceFlags) config() (suite.Config, error) {
	cfg := suite.Config{Cases: cases.All(), Untestable: cases.NotTestable(), Seed: f.seed, Wait: f.wait, Quiet: f.quiet}
	var err error
	if cfg.Level, err = suite.ParseLevel(f.level); err != nil {
		return cfg, fmt.Errorf("--level: %w", err)
	}
	if cfg.Only, err = parseOnly(f.only); err != nil {
		return cfg, fmt.Errorf("--only: %w", err)
	}
	if cfg.Except, err = parseOnly(f.except); err != nil {
		return cfg, fmt.Errorf("--except: %w", err)
	}
	const most = agent.MaxWait * time.Millisecond // an agent waits no longer
	if f.wait <= 0 || f.quiet <= 0 || f.wait > most || f.quiet > most {
		return cfg, fmt.Errorf("--wait and --quiet: want durations above 0, at most %v", most)
	}
	if len(cfg.Selected()) == 0 {
		return cfg, errors.New("--only and --level leave no statement")
	}
	return cfg, f.outputs()
}

// outputs fails when results could not be written where they are to go. It makes the directory of the packets.
func (f *conformanceFlags) outputs() error {
	files := map[string]bool{}
	for _, name := range []string{f.json, f.junit, f.html} {
		if err := directoryOf(name); err != nil {
			return err
		}
		switch {
		case name == "":
		case name == "-" && files[name]:
			return errors.New("--json, --junit, --html: one of them can be standard output")
		case files[name]:
			return fmt.Errorf("--json, --junit, --html: %s is named twice", name)
		}
		files[name] = true
	}
	if f.pcap == "" {
		return nil
	}
	return os.MkdirAll(f.pcap, 0o777)
}

// directoryOf fails when a file's directory is not there: better now than after the run.
func directoryOf(name string) error {
	if name == "" || name == "-" {
		return nil
	}
	info, err := os.Stat(filepath.Dir(name))
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s: not a directory", filepath.Dir(name))
	}
	return err
}

func (f *conformanceFlags) readExceptions() (*report.Exceptions, error) {
	if f.exceptions == "" {
		return nil, nil
	}
	in, err := openRegular(f.exceptions)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return report.ParseExceptions(in)
}

func (f *conformanceFlags) readGolden() (*report.Run, error) {
	if f.golden == "" {
		return nil, nil
	}
	in, err := openRegular(f.golden)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return report.ReadJSON(in)
}

// resolveTarget gives the address of a target; of a name's addresses the first.
func resolveTarget(ctx context.Context, host string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap(), nil
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("target: %w", err)
	}
	return found[0].Unmap(), nil
}

// dialer reaches the target's agent from the address that the packets come from: by it the agent knows its tester.
func (f *conformanceFlags) dialer(ctx context.Context, target, local netip.Addr) func() (suite.Agent, *agent.Hello, error) {
	addr, from := f.agent, net.IP(nil)
	if addr == "" {
		addr = target.String()
		if f.local != "" && local.Zone() == "" {
			from = local.AsSlice()
		}
	}
	return func() (suite.Agent, *agent.Hello, error) {
		c, err := agent.Dial(ctx, addr, agent.ClientConfig{Token: f.token, Local: from})
		if err != nil {
			return nil, nil, err
		}
		return c, c.Hello(), nil
	}
}

// conformanceRun is a run and where its results go.
type conformanceRun struct {
	flags          *conformanceFlags
	exceptions     *report.Exceptions
	golden         *report.Run // nil: none
	target         netip.Addr
	stdout, stderr io.Writer
}

// run makes the run and writes what was asked for. Also a run that was cut short is shown.
func (s *conformanceRun) run(ctx context.Context, cfg suite.Config) error {
	rec := &report.Recorder{Exceptions: s.exceptions, Pcap: s.flags.pcap, Run: &report.Run{
		Format: report.Format, Seed: cfg.Seed, Began: time.Now(), Versions: report.Versions{Softroce: version()},
		Target: report.Target{Name: s.flags.name, Host: s.target.String()},
	}}
	f := s.flags
	if f.json != "-" && f.junit != "-" && f.html != "-" {
		rec.Tree = report.NewTree(s.stdout, colourful(s.stdout))
	}
	bar := newProgress(s.stderr)
	if bar.w == nil {
		rec.Section = func(name string, n report.Counts) { fmt.Fprintf(s.stderr, "%s: %v\n", name, n) }
	}
	cfg.Dial = introduced(cfg.Dial, rec)
	selected := cfg.Selected()
	cfg.Progress = func(n, total int, r *suite.Result) {
		bar.clear()
		rec.Take(r)
		if n < total {
			bar.show(fmt.Sprintf("%d of %d, %d failed; now %s", n, total, rec.Run.Counts.Failed, selected[n].ID))
		}
	}
	_, err := suite.Run(ctx, cfg)
	bar.clear()
	if err != nil && len(rec.Run.Cases) == 0 {
		return &exitError{exitUsage, fmt.Errorf("conformance: %w", err)}
	}
	return s.finish(rec, err)
}

// introduced has the first agent that answers say what the target is.
func introduced(dial func() (suite.Agent, *agent.Hello, error), rec *report.Recorder) func() (suite.Agent, *agent.Hello, error) {
	met := false
	return func() (suite.Agent, *agent.Hello, error) {
		a, hello, err := dial()
		if err != nil || met {
			return a, hello, err
		}
		met = true
		t := &rec.Run.Target
		t.Agent, t.Device, t.Features = hello.Agent, hello.Device, hello.Features
		rec.Run.Versions.Protocol = hello.Version
		if t.Name == "" {
			t.Name = hello.Device + " at " + t.Host
		}
		if rec.Tree != nil {
			rec.Tree.Head(rec.Run)
		}
		return a, hello, nil
	}
}

// finish shows and writes the results, and gives the run's verdict; broken is what cut it short.
func (s *conformanceRun) finish(rec *report.Recorder, broken error) error {
	r, f := rec.Run, s.flags
	r.MS = float64(time.Since(r.Began).Microseconds()) / 1000
	complaints := r.Complaints(s.exceptions, func(id string) bool { has, _ := tested(id); return has })
	if s.golden != nil {
		complaints = r.Against(s.golden)
	}
	if rec.Tree != nil {
		rec.Tree.Summary(r, complaints)
	}
	err := rec.End()
	for _, o := range []struct {
		name  string
		write func(io.Writer) error
	}{
		{f.json, r.WriteJSON},
		{f.junit, r.WriteJUnit},
		{f.html, func(w io.Writer) error { return report.WritePage(w, []*report.Run{r}) }},
	} {
		switch o.name {
		case "":
		case "-":
			err = errors.Join(err, o.write(s.stdout))
		default:
			err = errors.Join(err, writeTo(o.name, o.write))
		}
	}
	if err = errors.Join(broken, err); err != nil {
		return &exitError{exitUsage, fmt.Errorf("conformance: %w", err)}
	}
	if len(complaints) > 0 {
		if rec.Tree == nil {
			for _, c := range complaints {
				fmt.Fprintln(s.stderr, c)
			}
		}
		return &exitError{exitFailed, nil}
	}
	return nil
}

// colourful says whether w is a terminal whose reader did not ask for no colour (no-color.org).
func colourful(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isTerminal(f) && os.Getenv("NO_COLOR") == ""
}

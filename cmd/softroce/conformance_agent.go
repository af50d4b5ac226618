package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/agent/verbsagent"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

// conformanceAgentFlags are the options as given.
type conformanceAgentFlags struct {
	socket  string
	listen  string
	testers []string
	token   string
	addrs   []string
}

func newConformanceAgentCmd() *cobra.Command {
	f := &conformanceAgentFlags{}
	c := &cobra.Command{
		Use:   "agent --tester ADDR [flags]",
		Short: "Serve the conformance tester on the side of a softroce adapter",
		Long: `agent makes queue pairs and memory on a softroce adapter, posts requests and tells what came of them, as the
conformance tester asks, over TCP. It takes connections from the tester's addresses only, and closes any other at
once: who may connect can use the adapter as this user can. It serves until it is stopped; what a connection made is
destroyed when the connection ends. docs/conformance-agent.md describes the protocol.

With --addr it runs an adapter of its own in its process, at that address, and needs no daemon.`,
		Example: `  softroce conformance agent --tester 192.0.2.2
  softroce conformance agent --tester 192.0.2.0/24 --tester 2001:db8::2 --listen 127.0.0.1:0 --token word`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return runConformanceAgent(c.Context(), f, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.listen, "listen", "", "ADDR:PORT to listen on; port 0 is any (default: the adapter's address, port "+strconv.Itoa(agent.DefaultPort)+")")
	fl.StringSliceVar(&f.testers, "tester", nil, "address or prefix that may connect; several are allowed")
	fl.StringVar(&f.token, "token", "", "a word that the tester must know, too")
	fl.StringSliceVar(&f.addrs, "addr", nil, "address of an adapter in this process, in place of a daemon's; several are allowed")
	if err := c.MarkFlagRequired("tester"); err != nil {
		panic(err) // there is no such flag
	}
	addSocketFlag(c, &f.socket)
	return c
}

func runConformanceAgent(ctx context.Context, f *conformanceAgentFlags, out, errs io.Writer) error {
	testers, err := parseTesters(f.testers)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	open, closeAdapter, err := f.opener()
	if err != nil {
		return err
	}
	defer closeAdapter()
	name, listen, err := agentAddress(open, f.listen)
	if err != nil {
		return err
	}
	srv, err := agent.NewServer(agent.ServerConfig{
		New: verbsagent.Sessions(open), Testers: testers, Token: f.token, Log: slog.New(slog.NewTextHandler(errs, nil)),
	})
	if err != nil {
		return &exitError{exitUsage, err}
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	if _, err := fmt.Fprintf(out, "agent of %s on %v, for %s\n", name, l.Addr(), strings.Join(f.testers, ", ")); err != nil {
		_ = l.Close()
		return err
	}
	return srv.Serve(ctx, l)
}

// opener gives what opens the device: a daemon's, or that of an adapter of our own, which the second result ends.
func (f *conformanceAgentFlags) opener() (open func() (*verbs.Device, error), done func(), err error) {
	if len(f.addrs) == 0 {
		return func() (*verbs.Device, error) { return verbs.Open(&verbs.Options{Socket: f.socket}) }, func() {}, nil
	}
	var cfg adapter.Config
	for _, s := range f.addrs {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, nil, &exitError{exitUsage, fmt.Errorf("--addr: %w", err)}
		}
		cfg.Addrs = append(cfg.Addrs, a)
	}
	a, err := adapter.Start(cfg)
	if err != nil {
		return nil, nil, err
	}
	return a.Open, func() { _ = a.Close() }, nil // the process ends with it
}

func parseTesters(list []string) (testers []netip.Prefix, err error) {
	for _, s := range list {
		p, err := agent.ParseTester(s)
		if err != nil {
			return nil, fmt.Errorf("--tester: %w", err)
		}
		testers = append(testers, p)
	}
	return testers, nil
}

// agentAddress opens the adapter once: whether it is there shows before a tester comes. It gives the adapter's name, and where
// to listen if the user did not say.
func agentAddress(open func() (*verbs.Device, error), listen string) (name, addr string, err error) {
	dev, err := open()
	if err != nil {
		return "", "", err
	}
	defer dev.Close()
	if listen != "" {
		return dev.Name(), listen, nil
	}
	table, err := dev.GIDTable()
	if err != nil {
		return "", "", err
	}
	for _, e := range table {
		if a := e.GID.Addr(); !a.IsLinkLocalUnicast() {
			return dev.Name(), netip.AddrPortFrom(a, agent.DefaultPort).String(), nil
		}
	}
	return "", "", errors.New("the adapter has only link-local addresses: say where to listen, with --listen")
}

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/softroce/softroce/internal/demo"
)

func newDemoCmd() *cobra.Command {
	var pcap string
	var addrs []string
	var asJSON bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show every verb once between two adapters on this machine",
		Long: `demo starts two adapters in one process, on 127.0.0.1 and 127.0.0.2, which share no state and meet over
UDP port 4791 only. It does each verb once, checks the data, and prints what was done and how fast. It
needs no privilege.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			cfg, err := demoConfig(addrs)
			if err != nil {
				return &exitError{exitUsage, err}
			}
			if pcap != "" {
				done, err := openDemoCapture(pcap, &cfg)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, done()) }()
			}
			p := newProgress(c.ErrOrStderr())
			cfg.Step = p.show
			rep, err := demo.Run(c.Context(), cfg)
			p.clear()
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(c.OutOrStdout()).Encode(rep)
			}
			printDemo(c.OutOrStdout(), rep, pcap)
			return nil
		},
	}
	c.Flags().StringVar(&pcap, "pcap", "", "write a pcapng of the packets to this file")
	c.Flags().StringSliceVar(&addrs, "addr", nil, "the two addresses (default 127.0.0.1,127.0.0.2)")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func demoConfig(addrs []string) (cfg demo.Config, err error) {
	if len(addrs) == 0 {
		return cfg, nil
	}
	if len(addrs) != 2 || addrs[0] == addrs[1] {
		return cfg, errors.New("--addr needs two different addresses of this host")
	}
	for i, s := range addrs {
		if cfg.Addrs[i], err = netip.ParseAddr(s); err != nil {
			return cfg, fmt.Errorf("--addr %q is not an IP address: %w", s, err)
		}
	}
	return cfg, nil
}

func openDemoCapture(path string, cfg *demo.Config) (done func() error, err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("--pcap: %w", err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	cfg.Capture = w
	return func() error { return errors.Join(w.Flush(), f.Close()) }, nil
}

func printDemo(out io.Writer, rep *demo.Report, pcap string) {
	fmt.Fprintf(out, "Two adapters, %s (QP %#x) and %s (QP %#x), reliable connection, path MTU %d.\n\n",
		rep.Device[0], rep.QPN[0], rep.Device[1], rep.QPN[1], rep.MTU)
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "VERB\tOPERATIONS\tBYTES\tTIME EACH\tRATE\tDATA\tWHAT")
	for _, r := range rep.Rows {
		each := r.Elapsed / time.Duration(max(r.Count, 1))
		rate := "-"
		if r.Bytes >= 1<<20 {
			rate = fmt.Sprintf("%.2f GB/s", float64(r.Bytes)/r.Elapsed.Seconds()/1e9)
		}
		data := "not checked"
		if r.Checked {
			data = "right"
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%v\t%s\t%s\t%s\n", r.Verb, r.Count, r.Bytes, each.Round(100*time.Nanosecond), rate, data, r.What)
	}
	_ = w.Flush() // to a terminal or a file: fmt's own errors are not looked at either
	fmt.Fprintf(out, "\nAll data right, in %v.\n", rep.Took.Round(time.Millisecond))
	if pcap != "" {
		fmt.Fprintf(out, "Packets: %s (softroce decode %s, or any tool that reads pcapng)\n", pcap, pcap)
	}
}

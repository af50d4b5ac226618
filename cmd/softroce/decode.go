package main

import (
	"bufio"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/softroce/softroce/internal/capture"
)

func newDecodeCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "decode FILE",
		Short: "Print the RoCEv2 packets of a pcap or pcapng, one a line",
		Long: `decode prints each RoCEv2 packet of a capture on a line: time, addresses, operation, queue pair
number, PSN, the fields of each extended header, and whether the ICRC is right. FILE may be "-".

The exit status is 1 when a packet is malformed or its ICRC is wrong, 2 when the file cannot be read.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("decode: want one file, got %d (see softroce decode --help)", len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			in, err := openInput(c.Context(), args[0], c.InOrStdin())
			if err != nil {
				return &exitError{exitUsage, fmt.Errorf("decode: %w", err)}
			}
			defer in.Close()
			return decode(in, c.OutOrStdout())
		},
	}
}

// decode prints the packets of in and fails when one was bad.
func decode(in io.Reader, out io.Writer) error {
	w := bufio.NewWriter(out)
	var packets, bad int
	err := capture.Decode(bufio.NewReader(in), func(r capture.Record) {
		packets++
		if r.Bad() {
			bad++
		}
		fmt.Fprintln(w, r)
	})
	if ferr := w.Flush(); ferr != nil {
		return &exitError{exitUsage, fmt.Errorf("decode: %w", ferr)}
	}
	if err != nil {
		return &exitError{exitUsage, fmt.Errorf("decode: %w", err)}
	}
	if bad > 0 {
		return &exitError{exitFailed, fmt.Errorf("decode: %d of %d packets are malformed or have a wrong ICRC", bad, packets)}
	}
	return nil
}

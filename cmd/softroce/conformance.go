package main

import "github.com/spf13/cobra"

func newConformanceCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "conformance",
		Short: "Test a RoCEv2 endpoint from outside, packet by packet",
	}
	c.AddCommand(newConformanceAgentCmd())
	return c
}

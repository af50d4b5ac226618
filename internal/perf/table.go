package perf

import (
	"fmt"
	"io"
)

const rule = "---------------------------------------------------------------------------------------"

// PrintHeader prints what is measured between whom, and the head of the table,
// in perftest's layout.
func PrintHeader(w io.Writer, r *Report) {
	p := &r.Params
	kind := "BW"
	if p.Latency {
		kind = "Latency"
	}
	fmt.Fprintln(w, rule)
	fmt.Fprintf(w, "                    %s %s Test\n", p.Op.title(), kind)
	fmt.Fprintf(w, " Device         : %-16s Transport type : RoCEv2\n", r.Device)
	fmt.Fprintf(w, " Number of qps  : %-16d Connection type: RC\n", p.QPs)
	fmt.Fprintf(w, " TX depth       : %-16d CQ Moderation  : %d\n", p.TxDepth, p.CQMod)
	fmt.Fprintf(w, " Mtu            : %-16s Max inline data: %d[B]\n", fmt.Sprintf("%d[B]", p.MTU.Bytes()), p.Inline)
	fmt.Fprintf(w, " GID            : local %s, remote %s\n", r.Local, r.Remote)
	check := "not checked"
	if p.Check {
		check = "checked"
	}
	fmt.Fprintf(w, " Data           : %s\n", check)
	fmt.Fprintln(w, rule)
	if p.Latency {
		fmt.Fprintln(w, " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]")
	} else {
		fmt.Fprintln(w, " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]")
	}
}

// PrintRow prints a line of the table.
func PrintRow(w io.Writer, r *Row) {
	switch {
	case r.Lat != nil:
		l := r.Lat
		fmt.Fprintf(w, " %-7d %-14d%-15.2f%-13.2f%-19.2f%-15.2f%-16.2f%-23.2f%.2f\n",
			r.Size, r.Iters, l.Min, l.Max, l.Typical, l.Avg, l.Stdev, l.P99, l.P999)
	case r.BW != nil:
		fmt.Fprintf(w, " %-11d%-15d%-19.2f%-21.2f%.6f\n", r.Size, r.Iters, r.BW.Peak, r.BW.Average, r.BW.MsgRate)
	}
}

// PrintFooter closes the table.
func PrintFooter(w io.Writer) { fmt.Fprintln(w, rule) }

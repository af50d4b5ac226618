package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A row is what was measured of one configuration, once a round for each of the two.
type row struct {
	Name     string    `json:"name"`
	Unit     string    `json:"unit"` // GB/s (10^9 bytes of payload a second), us (half a round trip), or conns/s
	Softroce []float64 `json:"softroce"`
	RXE      []float64 `json:"rxe"`
	Ratio    float64   `json:"ratio"` // of the medians, softroce to rxe
}

// A target is what was asked for and what was reached.
type target struct {
	Name   string  `json:"name"`
	Ratio  float64 `json:"ratio"`
	Must   float64 `json:"must"`
	Goal   float64 `json:"goal"`
	Met    bool    `json:"met"` // the must
	AtMost bool    `json:"at_most,omitempty"`
}

// A result is a whole run.
type result struct {
	Date   string `json:"date"`
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Rounds int    `json:"rounds"`
	Flags  string `json:"daemon_flags,omitempty"`

	CRC     []crcTime `json:"crc"`
	CRCUsed string    `json:"crc_used,omitempty"` // empty: the daemon's own choice

	Elapsed         time.Duration    `json:"elapsed_ns"`   // by the guest's clock
	Clock           float64          `json:"clock"`        // the guest's to this machine's
	RXECounters     map[string]int64 `json:"rxe_counters"` // what the kernel counted in the run
	Retransmissions int64            `json:"softroce_retransmissions"`
	Failed          []string         `json:"failed,omitempty"` // measurements, left out
	Load            [2]float64       `json:"load"`             // this machine's load average before and after; the guest is 2 of it

	Rows    []*row   `json:"rows"`
	Targets []target `json:"targets"`
}

const (
	latencyName = "WRITE 2 bytes, latency"
	meanName    = latencyName + ", mean"
	connectName = "connect, 100 at a time"
	opConnect   = "connect"
)

// add puts a round's figures into the table.
func (r *result) add(c config, softroce, rxe figure) {
	r.into(c.Name, c.unit(), softroce.value, rxe.value)
	if c.Latency {
		r.into(meanName, c.unit(), softroce.mean, rxe.mean)
	}
}

func (r *result) into(name, unit string, softroce, rxe float64) {
	i := slices.IndexFunc(r.Rows, func(x *row) bool { return x.Name == name })
	if i < 0 {
		i = len(r.Rows)
		r.Rows = append(r.Rows, &row{Name: name, Unit: unit})
	}
	x := r.Rows[i]
	x.Softroce, x.RXE = append(x.Softroce, softroce), append(x.RXE, rxe)
	x.Ratio = median(x.Softroce) / median(x.RXE)
}

// complete fails where what was asked for has figures of less than half of the rounds.
func (r *result) complete(asked []config) error {
	if len(asked) == 0 {
		return errors.New("nothing was asked for")
	}
	for _, c := range asked {
		n := 0
		if i := slices.IndexFunc(r.Rows, func(x *row) bool { return x.Name == c.Name }); i >= 0 {
			n = len(r.Rows[i].Softroce)
		}
		if n == 0 || 2*n < r.Rounds {
			return fmt.Errorf("void: %s was measured %d times in %d rounds", c.Name, n, r.Rounds)
		}
	}
	return nil
}

// judge sets the targets that the rows allow to judge; the bandwidth's is that of the lowest ratio.
func (r *result) judge() {
	bandwidth := target{
		Name: "softroce / kernel rxe in the same guest: WRITE, READ, SEND at 64 KiB and 1 MiB, MTU 1024 and 4096, the lowest of the ratios",
		Must: 2, Goal: 3,
	}
	latency := target{Name: "softroce / kernel rxe in the same guest: 2-byte WRITE latency", Must: 6, Goal: 3, AtMost: true}
	for _, x := range r.Rows {
		switch {
		case x.Name == latencyName:
			latency.Ratio = x.Ratio
		case x.Unit == "GB/s" && (bandwidth.Ratio == 0 || x.Ratio < bandwidth.Ratio):
			bandwidth.Ratio = x.Ratio
		}
	}
	r.Targets = nil
	for _, t := range []target{bandwidth, latency} {
		if t.Ratio > 0 {
			t.Met = t.reaches(t.Must)
			r.Targets = append(r.Targets, t)
		}
	}
}

// reaches says whether the ratio is as good as v.
func (t target) reaches(v float64) bool {
	if t.AtMost {
		return t.Ratio <= v
	}
	return t.Ratio >= v
}

// verdict is the target's line.
func (t target) verdict() string {
	atMost, word := "", "not met"
	if t.AtMost {
		atMost = "at most "
	}
	switch {
	case t.reaches(t.Goal):
		word = "goal reached"
	case t.Met:
		word = "must met"
	}
	return fmt.Sprintf("%s: %.2f (must %s%g, goal %s%g): %s", t.Name, t.Ratio, atMost, t.Must, atMost, t.Goal, word)
}

// median is the middle value; of an even number the mean of the middle two.
func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	switch {
	case n == 0:
		return 0
	case n%2 == 1:
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}

// json is the document of the run, indented.
func (r *result) json() ([]byte, error) {
	r.judge()
	data, err := json.MarshalIndent(r, "", "  ")
	return append(data, '\n'), err
}

// markdown is the part of docs/performance.md between the marks.
func (r *result) markdown() string {
	r.judge()
	var b strings.Builder
	fmt.Fprintf(&b, "Made %s in a QEMU guest under software emulation: Linux %s, %d CPUs (%s); %d interleaved rounds in %.0f minutes;\n",
		r.Date, r.Kernel, r.CPUs, r.CPU, r.Rounds, r.Elapsed.Minutes())
	b.WriteString("GB/s is 10^9 bytes of payload a second, latency is half of the way there and back (the typical one, and the mean).\n\n")
	b.WriteString("| what | unit | softroce, median | min..max | kernel rxe, median | min..max | ratio |\n|---|---|---|---|---|---|---|\n")
	for _, x := range r.Rows {
		fmt.Fprintf(&b, "| %s | %s | %.3g | %.3g..%.3g | %.3g | %.3g..%.3g | %.2f |\n", x.Name, x.Unit,
			median(x.Softroce), slices.Min(x.Softroce), slices.Max(x.Softroce), median(x.RXE), slices.Min(x.RXE), slices.Max(x.RXE), x.Ratio)
	}
	b.WriteByte('\n')
	for _, t := range r.Targets {
		fmt.Fprintf(&b, "- %s.\n", t.verdict())
	}
	r.circumstances(&b)
	return b.String()
}

// circumstances says what else was seen.
func (r *result) circumstances(b *strings.Builder) {
	var crc []string
	for _, c := range r.CRC {
		crc = append(crc, fmt.Sprintf("%s %.2f and %.2f", c.Name, c.NsPerKiB/1e3, c.Copying/1e3))
	}
	used := "the daemon's own choice was used"
	if r.CRCUsed != "" {
		used = r.CRCUsed + " was used"
	}
	fmt.Fprintf(b, "- CRC there, microseconds a KiB without and with a copy: %s; %s.\n", strings.Join(crc, ", "), used)
	if r.Flags != "" {
		fmt.Fprintf(b, "- Flags of the daemons: `%s`.\n", r.Flags)
	}
	var counters []string
	for _, name := range slices.Sorted(maps.Keys(r.RXECounters)) {
		counters = append(counters, fmt.Sprintf("%s %d", name, r.RXECounters[name]))
	}
	fmt.Fprintf(b, "- In the whole run softroce sent %d packets again; rxe counted: %s.\n", r.Retransmissions, strings.Join(counters, ", "))
	fmt.Fprintf(b, "- The guest's clock ran at %.4f of this machine's; this machine's load average was %.1f before and %.1f after (the guest is\n  about 2); %d measurements failed and were left out.\n", r.Clock, r.Load[0], r.Load[1], len(r.Failed))
}

// The marks between which the document holds the table.
const (
	beginMark = "<!-- begin: make bench-rxe -->\n"
	endMark   = "<!-- end: make bench-rxe -->\n"
)

// replace gives doc with what stands between the marks replaced by text.
func replace(doc, text string) (string, error) {
	i, j := strings.Index(doc, beginMark), strings.Index(doc, endMark)
	if i < 0 || j < i {
		return "", fmt.Errorf("the document has no %q before %q", strings.TrimSpace(beginMark), strings.TrimSpace(endMark))
	}
	return doc[:i+len(beginMark)] + text + doc[j:], nil
}

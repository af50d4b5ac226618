package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// ErrNoServer says that iperf3's server does not listen yet.
var ErrNoServer = errors.New("bench: iperf3 found no server")

// ParseIperf gives the received GB/s of what `iperf3 -J` printed.
func ParseIperf(out []byte) (float64, error) {
	var r struct {
		Error string `json:"error"`
		End   struct {
			Received struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return 0, fmt.Errorf("bench: iperf3 printed no JSON: %w", err)
	}
	switch {
	case strings.Contains(r.Error, "refused"):
		return 0, fmt.Errorf("%w: %s", ErrNoServer, r.Error)
	case r.Error != "":
		return 0, fmt.Errorf("bench: iperf3: %s", r.Error)
	case r.End.Received.Bits <= 0:
		return 0, errors.New("bench: iperf3 received nothing")
	}
	return r.End.Received.Bits / 8 / 1e9, nil
}

// Perf is the figures of one size of the perf command.
type Perf struct {
	GBs         float64 // bandwidth
	Millions    float64 // of messages a second
	Median, P99 float64 // us; of WRITE and SEND half of the way there and back
}

// ParsePerf reads what `softroce perf --json` printed of one size.
func ParsePerf(out []byte) (Perf, error) {
	var r struct {
		Rows []struct {
			Bandwidth struct {
				Average float64 `json:"average_mib_per_sec"`
				Rate    float64 `json:"mpps"`
			} `json:"bandwidth"`
			Latency struct {
				Typical float64 `json:"t_typical_usec"`
				P99     float64 `json:"t_99_usec"`
			} `json:"latency"`
		} `json:"rows"`
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return Perf{}, fmt.Errorf("bench: perf printed no JSON: %w", err)
	}
	if len(r.Rows) != 1 {
		return Perf{}, fmt.Errorf("bench: perf printed %d rows, not 1", len(r.Rows))
	}
	row := r.Rows[0]
	p := Perf{GBs: row.Bandwidth.Average * (1 << 20) / 1e9, Millions: row.Bandwidth.Rate, Median: row.Latency.Typical, P99: row.Latency.P99}
	if p.Millions <= 0 && p.Median <= 0 {
		return Perf{}, errors.New("bench: perf measured nothing")
	}
	return p, nil
}

// Figures of a reference program, by the unit of the floor.
var referenceFigures = map[string]*regexp.Regexp{
	GBs:  regexp.MustCompile(`([0-9]+(?:\.[0-9]+)?) GB/s`),
	Rate: regexp.MustCompile(`([0-9]+(?:\.[0-9]+)?) kpps`),
}

// ParseReference gives the first figure of a program's output: in GB/s, or in
// millions of packets a second of what it prints as kpps.
func ParseReference(out []byte, unit string) (float64, error) {
	m := referenceFigures[unit].FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("bench: the reference program printed no figure for %s: %.200q", unit, out)
	}
	v, err := strconv.ParseFloat(string(m[1]), 64)
	if unit == Rate {
		v /= 1000
	}
	return v, err
}

// ParseSchedstat gives the nanoseconds that a thread ran, of its
// /proc/PID/task/TID/schedstat.
func ParseSchedstat(text []byte) (int64, error) {
	f := strings.Fields(string(text))
	if len(f) != 3 {
		return 0, fmt.Errorf("bench: schedstat %.60q has not three fields", text)
	}
	return strconv.ParseInt(f[0], 10, 64)
}

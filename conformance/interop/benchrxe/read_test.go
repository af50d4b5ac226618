package main

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

// What perftest prints, its head left out.
const (
	bandwidthText = ` #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      500              58.35              51.81  		   0.000829
---------------------------------------------------------------------------------------
`
	latencyText = ` #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 2       1000          10.43          184.04       16.70    	       16.15       	11.37  		79.73   		184.04
---------------------------------------------------------------------------------------
`
)

func TestReadPerftest(t *testing.T) {
	bw, lat := write, pong
	bw.Iters, lat.Iters = 500, 1000
	f, err := readPerftest(bandwidthText, bw)
	if want := 51.81 * (1 << 20) / 1e9; err != nil || math.Abs(f.value-want) > 1e-9 {
		t.Errorf("bandwidth: got %v %v, want %v GB/s", f.value, err, want)
	}
	if want := 603 * time.Millisecond; (f.claims - want).Abs() > time.Millisecond {
		t.Errorf("the stream took: got %v, want %v", f.claims, want)
	}
	f, err = readPerftest(latencyText, lat)
	if err != nil || f.value != 16.70 || f.mean != 16.15 || f.claims != 0 {
		t.Errorf("latency: got %+v %v, want 16.70 and 16.15", f, err)
	}
	for name, text := range map[string]string{
		"nothing":       "",
		"other run":     strings.ReplaceAll(bandwidthText, "500 ", "501 "),
		"no figure":     strings.ReplaceAll(bandwidthText, "51.81", "-nan."),
		"standing":      strings.ReplaceAll(bandwidthText, "51.81", "00.00"),
		"cut":           " 65536 500 58.35",
		"clock":         "Conflicting CPU frequency values detected: 2600 != 1000\n" + bandwidthText,
		"a latency row": " 2 500 1 2 3",
	} {
		if f, err := readPerftest(text, bw); err == nil {
			t.Errorf("%s: got %+v, want an error", name, f)
		}
	}
}

func TestReadPerf(t *testing.T) {
	bw := write
	bw.Iters = 500
	f, err := readPerf(`{"rows":[{"bytes":65536,"bandwidth":{"peak_mib_per_sec":60,"average_mib_per_sec":50}}]}`, bw)
	if want := 50.0 * (1 << 20) / 1e9; err != nil || math.Abs(f.value-want) > 1e-9 {
		t.Errorf("bandwidth: got %v %v, want %v GB/s", f.value, err, want)
	}
	f, err = readPerf(`{"rows":[{"latency":{"t_typical_usec":90,"t_avg_usec":120}}]}`, pong)
	if err != nil || f.value != 90 || f.mean != 120 {
		t.Errorf("latency: got %+v %v, want 90 and 120", f, err)
	}
	for _, text := range []string{"", "{}", `{"rows":[]}`, `{"rows":[{}]}`, `{"rows":[{},{}]}`} {
		if f, err := readPerf(text, bw); err == nil {
			t.Errorf("%q: got %+v, want an error", text, f)
		}
	}
}

func TestReadRetransmissions(t *testing.T) {
	page := "# HELP softroce_retransmits_total Request packets sent again.\nsoftroce_retransmits_total{adapter=\"a\"} 3\nsoftroce_sent_pkts_total 9\n"
	if n, err := readRetransmissions(page); err != nil || n != 3 {
		t.Errorf("got %d %v, want 3", n, err)
	}
	if n, err := readRetransmissions("softroce_sent_pkts_total 9\n"); err == nil {
		t.Errorf("a page without the counter: got %d, want an error", n)
	}
}

// A measurement that fails is left out for both; a row that lacks half of the rounds makes the run void.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		name  string
		fails int // of four
		void  bool
	}{{"none", 0, false}, {"half", 2, false}, {"most", 3, true}, {"all", 4, true}} {
		r := &result{}
		a := &scripted{}
		b := &scripted{fails: c.fails}
		ab := interleaved{adapters: [2]adapter{a, b}, speed: map[string][2]float64{}, result: r}
		for round := range 5 {
			ab.both(t.Context(), write, round)
			r.Rounds = round
		}
		if len(r.Failed) != c.fails {
			t.Errorf("%s: got %d failures, want %d: %q", c.name, len(r.Failed), c.fails, r.Failed)
		}
		if err := r.complete([]config{write}); (err != nil) != c.void {
			t.Errorf("%s: got %v, want void %v", c.name, err, c.void)
		}
		if c.fails < 4 && (len(r.Rows) != 1 || len(r.Rows[0].Softroce) != 4-c.fails || len(r.Rows[0].RXE) != 4-c.fails) {
			t.Errorf("%s: got rows %+v", c.name, r.Rows)
		}
	}
}

// scripted fails so often after the warm-up.
type scripted struct{ calls, fails int }

func (s *scripted) measure(context.Context, config) (figure, error) {
	if s.calls++; s.calls > 1 && s.calls <= s.fails+1 {
		return figure{}, errors.New("broken")
	}
	return figure{value: 1, wall: time.Second}, nil
}

// A figure whose stream is longer than the run of its program is refused.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		claims time.Duration
		ok     bool
	}{{0, true}, {time.Second, true}, {1040 * time.Millisecond, true}, {1100 * time.Millisecond, false}} {
		if err := (figure{claims: c.claims, wall: time.Second}).check(); (err == nil) != c.ok {
			t.Errorf("%v in a run of 1 s: got %v, want ok %v", c.claims, err, c.ok)
		}
	}
}

func TestListens(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:4854 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   1: 0100007F:1F90 00000000:0000 01 00000000:00000000 00:00000000 00000000     0        0 2
`
	for port, want := range map[int]bool{0x4854: true, 0x1F90: false, 0x5448: false} {
		if got := listens(table, port); got != want {
			t.Errorf("port %d: got %v, want %v", port, got, want)
		}
	}
}

func TestConfigs(t *testing.T) {
	all := configs()
	if len(all) != 14 || all[0] != write || all[12] != pong || all[13].Op != opConnect {
		t.Fatalf("got %d, the first %+v, the last %+v", len(all), all[0], all[len(all)-1])
	}
	for _, c := range []struct {
		name  string
		c     config
		speed float64
		want  int
	}{
		{"warm-up", write, 0, 128},
		{"slow", write, 0.001, 128},
		{"a second", write, 0.065536, 1000},
		{"fast", write, 9, 4096},
		{"latency, warm-up", pong, 0, 200},
		{"latency of a second", pong, 100, 5000},
		{"slow latency", pong, 10_000, 500},
		{"fast latency", pong, 1, 10_000},
		{"connections", config{Op: opConnect}, 3, 100},
	} {
		if got := c.c.sized(c.speed).Iters; got != c.want {
			t.Errorf("%s: got %d messages, want %d", c.name, got, c.want)
		}
	}
}

func TestIncrease(t *testing.T) {
	got := increase(map[string]int64{"a": 1, "b": 2}, map[string]int64{"a": 1, "b": 5, "c": 4})
	if len(got) != 2 || got["b"] != 3 || got["c"] != 4 {
		t.Errorf("got %v, want b 3, c 4", got)
	}
}

func TestFastest(t *testing.T) {
	if got := fastest([]crcTime{{"a", 3, 1}, {"b", 1, 2}, {"c", 2, 2}}); got != "b" {
		t.Errorf("got %q, want b", got)
	}
}

// Every way to compute the CRC is timed.
func TestTimeCRC(t *testing.T) {
	all, err := timeCRC()
	if err != nil || len(all) != len(bth.CRCPaths()) {
		t.Fatalf("got %v %v, want the times of %v", all, err, bth.CRCPaths())
	}
	for _, c := range all {
		if c.NsPerKiB <= 0 || c.Copying <= 0 {
			t.Errorf("got %+v", c)
		}
	}
}

package perf

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestSamples(t *testing.T) {
	var s samples
	for i := 1000; i >= 1; i-- { // 2 µs to 2 ms there and back, in falling order
		s.add(time.Duration(i) * 2 * time.Microsecond)
	}
	got := s.row(2)
	want := LatRow{Min: 1, Max: 1000, Typical: 500, Avg: 500.5, Stdev: math.Sqrt((1000*1000 - 1) / 12.0), P99: 990, P999: 999}
	for _, v := range []struct {
		name      string
		got, want float64
	}{
		{"min", got.Min, want.Min},
		{"max", got.Max, want.Max},
		{"typical", got.Typical, want.Typical},
		{"avg", got.Avg, want.Avg},
		{"stdev", got.Stdev, want.Stdev},
		{"99%", got.P99, want.P99},
		{"99.9%", got.P999, want.P999},
	} {
		if math.Abs(v.got-v.want) > 1e-6 {
			t.Errorf("%s: got %v, want %v", v.name, v.got, v.want)
		}
	}
	if empty := (&samples{}).row(1); *empty != (LatRow{}) {
		t.Errorf("no samples: got %+v", empty)
	}
}

// A long run keeps its memory bounded and its figures right.
func TestSamplesOfALongRun(t *testing.T) {
	var s samples
	const n = 5*maxSamples + 3
	for i := range n {
		s.add(time.Duration(i%1000) * time.Microsecond)
	}
	if len(s.v) > maxSamples || cap(s.v) > 2*maxSamples {
		t.Errorf("kept: got %d samples, limit %d", len(s.v), maxSamples)
	}
	r := s.row(1)
	if s.n != n || r.Min != 0 || r.Max != 999 || math.Abs(r.Typical-499) > 8 || math.Abs(r.P99-989) > 8 || math.Abs(r.Avg-499.5) > 0.1 {
		t.Errorf("got %d samples, %+v", s.n, r)
	}
}

func TestPeak(t *testing.T) {
	start := time.Unix(100, 0)
	byCount := newPeak(&Params{Iters: 100, QPs: 1}, start) // parts of 10
	for i, ms := range []int{100, 200, 250, 350, 450} {
		byCount.at(start.Add(time.Duration(ms)*time.Millisecond), int64(10*(i+1)))
	}
	if got, want := byCount.best, 10/0.05; math.Abs(got-want) > 1e-6 {
		t.Errorf("by count: got %v operations a second, want %v", got, want)
	}
	byTime := newPeak(&Params{Duration: time.Second}, start) // parts of 100 ms
	for _, x := range []struct {
		ms   int
		done int64
	}{{50, 900}, {100, 1000}, {150, 1001}, {200, 4000}} {
		byTime.at(start.Add(time.Duration(x.ms)*time.Millisecond), x.done)
	}
	if got, want := byTime.best, 3000/0.1; math.Abs(got-want) > 1e-6 {
		t.Errorf("by time: got %v operations a second, want %v", got, want)
	}
	r := bwRow(1<<20, 50, time.Second, 10)
	if *r != (BWRow{Peak: 50, Average: 50, MsgRate: 50e-6}) {
		t.Errorf("row whose best part is below its average: got %+v", *r)
	}
}

// Every figure stands under its heading, also the widest.
func TestTable(t *testing.T) {
	heads := func(latency bool) string {
		var b strings.Builder
		PrintHeader(&b, &Report{Params: Params{Op: Send, Latency: latency, MTU: 5, QPs: 1}})
		lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
		return lines[len(lines)-1]
	}
	for _, c := range []struct {
		name string
		row  Row
	}{
		{"bandwidth", Row{Size: 65536, Iters: 5000, BW: &BWRow{Peak: 1234.567, Average: 1000.1, MsgRate: 0.123456}}},
		{"largest bandwidth", Row{Size: 8388608, Iters: 123456789012, BW: &BWRow{Peak: 123456.7, Average: 123456.7, MsgRate: 12.5}}},
		{"latency", Row{Size: 2, Iters: 1000, Lat: &LatRow{1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5}}},
		{"largest latency", Row{Size: 8388608, Iters: 1234567890, Lat: &LatRow{123456.7, 123456.7, 123456.7, 123456.7, 123456.7, 123456.7, 123456.7}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b strings.Builder
			PrintRow(&b, &c.row)
			head, line := heads(c.row.Lat != nil), strings.TrimRight(b.String(), "\n")
			var at []int // where the figures begin
			for i := range line {
				if line[i] != ' ' && (i == 0 || line[i-1] == ' ') {
					at = append(at, i)
				}
			}
			// perftest's headings, some of two words
			names := strings.Fields(strings.NewReplacer("BW ", "BW_", "% p", "%_p").Replace(head))
			if len(at) != len(names) {
				t.Fatalf("got %d figures under %d headings:\n%s\n%s", len(at), len(names), head, line)
			}
			for i, name := range names {
				want := strings.Index(head, strings.NewReplacer("BW_", "BW ", "%_p", "% p").Replace(name))
				if d := at[i] - want; d < 0 || d > 1 {
					t.Errorf("%s: figure at column %d, heading at %d:\n%s\n%s", name, at[i], want, head, line)
				}
			}
		})
	}
}

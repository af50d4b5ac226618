package perf

import (
	"math"
	"slices"
	"time"
)

// Row is the result of one size.
type Row struct {
	Size    int           `json:"bytes"`
	Iters   int64         `json:"iterations"` // of all queue pairs
	Elapsed time.Duration `json:"elapsed_ns"`
	Checked bool          `json:"checked"` // the data was compared and right

	BW  *BWRow  `json:"bandwidth,omitempty"`
	Lat *LatRow `json:"latency,omitempty"`
}

// BWRow is a bandwidth, in MiB (2^20 bytes) and 10^6 messages a second.
type BWRow struct {
	Peak    float64 `json:"peak_mib_per_sec"` // of the best tenth
	Average float64 `json:"average_mib_per_sec"`
	MsgRate float64 `json:"mpps"`
}

// LatRow is a latency, in microseconds.
type LatRow struct {
	Min     float64 `json:"t_min_usec"`
	Max     float64 `json:"t_max_usec"`
	Typical float64 `json:"t_typical_usec"` // the median
	Avg     float64 `json:"t_avg_usec"`
	Stdev   float64 `json:"t_stdev_usec"`
	P99     float64 `json:"t_99_usec"`
	P999    float64 `json:"t_99_9_usec"`
}

// peak finds the best of about ten parts of a run.
type peak struct {
	every int64         // operations of a part; 0: part by time
	part  time.Duration // else the time of a part

	last time.Time
	done int64
	best float64 // operations a second
}

func newPeak(p *Params, start time.Time) peak {
	if p.Duration > 0 {
		return peak{part: p.Duration / 10, last: start}
	}
	return peak{every: max(int64(p.Iters)*int64(p.QPs)/10, 1), last: start}
}

// at takes note of how many operations are done.
func (k *peak) at(now time.Time, done int64) {
	d := now.Sub(k.last)
	if d <= 0 || k.every > 0 && done-k.done < k.every || k.every == 0 && d < k.part {
		return
	}
	k.best = max(k.best, float64(done-k.done)/d.Seconds())
	k.last, k.done = now, done
}

func bwRow(size int, count int64, elapsed time.Duration, best float64) *BWRow {
	rate := float64(count) / max(elapsed, 1).Seconds()
	mib := float64(size) / (1 << 20)
	return &BWRow{Peak: max(best, rate) * mib, Average: rate * mib, MsgRate: rate / 1e6}
}

// maxSamples bounds the memory of a long run: every second sample is dropped
// when there are as many.
const maxSamples = 1 << 20

// samples are the times of single operations.
type samples struct {
	v        []time.Duration // every stride-th
	stride   int64
	n        int64
	min, max time.Duration
	mean, m2 float64 // Welford's running mean, and sum of squared deviations, ns
}

func (s *samples) add(d time.Duration) {
	if s.n == 0 {
		s.min, s.max, s.stride = d, d, 1
	}
	if s.n%s.stride == 0 {
		if len(s.v) == maxSamples {
			for i := range maxSamples / 2 {
				s.v[i] = s.v[2*i]
			}
			s.v = s.v[:maxSamples/2]
			s.stride *= 2
		}
		if s.n%s.stride == 0 {
			s.v = append(s.v, d)
		}
	}
	s.n++
	s.min, s.max = min(s.min, d), max(s.max, d)
	delta := float64(d) - s.mean
	s.mean += delta / float64(s.n)
	s.m2 += delta * (float64(d) - s.mean)
}

// row gives the figures, each divided by parts: 2 turns a round trip into the
// way there.
func (s *samples) row(parts float64) *LatRow {
	if s.n == 0 {
		return &LatRow{}
	}
	slices.Sort(s.v)
	us := func(ns float64) float64 { return ns / parts / 1e3 }
	at := func(q float64) float64 {
		i := int(math.Ceil(q*float64(len(s.v)))) - 1
		return us(float64(s.v[max(i, 0)]))
	}
	return &LatRow{
		Min: us(float64(s.min)), Max: us(float64(s.max)), Typical: at(0.5), Avg: us(s.mean),
		Stdev: us(math.Sqrt(s.m2 / float64(s.n))), P99: at(0.99), P999: at(0.999),
	}
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Sizes of the run. A figure takes about a second: a warm-up round, which is not counted, says how many messages that
// are, and every round says it for the next.
const (
	aim        = time.Second
	warmBytes  = 8 << 20 // perftest wants five messages
	leastBytes = 8 << 20
	mostBytes  = 256 << 20
	warmTurns  = 200 // there and back
	leastTurns = 500
	mostTurns  = 10_000
	conns      = 100              // connections at a time
	longEnough = 13 * time.Minute // then no further round begins
)

// A config is one thing that both adapters are asked for.
type config struct {
	Name    string
	Op      string // write, read, send, connect
	Latency bool
	Size    int
	MTU     int
	Iters   int
}

// sized is the configuration for a run of about a second at the speed of an earlier one, 0 for the warm-up.
func (c config) sized(speed float64) config {
	switch {
	case c.Op == opConnect:
		c.Iters = conns
	case c.Latency && speed == 0:
		c.Iters = warmTurns
	case c.Latency: // in microseconds, one way
		c.Iters = int(min(max(aim.Seconds()*1e6/(2*speed), leastTurns), mostTurns))
	case speed == 0:
		c.Iters = warmBytes / c.Size
	default:
		c.Iters = int(min(max(speed*1e9*aim.Seconds(), leastBytes), mostBytes)) / c.Size
	}
	return c
}

// configs are the rows, in their order.
func configs() []config {
	var all []config
	for _, op := range []string{"write", "read", "send"} {
		for _, size := range []int{64 << 10, 1 << 20} {
			for _, mtu := range []int{1024, 4096} {
				text := "64 KiB"
				if size == 1<<20 {
					text = "1 MiB"
				}
				all = append(all, config{
					Name: fmt.Sprintf("%s %s, MTU %d", strings.ToUpper(op), text, mtu),
					Op:   op, Size: size, MTU: mtu,
				})
			}
		}
	}
	return append(all, config{Name: latencyName, Op: "write", Latency: true, Size: 2, MTU: 4096}, config{Name: connectName, Op: opConnect})
}

// A figure is what one run gave: GB/s, microseconds for half a round trip, or connections a second.
type figure struct {
	value  float64       // GB/s; typical latency; connections a second
	mean   float64       // latency only
	claims time.Duration // how long the stream took, as the program says; 0: it does not
	wall   time.Duration // how long its client ran
}

// An adapter measures a configuration once.
type adapter interface {
	measure(ctx context.Context, c config) (figure, error)
}

// inside measures: every configuration once a round for both, so that a disturbed minute disturbs all alike.
func (o options) inside(ctx context.Context) error {
	filter, err := regexp.Compile(o.run)
	if err != nil {
		return err
	}
	fmt.Println(beginWord)
	begin := time.Now()
	r := &result{Kernel: kernel(), CPUs: runtime.NumCPU(), CPU: cpuModel()}
	if r.CRC, err = timeCRC(); err != nil {
		return err
	}
	for _, c := range r.CRC {
		fmt.Printf("CRC by %s: %.0f ns a KiB, copied %.0f\n", c.Name, c.NsPerKiB, c.Copying)
	}
	soft, err := startSoftroce(ctx, o.softroce, strings.Fields(o.flags), r)
	if err != nil {
		return err
	}
	defer soft.stop()
	before := rxeCounters()
	asked := slices.DeleteFunc(configs(), func(c config) bool { return !filter.MatchString(c.Name) })
	ab := &interleaved{adapters: [2]adapter{soft, rxe{}}, speed: map[string][2]float64{}, result: r}
	for round := 0; round <= o.rounds && time.Since(begin) < longEnough; round++ {
		for _, c := range asked {
			if ctx.Err() == nil {
				ab.both(ctx, c, round)
			}
		}
		r.Rounds = round
	}
	r.RXECounters = increase(before, rxeCounters())
	if r.Retransmissions, err = soft.retransmissions(ctx); err != nil {
		return err
	}
	r.Elapsed = time.Since(begin)
	if err := r.complete(asked); err != nil {
		return err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	fmt.Println(resultWord + string(data))
	return nil
}

// interleaved is the run: softroce and rxe take turns.
type interleaved struct {
	adapters [2]adapter // softroce, rxe
	speed    map[string][2]float64
	result   *result
}

// both measures a configuration for softroce and rxe; who is first changes from round to round. Round 0 is the warm-up.
// Where one fails, the other's figure of that round does not count either.
func (ab *interleaved) both(ctx context.Context, c config, round int) {
	name := "warm-up"
	if round > 0 {
		name = fmt.Sprintf("round %d", round)
	}
	var got [2]figure
	last := ab.speed[c.Name]
	for i := range got {
		who := (i + round) % 2
		var err error
		if got[who], err = ab.adapters[who].measure(ctx, c.sized(last[who])); err == nil {
			err = got[who].check()
		}
		if err != nil {
			text := strings.ReplaceAll(fmt.Sprintf("%s: %s: %v", name, c.Name, err), "\n", "; ")
			ab.result.Failed = append(ab.result.Failed, text)
			fmt.Printf("failed: %s\n", text)
			return
		}
	}
	ab.speed[c.Name] = [2]float64{got[0].value, got[1].value}
	if round > 0 {
		ab.result.add(c, got[0], got[1])
	}
	fmt.Printf("%s: %-26s softroce %8.4g, rxe %8.4g %s\n", name, c.Name, got[0].value, got[1].value, c.unit())
}

// check refuses a stream that took longer, by the program's own clock, than the program ran.
func (f figure) check() error {
	if f.claims > f.wall+f.wall/20 {
		return fmt.Errorf("a stream of %v, its program says, but it ran for %v", f.claims, f.wall)
	}
	return nil
}

func (c config) unit() string {
	switch {
	case c.Op == opConnect:
		return "conns/s"
	case c.Latency:
		return "us"
	}
	return "GB/s"
}

func kernel() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "an unknown kernel"
	}
	return strings.TrimSpace(string(b))
}

func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "an unknown CPU"
	}
	for l := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "an unknown CPU"
}

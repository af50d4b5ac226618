package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// rxe is the guest's kernel adapter on eth0, measured by perftest from its own address to its own address: the only
// way in which it works within one machine.
type rxe struct{}

const rxeAddress = "10.77.0.11"

// rxeFlags are those of both ends. A GID by IPv4; an ACK timeout of one second, since with perftest's own (67 ms) the
// kernel's timer fires amid a stream on an emulated CPU and it sends again.
var rxeFlags = []string{"-d", "rxe0", "-x", "1", "-F", "-u", "18"}

func (rxe) measure(ctx context.Context, c config) (figure, error) {
	if c.Op == opConnect {
		return connect(ctx, c, []string{"cmtime"}, []string{"cmtime", "-s", rxeAddress, "-c", fmt.Sprint(c.Iters)}, []string{"rdma", "resource", "show", "cm_id"})
	}
	program := "ib_" + c.Op + "_bw"
	if c.Latency {
		program = "ib_" + c.Op + "_lat"
	}
	args := append([]string{program}, rxeFlags...)
	args = append(args, "-p", fmt.Sprint(serverPort), "-m", fmt.Sprint(c.MTU), "-s", fmt.Sprint(c.Size), "-n", fmt.Sprint(c.Iters))
	args = append(args, c.receives()...)
	client, err := pair(ctx, args, append(args[:len(args):len(args)], rxeAddress))
	if err != nil {
		return figure{}, fmt.Errorf("%s: %w", program, err)
	}
	f, err := readPerftest(client.out.String()+client.complaint.String(), c)
	f.wall = client.took
	return f, err
}

// receives has every receive of a SEND posted before it starts, so that nobody is told to wait.
func (c config) receives() []string {
	if c.Op != "send" {
		return nil
	}
	return []string{"-r", fmt.Sprint(c.Iters)}
}

// readPerftest finds the figures in perftest's table. Its MB is 2^20 bytes.
func readPerftest(out string, c config) (figure, error) {
	if strings.Contains(out, "Conflicting CPU frequency") {
		return figure{}, errors.New("perftest does not trust its clock")
	}
	for l := range strings.Lines(out) {
		f := strings.Fields(l)
		if len(f) < 5 || f[0] != fmt.Sprint(c.Size) || f[1] != fmt.Sprint(c.Iters) {
			continue
		}
		typical, average := 3, 3 // bandwidth: bytes, iterations, peak, average, messages
		if c.Latency {
			typical, average = 4, 5 // latency: bytes, iterations, least, most, typical, average ...
		}
		if average >= len(f) {
			continue
		}
		value, err := strconv.ParseFloat(f[typical], 64)
		mean, err2 := strconv.ParseFloat(f[average], 64)
		if err := errors.Join(err, err2); err != nil {
			return figure{}, err
		}
		return c.figure(value, mean)
	}
	return figure{}, fmt.Errorf("no figures in %q", out)
}

// figure makes one of MiB/s, or of microseconds.
func (c config) figure(value, mean float64) (figure, error) {
	if value <= 0 || mean <= 0 {
		return figure{}, fmt.Errorf("figures of %v and %v", value, mean)
	}
	if c.Latency {
		return figure{value: value, mean: mean}, nil
	}
	n := float64(c.Size) * float64(c.Iters)
	rate := value * (1 << 20)
	return figure{value: rate / 1e9, claims: time.Duration(n / rate * float64(time.Second))}, nil
}

// rxeCounters are the kernel's own of the device.
func rxeCounters() map[string]int64 {
	files, _ := filepath.Glob("/sys/class/infiniband/rxe0/ports/1/hw_counters/*") // the pattern is good
	m := map[string]int64{}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		if v, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
			m[filepath.Base(name)] = v
		}
	}
	delete(m, "lifespan") // a setting
	return m
}

// increase is what was counted between two readings; what stood still is left out.
func increase(before, after map[string]int64) map[string]int64 {
	m := map[string]int64{}
	for name, v := range after {
		if d := v - before[name]; d != 0 {
			m[name] = d
		}
	}
	return m
}

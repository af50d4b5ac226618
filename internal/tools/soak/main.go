// Command soak runs random worlds of the protocol engine (internal/soak) until the time is over, on every core,
// and ends on a line with the packets, the seeds and the faults by kind. The first world that fails ends it: its
// last faults are printed, and the command that makes the same world again.
//
//	soak [-seconds N] [-seed N] [-seeds N] [-adapters N] [-requests N] [-workers N] [-trace]
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/softroce/softroce/internal/soak"
)

// options are the flags.
type options struct {
	seconds, workers int
	seed, seeds      uint64
	world            soak.Config
	trace            bool
}

func main() {
	var o options
	flag.IntVar(&o.seconds, "seconds", 600, "how long new worlds are begun")
	flag.Uint64Var(&o.seed, "seed", 0, "the first world's seed; 0: from the clock")
	flag.Uint64Var(&o.seeds, "seeds", 0, "so many worlds at most; 0: as many as there is time for")
	flag.IntVar(&o.world.Adapters, "adapters", 0, "adapters of each world; 0: drawn")
	flag.IntVar(&o.world.Requests, "requests", 0, "requests of each world; 0: drawn")
	flag.IntVar(&o.workers, "workers", runtime.GOMAXPROCS(0), "worlds at once")
	flag.BoolVar(&o.trace, "trace", false, "print every packet, completion and fault; one world at once")
	flag.Parse()
	if o.seed == 0 {
		o.seed = uint64(time.Now().Unix())
	}
	if o.trace {
		o.workers = 1
		o.world.Trace = func(s string) { fmt.Println(s) }
	}
	os.Exit(run(&o, os.Stdout))
}

// state is what the workers share.
type state struct {
	o   *options
	out io.Writer

	mu     sync.Mutex
	next   uint64 // seed
	worlds uint64
	total  soak.Result
	failed bool
	until  time.Time
	begun  time.Time
	told   time.Time
}

// run runs worlds; the result is the exit status.
func run(o *options, out io.Writer) int {
	now := time.Now()
	s := &state{o: o, out: out, next: o.seed, begun: now, told: now, until: now.Add(time.Duration(o.seconds) * time.Second)}
	var wg sync.WaitGroup
	for range max(1, o.workers) {
		wg.Go(s.work)
	}
	wg.Wait()
	verdict := "ok"
	if s.failed {
		verdict = "FAILED"
	}
	fmt.Fprintf(out, "soak: %s: %v, seeds %d to %d; %v\n", verdict, time.Since(s.begun).Round(time.Second), o.seed, o.seed+s.worlds-1, &s.total)
	if s.failed {
		return 1
	}
	return 0
}

// work runs one world behind the other.
func (s *state) work() {
	for {
		seed, ok := s.take()
		if !ok {
			return
		}
		c := s.o.world
		c.Seed = seed
		r, err := world(c)
		s.add(seed, &r, err)
	}
}

// take is the next seed, false when it is over.
func (s *state) take() (uint64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	done := s.next - s.o.seed
	if s.failed || s.o.seeds > 0 && done >= s.o.seeds || s.o.seeds == 0 && done > 0 && !time.Now().Before(s.until) {
		return 0, false
	}
	s.next++
	return s.next - 1, true
}

// add counts a world, and tells of one that failed.
func (s *state) add(seed uint64, r *soak.Result, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.worlds++
	s.total.Add(r)
	if err != nil {
		s.failed = true
		fmt.Fprintf(s.out, "soak: seed %d failed %v\nthe same world again: make soak SEED=%d SEEDS=1%s (and TRACE=1 to see every packet)\n", seed, err, seed, s.o.words())
	}
	if now := time.Now(); now.Sub(s.told) >= time.Minute {
		s.told = now
		fmt.Fprintf(s.out, "soak: %v, %d worlds, %d packets\n", now.Sub(s.begun).Round(time.Second), s.worlds, s.total.Packets)
	}
}

// words are the further arguments that a world is made from.
func (o *options) words() (s string) {
	if o.world.Adapters != 0 {
		s += fmt.Sprintf(" ADAPTERS=%d", o.world.Adapters)
	}
	if o.world.Requests != 0 {
		s += fmt.Sprintf(" REQUESTS=%d", o.world.Requests)
	}
	return s
}

// world runs a world; a panic is an error.
func world(c soak.Config) (r soak.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return soak.Run(c)
}

package rdmatest_test

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softroce/softroce/pkg/rdmatest"
	"github.com/softroce/softroce/pkg/verbs"
)

// fatal is a test that notes how it is ended instead of ending.
type fatal struct {
	testing.TB
	why string
}

type ended struct{}

func (f *fatal) Fatalf(format string, args ...any) {
	f.why = fmt.Sprintf(format, args...)
	panic(ended{})
}

// refused is what a Net says that ends the test in f; "" if it does not.
func refused(t *testing.T, do func(n *rdmatest.Net, a, b *rdmatest.Adapter)) (why string) {
	t.Helper()
	f := &fatal{TB: t}
	n := rdmatest.New(f, rdmatest.Config{})
	a, b := n.Adapter("a"), n.Adapter("b")
	defer func() {
		if r := recover(); r != nil && r != any(ended{}) {
			panic(r)
		}
		why = f.why
	}()
	do(n, a, b)
	return ""
}

// What cannot be meant ends the test and says so: a number of 0, which a rule has for
// none said, would be all packets.
func TestRefusedRules(t *testing.T) {
	other := rdmatest.New(t, rdmatest.Config{}).Adapter("other")
	for _, c := range []struct {
		m    []rdmatest.Match
		want string
	}{
		{[]rdmatest.Match{rdmatest.Percent(0)}, "Percent(0)"},
		{[]rdmatest.Match{rdmatest.Percent(math.NaN())}, "no percentage"},
		{[]rdmatest.Match{rdmatest.Percent(101)}, "at most 100%"},
		{[]rdmatest.Match{rdmatest.Nth(0)}, "Nth(0)"},
		{[]rdmatest.Match{rdmatest.NthTo(0, 5)}, "NthTo(0)"},
		{[]rdmatest.Match{rdmatest.NthTo(5, 3)}, "ends before it begins"},
		{[]rdmatest.Match{rdmatest.First(0)}, "First(0)"},
		{[]rdmatest.Match{rdmatest.Every(0)}, "Every(0)"},
		{[]rdmatest.Match{rdmatest.QP(0)}, "QP(0)"},
		{[]rdmatest.Match{rdmatest.For(0)}, "For(0)"},
		{[]rdmatest.Match{rdmatest.Opcode()}, "no opcode"},
		{[]rdmatest.Match{rdmatest.PSN(1<<24, 1<<24)}, "24 bits"},
		{[]rdmatest.Match{rdmatest.Sent(other)}, "adapter other is of another Net"},
		{[]rdmatest.Match{rdmatest.Sent(other), rdmatest.Received(other)}, "said before"},
		{[]rdmatest.Match{rdmatest.From(other), rdmatest.To(other)}, "said before"},
	} {
		if got := refused(t, func(n *rdmatest.Net, _, _ *rdmatest.Adapter) { n.Drop(c.m...) }); !strings.Contains(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	for want, do := range map[string]func(n *rdmatest.Net, a, b *rdmatest.Adapter){
		"Duplicate(0)":           func(n *rdmatest.Net, _, _ *rdmatest.Adapter) { n.Duplicate(0) },
		"Reorder(0)":             func(n *rdmatest.Net, _, _ *rdmatest.Adapter) { n.Reorder(0) },
		"open a: it was killed":  func(_ *rdmatest.Net, a, _ *rdmatest.Adapter) { a.Kill(); a.Kill(); a.Open() },
		"rules for a: line 1: ":  func(_ *rdmatest.Net, a, _ *rdmatest.Adapter) { a.Impair("drop 200%") },
		"257 rules, at most 256": func(n *rdmatest.Net, a, _ *rdmatest.Adapter) { a.Impair(strings.Repeat("count\n", 256)); n.Drop() },
	} {
		if got := refused(t, do); !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := refused(t, func(n *rdmatest.Net, _, _ *rdmatest.Adapter) { n.Count(rdmatest.Match{}) }); got != "" {
		t.Errorf("the zero Match: %s", got)
	}
}

// Kills and restarts of one adapter by many goroutines end with one that serves.
func TestKillAndRestartAtOnce(t *testing.T) {
	n := rdmatest.New(t, rdmatest.Config{})
	a, b := n.Adapter("a"), n.Adapter("b")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 5 {
				a.Kill()
				a.Restart()
			}
		})
	}
	all.Wait()
	a.Restart()
	x, y := n.RC(a, b, verbs.RCConfig{})
	x.Write(y, 100)
	if wc := x.Wait(); wc.Status != verbs.WCSuccess {
		t.Errorf("afterwards: %v", wc.Status)
	}
}

// Worlds of adapters that die in mid-WRITE, with rules that hold packets back, leave
// no goroutine and no descriptor.
func TestWorldsLeaveNothing(t *testing.T) {
	world := func(t *testing.T, i int) {
		n := rdmatest.New(t, rdmatest.Config{Seed: uint64(i)})
		a, b := n.Adapter("a"), n.Adapter("b")
		n.Delay(time.Minute, time.Minute, rdmatest.Received(b), rdmatest.NthTo(20, 0))
		x, y := n.RC(a, b, verbs.RCConfig{Timeout: 12})
		count := n.Count(rdmatest.Received(b))
		x.Write(y, rdmatest.EndBytes)
		count.Wait(20)
		b.Kill()
		if i%2 == 0 {
			b.Restart()
		}
	}
	t.Run("first", func(t *testing.T) { world(t, 0) })
	descriptors := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skipf("no /proc: %v", err)
		}
		return len(d)
	}
	routines, fds := runtime.NumGoroutine(), descriptors()
	for i := range 20 {
		t.Run("", func(t *testing.T) { world(t, i) })
	}
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > routines || descriptors() > fds; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines and %d descriptors, of %d and %d before", runtime.NumGoroutine(), descriptors(), routines, fds)
		}
	}
}

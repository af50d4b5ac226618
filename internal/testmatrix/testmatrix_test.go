package testmatrix

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/softroce/softroce/pkg/udp4791"
)

func TestCell(t *testing.T) {
	for _, c := range []struct {
		gso, workers string
		offload      udp4791.Offload
		n            int
	}{
		{"", "", udp4791.OffloadAuto, 2},
		{"auto", "1", udp4791.OffloadAuto, 1},
		{"on", "3", udp4791.OffloadOn, 3},
		{"off", "8", udp4791.OffloadOff, 8},
	} {
		t.Setenv(EnvGSO, c.gso)
		t.Setenv(EnvWorkers, c.workers)
		if o, n := Offload(t), Workers(t, 2); o != c.offload || n != c.n {
			t.Errorf("%q and %q: got %v and %d, want %v and %d", c.gso, c.workers, o, n, c.offload, c.n)
		}
	}
}

// stopped is a test that fails.
type stopped struct {
	testing.TB
	said string
}

func (s *stopped) Helper() {}

func (s *stopped) Fatalf(f string, args ...any) {
	s.said = fmt.Sprintf(f, args...)
	runtime.Goexit()
}

// A cell that does not exist stops the test: a run that is not what it seems
// would pass for one.
func TestNoSuchCell(t *testing.T) {
	for _, c := range []struct {
		name, value string
		f           func(testing.TB)
	}{
		{EnvGSO, "yes", func(t testing.TB) { Offload(t) }},
		{EnvWorkers, "0", func(t testing.TB) { Workers(t, 1) }},
		{EnvWorkers, "9", func(t testing.TB) { Workers(t, 1) }},
		{EnvWorkers, "two", func(t testing.TB) { Workers(t, 1) }},
	} {
		t.Setenv(c.name, c.value)
		s := &stopped{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.f(s)
		}()
		<-done
		if !strings.Contains(s.said, c.name) || !strings.Contains(s.said, c.value) {
			t.Errorf("%s=%s: the test was stopped with %q, want the variable and its value", c.name, c.value, s.said)
		}
		t.Setenv(c.name, "")
	}
}

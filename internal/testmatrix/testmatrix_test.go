package testmatrix

import (
	"fmt"
	"net/netip"
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

// stopped is a test that fails or is skipped.
type stopped struct {
	testing.TB
	said string
}

func (s *stopped) Helper() {}

func (s *stopped) Fatalf(f string, args ...any) {
	s.said = fmt.Sprintf(f, args...)
	runtime.Goexit()
}

func (s *stopped) Skip(args ...any) {
	s.said = fmt.Sprint(args...)
	runtime.Goexit()
}

func (s *stopped) Skipf(f string, args ...any) { s.Skip(fmt.Sprintf(f, args...)) }

// says runs f with a test of its own, and gives what that was ended with.
func says(t *testing.T, f func(testing.TB)) string {
	t.Helper()
	s := &stopped{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(s)
	}()
	<-done
	return s.said
}

// A test ends where it has no meaning, with the reason, and nowhere else.
func TestSkips(t *testing.T) {
	about := func(t testing.TB) { SkipOn(t, "about sockets", udp4791.BackendTUN, udp4791.BackendPacket) }
	hosts := func(t testing.TB) { TUN(t, []netip.Addr{netip.MustParseAddr("127.0.0.1")}) }
	for _, c := range []struct {
		backend string
		f       func(testing.TB)
		want    string
	}{
		{"", about, ""},
		{"udp", about, ""},
		{"packet", about, "backend packet: about sockets"},
		{"tun", about, "backend tun: about sockets"},
		{"packet", hosts, ""},
		{"tun", hosts, "an interface's addresses are the host's; on a TUN link the adapter has its own"},
	} {
		t.Setenv(EnvBackend, c.backend)
		if got := says(t, c.f); got != c.want {
			t.Errorf("on %q: ended with %q, want %q", c.backend, got, c.want)
		}
	}
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
		{EnvBackend, "tap", func(t testing.TB) { Backend(t) }},
	} {
		t.Setenv(c.name, c.value)
		if said := says(t, c.f); !strings.Contains(said, c.name) || !strings.Contains(said, c.value) {
			t.Errorf("%s=%s: the test was stopped with %q, want the variable and its value", c.name, c.value, said)
		}
		t.Setenv(c.name, "")
	}
}

package perf

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/testdevices"
	"github.com/softroce/softroce/pkg/verbs"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

type outcome struct {
	rep *Report
	err error
}

// begin runs a side and delivers its outcome.
func begin(ctx context.Context, d *verbs.Device, cfg Config) <-chan outcome {
	out := make(chan outcome, 1)
	go func() {
		rep, err := Run(ctx, d, cfg)
		out <- outcome{rep, err}
	}()
	return out
}

// to makes a configuration the client's of a listener.
func to(l net.Listener, cfg Config) Config {
	cfg.Host, cfg.Port = "127.0.0.1", l.Addr().(*net.TCPAddr).Port
	return cfg
}

// Each test once, with its data checked.
func TestAll(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	for _, c := range []struct {
		name   string
		p      Params
		events bool
	}{
		{"write bandwidth", Params{Op: Write, Sizes: []int{1, 100, 4096, 20001}, Iters: 300}, false},
		{"write bandwidth, inline", Params{Op: Write, Sizes: []int{64}, Inline: 64, Iters: 300}, false},
		{"write bandwidth, queue pairs", Params{Op: Write, Sizes: []int{5000}, Iters: 100, QPs: 3, TxDepth: 7, CQMod: 7, MTU: 1}, false},
		{"write bandwidth, duration", Params{Op: Write, Sizes: []int{4096}, Duration: 50 * time.Millisecond, QPs: 2, TxDepth: 13, CQMod: 5}, false},
		{"write bandwidth, nothing but signals", Params{Op: Write, Sizes: []int{10}, Iters: 50, TxDepth: 1}, false},
		{"read bandwidth", Params{Op: Read, Sizes: []int{1, 20001}, Iters: 100, QPs: 2}, false},
		{"read bandwidth, events", Params{Op: Read, Sizes: []int{20001}, Iters: 100, RDAtomic: 1}, true},
		{"send bandwidth", Params{Op: Send, Sizes: []int{1, 100, 20001}, Iters: 300}, false},
		{"send bandwidth, few receives", Params{Op: Send, Sizes: []int{9000}, Iters: 200, QPs: 2, RxDepth: 2}, false},
		{"send bandwidth, events, duration", Params{Op: Send, Sizes: []int{3000}, Duration: 50 * time.Millisecond}, true},
		{"atomic bandwidth, add", Params{Op: Atomic, Iters: 200, QPs: 2}, false},
		{"atomic bandwidth, swap", Params{Op: Atomic, Iters: 200, QPs: 2, CompareSwap: true}, false},
		{"atomic bandwidth, swap, duration", Params{Op: Atomic, Duration: 50 * time.Millisecond, CompareSwap: true}, false},
		{"write latency", Params{Op: Write, Latency: true, Sizes: []int{1, 2, 64, 5000}, Iters: 300}, false},
		{"write latency, duration", Params{Op: Write, Latency: true, Duration: 50 * time.Millisecond}, false},
		{"write latency, immediate", Params{Op: Write, Latency: true, Imm: true, Sizes: []int{1, 8, 5000}, Iters: 300}, false},
		{"write latency, immediate, events", Params{Op: Write, Latency: true, Imm: true, Sizes: []int{8, 8}, Iters: 300}, true},
		{"write latency, nothing but signals", Params{Op: Write, Latency: true, Sizes: []int{8, 8}, Iters: 100, TxDepth: 3, CQMod: 1}, false},
		{"send latency, one signal in all", Params{Op: Send, Latency: true, Sizes: []int{8, 8}, Iters: 100, TxDepth: 3, CQMod: 3}, false},
		{"read latency", Params{Op: Read, Latency: true, Sizes: []int{2, 5000}, Iters: 50}, false},
		{"send latency", Params{Op: Send, Latency: true, Sizes: []int{2, 5000}, Iters: 50, RxDepth: 1}, false},
		{"send latency, events, duration", Params{Op: Send, Latency: true, Duration: 50 * time.Millisecond}, true},
		{"atomic latency", Params{Op: Atomic, Latency: true, Iters: 50}, false},
		{"atomic latency, swap", Params{Op: Atomic, Latency: true, Iters: 50, CompareSwap: true}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := listen(t)
			cfg := Config{Params: c.p, Events: c.events}
			cfg.Check = true
			server := cfg // all but the test is the client's to say
			server.Params = Params{Op: c.p.Op, Latency: c.p.Latency, Imm: c.p.Imm}
			server.Listener = l
			served := begin(t.Context(), devs[0], server)
			rep, err := Run(t.Context(), devs[1], to(l, cfg))
			s := <-served
			if err != nil || s.err != nil {
				t.Fatalf("client: %v, server: %v", err, s.err)
			}
			checkReport(t, &c.p, rep)
			if len(s.rep.Rows) != len(rep.Rows) || s.rep.Role != "server" || rep.Role != "client" || s.rep.Test != rep.Test {
				t.Errorf("server's report: got %+v", s.rep)
			}
		})
	}
}

func checkReport(t *testing.T, p *Params, rep *Report) {
	t.Helper()
	if want := max(len(p.Sizes), 1); len(rep.Rows) != want {
		t.Fatalf("rows: got %d, want %d", len(rep.Rows), want)
	}
	for _, r := range rep.Rows {
		want := int64(p.Iters) * int64(max(p.QPs, 1))
		if p.Duration == 0 && r.Iters != want || r.Iters < 1 || r.Elapsed <= 0 || !r.Checked {
			t.Errorf("row: got %+v, want %d operations, checked", r, want)
		}
		if p.Duration > 0 && r.Elapsed < p.Duration {
			t.Errorf("row: took %v, less than the duration of %v", r.Elapsed, p.Duration)
		}
		switch {
		case (r.Lat != nil) != p.Latency || (r.BW != nil) == p.Latency:
			t.Errorf("row: got %+v", r)
		case r.Lat != nil:
			if l := r.Lat; l.Min <= 0 || l.Min > l.Typical || l.Typical > l.P99 || l.P99 > l.P999 || l.P999 > l.Max || l.Avg > l.Max {
				t.Errorf("latency: got %+v", l)
			}
		case r.BW.Average <= 0 || r.BW.Peak < r.BW.Average || r.BW.MsgRate <= 0:
			t.Errorf("bandwidth: got %+v", r.BW)
		}
	}
}

// The check of the data must be able to fail: one byte is changed in each
// place that it looks at.
func TestCheckSeesWrongData(t *testing.T) {
	devs, _ := testdevices.Open(t, 1)
	dev := devs[0]
	const size = 300
	for _, c := range []struct {
		name   string
		p      Params
		client bool
		spoil  func(s *session)
	}{
		{"written", Params{Op: Write}, false, func(s *session) { s.mr.Bytes()[s.lay.target(1, 0)+size-1] ^= 1 }},
		{"written, latency", Params{Op: Write, Latency: true}, false, func(s *session) { s.mr.Bytes()[s.lay.target(0, 0)+size-2] ^= 1 }},
		{"read", Params{Op: Read}, true, func(s *session) { s.mr.Bytes()[s.lay.local(1)] ^= 1 }},
		{"counted", Params{Op: Atomic}, false, func(s *session) { s.mr.Bytes()[s.lay.target(1, 0)] ^= 1 }},
		{"received", Params{Op: Send}, false, func(s *session) { s.mr.Bytes()[s.lay.target(1, 1)+size/2] ^= 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &session{cfg: &Config{}, dev: dev}
			if c.client {
				s.cfg.Host = "client"
			}
			var err error
			if s.port, err = dev.QueryPort(1); err != nil {
				t.Fatal(err)
			}
			c.p.Check, c.p.QPs = true, 2
			if c.p.Op != Atomic {
				c.p.Sizes = []int{size}
			}
			if c.p.Latency {
				c.p.QPs = 1
			}
			s.p = c.p.withDefaults(&s.port, &s.attr)
			defer s.close()
			if err := s.open(); err != nil {
				t.Fatal(err)
			}
			s.prepare(0)
			verify := func() error { return s.verify(0, make([]int64, s.p.QPs)) }
			if s.p.Op == Send {
				verify = func() error {
					return s.received(&verbs.WC{WRID: recvMark | mark(1, 1), ByteLen: size}, size, 0)
				}
			}
			// as the peer would have done it
			for q := range s.qps {
				for slot := range min(int(s.lay.slots), 2) {
					if s.p.Op != Atomic {
						fill(s.mr.Bytes()[s.lay.target(q, slot):][:size], seed(q, 0))
						fill(s.mr.Bytes()[s.lay.local(q):][:size], seed(q, 0))
					}
				}
			}
			if err := verify(); errors.Is(err, ErrData) {
				t.Fatalf("right data: %v", err)
			}
			if s.p.Op == Send { // it was cleared to be posted again
				fill(s.mr.Bytes()[s.lay.target(1, 1):][:size], seed(1, 0))
			}
			c.spoil(s)
			if err := verify(); !errors.Is(err, ErrData) {
				t.Errorf("spoiled data: got %v, want ErrData", err)
			}
		})
	}
}

// The death of one side ends the other, also where it polls memory and has
// nothing in flight.
func TestPeerDies(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	for _, p := range []Params{
		{Op: Write, Latency: true}, {Op: Send, Latency: true}, {Op: Read, Latency: true}, {Op: Send, Sizes: []int{100}}, {Op: Write},
	} {
		for _, dies := range []string{"server", "client"} {
			t.Run(p.Name()+", "+dies, func(t *testing.T) {
				l := listen(t)
				live, kill := context.WithCancel(t.Context())
				defer kill()
				ctx := map[string]context.Context{"server": t.Context(), "client": t.Context()}
				ctx[dies] = live
				cfg := Config{Params: p}
				cfg.Duration = time.Hour
				server := cfg
				server.Listener = l
				cfg.Progress = func(Progress) { kill() }
				out := map[string]<-chan outcome{"server": begin(ctx["server"], devs[0], server)}
				out["client"] = begin(ctx["client"], devs[1], to(l, cfg))
				if o := <-out[dies]; !errors.Is(o.err, context.Canceled) {
					t.Errorf("%s: got %v, want context.Canceled", dies, o.err)
				}
				delete(out, dies)
				for who, ch := range out {
					if o := <-ch; !errors.Is(o.err, ErrPeer) {
						t.Errorf("%s: got %v, want ErrPeer", who, o.err)
					}
				}
			})
		}
	}
}

// A client is told why the server will not have it.
func TestRefusalReachesTheClient(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	l := listen(t)
	served := begin(t.Context(), devs[0], Config{Params: Params{Op: Write, Latency: true}, Listener: l})
	_, err := Run(t.Context(), devs[1], to(l, Config{Params: Params{Op: Write}}))
	if s := <-served; s.err == nil || err == nil || !strings.Contains(err.Error(), "runs write_bw, this side write_lat") {
		t.Errorf("client: %v, server: %v", err, s.err)
	}
}

func TestAllSizes(t *testing.T) {
	s := AllSizes()
	if len(s) != 23 || s[0] != 2 || s[22] != 8388608 {
		t.Errorf("got %v", s)
	}
}

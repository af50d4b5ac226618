package nic

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
)

// Each level refuses with a text that names the resource, the level and the
// limit, and a refused charge books nothing anywhere.
func TestLedgerNamesTheLimit(t *testing.T) {
	tests := []struct {
		name   string
		limits Limits
		want   []string
	}{
		{"program", Limits{Program: Quota{QPs: 3}}, []string{"queue pairs", "this program", "3 in use", "limit 3"}},
		{"user", Limits{User: Quota{QPs: 3}}, []string{"queue pairs", "user 1000", "limit 3"}},
		{"adapter", Limits{Adapter: Quota{QPs: 3}}, []string{"queue pairs", "this adapter", "limit 3"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLedger(tt.limits.withDefaults())
			a, err := l.open(1000)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if err := a.charge(ResourceQPs, 1); err != nil {
					t.Fatal(err)
				}
			}
			err = a.charge(ResourceQPs, 1)
			if !errors.Is(err, syscall.ENOMEM) {
				t.Fatalf("fourth QP: %v, want ENOMEM", err)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
			if n := l.usage()[ResourceQPs]; n != 3 {
				t.Errorf("%d QPs booked, want 3", n)
			}
			a.release(ResourceQPs, 1)
			if err := a.charge(ResourceQPs, 1); err != nil {
				t.Errorf("after a release: %v", err)
			}
			a.close()
			if got := l.usage(); got != [numResources]uint64{} {
				t.Errorf("after close: %v booked", got)
			}
			if len(l.users) != 0 {
				t.Errorf("after close: %d users kept", len(l.users))
			}
		})
	}
}

func TestLedgerDoesNotWrap(t *testing.T) {
	l := newLedger(Limits{}.withDefaults())
	a, err := l.open(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.charge(ResourceRegisteredBytes, 5); err != nil {
		t.Fatal(err)
	}
	if err := a.charge(ResourceRegisteredBytes, ^uint64(0)); !errors.Is(err, syscall.ENOMEM) {
		t.Fatalf("2^64-1 more bytes: %v, want ENOMEM", err)
	}
}

func TestLedgerBoundsProgramsOfAUser(t *testing.T) {
	l := newLedger(Limits{User: Quota{Programs: 2}}.withDefaults())
	for range 2 {
		if _, err := l.open(7); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.open(7); !errors.Is(err, syscall.ENOMEM) || !strings.Contains(err.Error(), "programs of user 7") {
		t.Fatalf("third program: %v", err)
	}
	if _, err := l.open(8); err != nil {
		t.Fatalf("another user's program: %v", err)
	}
}

func TestLedgerConcurrent(t *testing.T) {
	l := newLedger(Limits{Adapter: Quota{QPs: 100}}.withDefaults())
	var wg sync.WaitGroup
	for uid := range uint32(8) {
		wg.Go(func() {
			a, err := l.open(uid)
			if err != nil {
				t.Error(err)
				return
			}
			for range 200 {
				if a.charge(ResourceQPs, 1) == nil && l.usage()[ResourceQPs] > 100 {
					t.Error("over the limit")
				}
			}
			a.close()
		})
	}
	wg.Wait()
	if got := l.usage(); got != [numResources]uint64{} {
		t.Errorf("%v still booked", got)
	}
}

// Every resource has a quota field, a default at every level and a name.
func TestEveryResourceIsBounded(t *testing.T) {
	l := Limits{}.withDefaults()
	names := map[string]bool{}
	for r := range numResources {
		for _, q := range []*Quota{&l.Adapter, &l.User, &l.Program} {
			if *q.field(r) == 0 {
				t.Errorf("%v has no default", r)
			}
		}
		if names[r.String()] {
			t.Errorf("name %q twice", r)
		}
		names[r.String()] = true
	}
}

// A program that is over its user's limit is told so, but not any number of
// them at a time: each waits for its hello with a descriptor of the adapter's.
func TestRefusalsAreBounded(t *testing.T) {
	a := startAdapter(t, func(c *Config) { c.Limits.User.Programs = 1 })
	rawHello(t, a)
	r := rawConn(t, a)
	r.wantRefusal(r.call(uapi.OpHello, &uapi.HelloRequest{Version: uapi.Version}), syscall.ENOMEM, "programs of user")
	for ctx := within(t); a.refusing.Load() != 0; { // the first one's hang-up is seen
		if ctx.Err() != nil {
			t.Fatal("a refusal that is over is still counted")
		}
		runtime.Gosched()
	}
	a.refusing.Add(maxRefusing) // as many wait already
	c, served := connect(t, a)
	_ = c.Send(helloMessage(), nil) // the adapter may have hung up
	if n, _, err := c.Recv(make([]byte, shm.MaxMessage)); err == nil {
		t.Errorf("one more was answered, with %d bytes", n)
	}
	<-served
	if n := a.refusing.Load(); n != maxRefusing {
		t.Errorf("%d refusals under way, want %d", n, maxRefusing)
	}
}

// What programs do, however often, fills no log: a few lines a second, and how
// many were kept back.
func TestRateLimit(t *testing.T) {
	var r rateLimit
	now := time.Unix(1000, 0)
	said, kept := 0, uint64(0)
	for range 10_000 { // in ten seconds
		now = now.Add(time.Millisecond)
		if n, ok := r.allowSome(now, 3); ok {
			said++
			kept += n
		}
	}
	if said != 30 || said+int(kept+r.suppressed) != 10_000 {
		t.Errorf("%d lines, %d kept back, %d to be told yet; want 30 lines and 10,000 in all", said, kept, r.suppressed)
	}
	if n, ok := r.allow(now.Add(time.Hour)); !ok || n != 997 {
		t.Errorf("after an hour: %d, %t; want those of the last second told", n, ok)
	}
}

func TestLimitsSet(t *testing.T) {
	var l Limits
	for r := range numResources {
		for i, q := range []*Quota{&l.Adapter, &l.User, &l.Program} {
			want := uint64(1+r)*10 + uint64(i)
			text := fmt.Sprintf("%s:%s=%d", []string{"adapter", "user", "program"}[i], r.Label(), want)
			if err := l.Set(text); err != nil || *q.field(r) != want {
				t.Errorf("%s: got %d, %v", text, *q.field(r), err)
			}
		}
	}
	before := l
	for text, says := range map[string]string{
		"":                       "LEVEL:RESOURCE=NUMBER",
		"user:queue_pairs":       "LEVEL:RESOURCE=NUMBER",
		"user:queue_pairs=0":     "1 or more",
		"user:queue_pairs=-1":    "1 or more",
		"user:queue_pairs=many":  "1 or more",
		"queue_pairs=1":          "LEVEL:RESOURCE=NUMBER",
		"group:queue_pairs=1":    "adapter, user, program",
		"user:queue pairs=1":     "queue_pairs",
		"program:camels=1":       "registered_bytes",
		"user:queue_pairs=1=2":   "1 or more",
		"user:registered_bytes=": "1 or more",
	} {
		if err := l.Set(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: got %v, want an error that says %q", text, err, says)
		}
	}
	if l != before {
		t.Error("a refused text changed the limits")
	}
}

// The operator's document has every quota's default.
func TestDefaultQuotasAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	l := Limits{}.withDefaults()
	for r := range numResources {
		row := fmt.Sprintf("| %s | %d | %d | %d |\n", r.Label(), *l.Adapter.field(r), *l.User.field(r), *l.Program.field(r))
		if !strings.Contains(string(doc), row) {
			t.Errorf("docs/operations.md has no row %s", row)
		}
	}
}

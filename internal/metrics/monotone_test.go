package metrics

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/softroce/softroce/internal/nic"
	"github.com/softroce/softroce/internal/testaddr"
)

// Field case F66: while programs and their queue pairs come and go, what is
// served over HTTP parses, and is clean, at every scrape; no counter ever goes
// down, and no series of an adapter or a worker is lost once it was there.
func TestF66CountersNeverGoDown(t *testing.T) {
	a, err := nic.New(nic.Config{Addrs: testaddr.Take(t, 1), Workers: 2, RecvBuffer: 212992})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	srv := httptest.NewServer(Handler(a))
	defer srv.Close()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(New(a))
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			if err := churn(a); err != nil {
				t.Error(err)
				return
			}
		}
	})
	last := make(map[string]float64)
	for i := range 60 {
		if i%10 == 0 {
			if err := parses(srv.URL + "?qps=1"); err != nil {
				t.Error(err)
			}
		}
		now, err := counters(registry)
		if err != nil {
			t.Fatal(err)
		}
		for name, v := range last {
			switch got, ok := now[name]; {
			case !ok:
				t.Errorf("scrape %d: no %s any more", i, name)
			case got < v:
				t.Errorf("scrape %d: %s went from %v to %v", i, name, v, got)
			}
		}
		last = now
	}
	stop.Store(true)
	wg.Wait()
	if last["softroce_programs_connected_total{adapter=softroce0}"] == 0 {
		t.Errorf("no program came and went: the case shows nothing; %d counters", len(last))
	}
}

// parses scrapes and has Prometheus' own parser and linter read it.
func parses(url string) error {
	resp, err := http.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	problems, err := promlint.New(resp.Body).Lint()
	if err != nil {
		return fmt.Errorf("the scrape does not parse: %w", err)
	}
	if len(problems) != 0 {
		return fmt.Errorf("the scrape is not clean: %v", problems)
	}
	return nil
}

// counters gathers every series that may only rise.
func counters(g prometheus.Gatherer) (map[string]float64, error) {
	families, err := g.Gather()
	if err != nil {
		return nil, err
	}
	out := make(map[string]float64)
	for _, f := range families {
		if f.GetType().String() != "COUNTER" {
			continue
		}
		for _, m := range f.GetMetric() {
			name := f.GetName() + "{"
			for i, l := range m.GetLabel() {
				if i > 0 {
					name += ","
				}
				name += l.GetName() + "=" + l.GetValue()
			}
			out[name+"}"] = m.GetCounter().GetValue()
		}
	}
	return out, nil
}

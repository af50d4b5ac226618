package metrics

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/softroce/softroce/internal/nic"
	"github.com/softroce/softroce/internal/testaddr"
)

// fake is an adapter whose every counter has a value of its own.
type fake struct{ s nic.Snapshot }

func (f *fake) Snapshot() nic.Snapshot { return f.s }

func (f *fake) Name() string { return f.s.Name }

func (f *fake) QPSnapshots() []nic.QPSnapshot {
	return []nic.QPSnapshot{{QPN: 0x11, Worker: 1, PID: 42, State: 3, DestQPN: 0x22}}
}

func newFake() *fake {
	var w nic.WorkerSnapshot
	w.Transport.SentPkts, w.Transport.DuplicateRequest, w.Transport.RcvdRNRErr = 101, 102, 103
	w.Transport.RcvdNAKs[0], w.Transport.RcvdNAKs[2], w.Transport.SentNAKs[9] = 7, 8, 9
	w.Stats.Drops[nic.DropICRC] = 55
	w.Stats.CQOverflows = 3
	w.Stats.SendErrors[90], w.Stats.SendErrors[0] = 4, 5
	w.QPs[3] = 6
	rule := nic.RuleStatus{ID: 7}
	rule.Matched, rule.Hit = 30, 20
	return &fake{nic.Snapshot{
		Rules: []nic.RuleStatus{rule},
		Name:  "nic0", Workers: []nic.WorkerSnapshot{{}, w},
		Use: []nic.ResourceUse{{Resource: nic.ResourceRegisteredBytes, Used: 10, Limit: 1 << 42}},
	}}
}

func text(t *testing.T, url string, adapters ...QPLister) string {
	t.Helper()
	rec := httptest.NewRecorder()
	Handler(adapters...).ServeHTTP(rec, httptest.NewRequest("GET", url, nil))
	b, err := io.ReadAll(rec.Body)
	if err != nil || rec.Code != 200 {
		t.Fatalf("status %d, %v: %s", rec.Code, err, b)
	}
	return string(b)
}

// What an adapter counted is found under its name, in the right place.
func TestValues(t *testing.T) {
	got := text(t, "/metrics", newFake())
	for _, want := range []string{
		`softroce_sent_pkts_total{adapter="nic0",worker="1"} 101`,
		`softroce_sent_pkts_total{adapter="nic0",worker="0"} 0`,
		`softroce_duplicate_request_total{adapter="nic0",worker="1"} 102`,
		`softroce_rcvd_rnr_err_total{adapter="nic0",worker="1"} 103`,
		`softroce_naks_total{adapter="nic0",direction="rcvd",kind="sequence",worker="1"} 7`,
		`softroce_naks_total{adapter="nic0",direction="rcvd",kind="remote_access",worker="1"} 8`,
		`softroce_naks_total{adapter="nic0",direction="sent",kind="reserved",worker="1"} 9`,
		`softroce_naks_total{adapter="nic0",direction="rcvd",kind="rnr",worker="1"} 103`,
		`softroce_drops_total{adapter="nic0",reason="icrc",stage="packet",worker="1"} 55`,
		`softroce_impaired_packets_total{action="drop",adapter="nic0",rule="7"} 20`,
		`softroce_impair_rules{adapter="nic0"} 1`,
		`softroce_cq_overflows_total{adapter="nic0",worker="1"} 3`,
		`softroce_udp_send_errors_total{adapter="nic0",errno="EMSGSIZE",worker="1"} 4`,
		`softroce_udp_send_errors_total{adapter="nic0",errno="other",worker="1"} 5`,
		`softroce_qps{adapter="nic0",state="RTS",worker="1"} 6`,
		`softroce_resource_used{adapter="nic0",resource="registered_bytes"} 10`,
		`softroce_resource_limit{adapter="nic0",resource="registered_bytes"} 4.398046511104e+12`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("no line %s", want)
		}
	}
	if strings.Contains(got, "softroce_qp_") {
		t.Error("queue pairs are listed without being asked for")
	}
}

// Per queue pair on request (field case F66).
func TestQPsOnRequest(t *testing.T) {
	got := text(t, "/metrics?qps=1", newFake())
	want := regexp.MustCompile(`softroce_qp_info\{adapter="nic0",dest_qpn="[^"]+",peer="",pid="42",qpn="[^"]+",state="RTS",worker="1"\} 1\n`)
	if !want.MatchString(got) {
		t.Errorf("no line %v in\n%s", want, got)
	}
	if !strings.Contains(got, "softroce_sent_pkts_total") {
		t.Error("the adapter's own metrics are missing")
	}
}

// slowReader is an answer whose reader takes nothing until it is let go.
type slowReader struct {
	*httptest.ResponseRecorder
	began, letGo chan struct{}
	once         sync.Once
}

func (s *slowReader) Write(b []byte) (int, error) {
	s.once.Do(func() { s.began <- struct{}{} })
	<-s.letGo
	return s.ResponseRecorder.Write(b)
}

// Slow readers do not collect answers with every queue pair without end; the others
// are served.
func TestSlowReadersAreFew(t *testing.T) {
	h := Handler(newFake())
	began, letGo := make(chan struct{}), make(chan struct{})
	get := func(w http.ResponseWriter, url string) { h.ServeHTTP(w, httptest.NewRequest("GET", url, nil)) }
	var all sync.WaitGroup
	for range maxDetailed {
		all.Go(func() {
			get(&slowReader{ResponseRecorder: httptest.NewRecorder(), began: began, letGo: letGo}, "/metrics?qps=1")
		})
		<-began
	}
	for url, want := range map[string]int{"/metrics?qps=1": http.StatusServiceUnavailable, "/metrics": http.StatusOK} {
		rec := httptest.NewRecorder()
		if get(rec, url); rec.Code != want {
			t.Errorf("%s beside %d slow readers: status %d, want %d", url, maxDetailed, rec.Code, want)
		}
	}
	close(letGo)
	all.Wait()
	text(t, "/metrics?qps=1", newFake())
}

// Prometheus' own rules for names, units and help.
func TestNamesFollowPrometheus(t *testing.T) {
	for name, c := range map[string]prometheus.Collector{"adapter": New(newFake()), "qps": NewQP(newFake())} {
		problems, err := testutil.CollectAndLint(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s: %s", name, p.Metric, p.Text)
		}
	}
	// The linter does find things.
	bad := prometheus.NewGauge(prometheus.GaugeOpts{Name: "bad_total"})
	if problems, err := promlint.NewWithMetricFamilies(nil).Lint(); err != nil || len(problems) != 0 {
		t.Fatal(problems, err)
	}
	if problems, err := testutil.CollectAndLint(bad); err != nil || len(problems) == 0 {
		t.Errorf("a gauge named _total without help passes: %v", err)
	}
}

// Field case F66: scrapes while programs, and their queue pairs, come and go
// parse, each of them.
func TestF66ScrapeWhileProgramsComeAndGo(t *testing.T) {
	a, err := nic.New(nic.Config{Addrs: testaddr.Take(t, 1), Workers: 2, RecvBuffer: 212992})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(New(a), NewQP(a))
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !stop.Load() {
				if err := churn(a); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 200 {
		families, err := registry.Gather()
		if err != nil {
			t.Errorf("scrape: %v", err)
			break
		}
		if len(families) < 40 {
			t.Errorf("%d families only", len(families))
			break
		}
	}
	stop.Store(true)
	wg.Wait()
}

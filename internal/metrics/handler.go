package metrics

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/softroce/softroce/internal/nic"
)

// QPLister lists queue pairs one by one; *nic.Adapter is one.
type QPLister interface {
	Adapter
	// QPSnapshots returns every queue pair. Safe for concurrent use.
	QPSnapshots() []nic.QPSnapshot
	// Name is the adapter's name.
	Name() string
}

// QPCollector is a prometheus.Collector of every queue pair of adapters: a
// series each and counter, so for when somebody asks.
type QPCollector struct{ adapters []QPLister }

// NewQP returns a collector of the adapters' queue pairs.
func NewQP(adapters ...QPLister) *QPCollector { return &QPCollector{adapters: adapters} }

func qpDesc(name, help string, labels ...string) *prometheus.Desc {
	return workerDesc("qp_"+name, help, append([]string{"qpn"}, labels...)...)
}

var qpInfo = qpDesc("info", "A queue pair: state, program and peer; always 1.", "state", "pid", "dest_qpn", "peer")

// qpCounters is the one table of what a queue pair counts.
var qpCounters = []struct {
	desc  *prometheus.Desc
	value func(*nic.QPSnapshot) float64
}{
	{qpDesc("sent_pkts_total", "Packets built."), func(q *nic.QPSnapshot) float64 { return float64(q.Stats.SentPkts) }},
	{qpDesc("sent_bytes_total", "UDP payload bytes built."), func(q *nic.QPSnapshot) float64 { return float64(q.Stats.SentBytes) }},
	{qpDesc("rcvd_pkts_total", "Packets received."), func(q *nic.QPSnapshot) float64 { return float64(q.Stats.RcvdPkts) }},
	{qpDesc("rcvd_bytes_total", "UDP payload bytes received."), func(q *nic.QPSnapshot) float64 { return float64(q.Stats.RcvdBytes) }},
	{qpDesc("retransmits_total", "Request packets sent again."), func(q *nic.QPSnapshot) float64 { return float64(q.Stats.Retransmits) }},
	{qpDesc("local_ack_timeout_err_total", "Expiries of the local ACK timer."), func(q *nic.QPSnapshot) float64 { return float64(q.Stats.Timeouts) }},
	{qpDesc("rcvd_rnr_err_total", "RNR NAKs received."), func(q *nic.QPSnapshot) float64 { return float64(q.Stats.RNRNAKsRcvd) }},
	{qpDesc("send_rnr_err_total", "RNR NAKs sent."), func(q *nic.QPSnapshot) float64 { return float64(q.Stats.RNRNAKsSent) }},
	{qpDesc("rcvd_seq_err_total", "NAKs of a PSN sequence error received."), func(q *nic.QPSnapshot) float64 { return float64(q.Stats.SeqNAKsRcvd) }},
	{qpDesc("send_seq_err_total", "NAKs of a PSN sequence error sent."), func(q *nic.QPSnapshot) float64 { return float64(q.Stats.SeqNAKsSent) }},
	{qpDesc("rnr_wait_seconds_total", "Time that RNR NAKs asked for in all."), func(q *nic.QPSnapshot) float64 { return q.Stats.RNRWait.Seconds() }},
}

// Describe sends every metric's description.
func (c *QPCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- qpInfo
	for i := range qpCounters {
		ch <- qpCounters[i].desc
	}
}

// Collect sends every queue pair's metrics.
func (c *QPCollector) Collect(ch chan<- prometheus.Metric) {
	for _, a := range c.adapters {
		e := emitter{ch: ch, adapter: a.Name()}
		qps := a.QPSnapshots()
		for i := range qps {
			e.qp(&qps[i])
		}
	}
}

func (e *emitter) qp(q *nic.QPSnapshot) {
	worker, qpn, peer := strconv.Itoa(q.Worker), q.QPN.String(), ""
	if q.Peer.IsValid() {
		peer = q.Peer.String()
	}
	e.gauge(qpInfo, 1, worker, qpn, q.State.String(), strconv.Itoa(q.PID), q.DestQPN.String(), peer)
	for i := range qpCounters {
		c := &qpCounters[i]
		e.ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, c.value(q), e.adapter, worker, qpn)
	}
}

// maxDetailed bounds the answers with every queue pair that are on their way, which
// may be of a hundred megabytes and wait for a slow reader; further requests get
// status 503. Our own tuning.
const maxDetailed = 4

// Handler serves the adapters' metrics in Prometheus' formats, and, when asked
// with ?qps=1, those of every queue pair, too.
func Handler(adapters ...QPLister) http.Handler {
	plain := make([]Adapter, len(adapters))
	for i, a := range adapters {
		plain[i] = a
	}
	registry, detailed := prometheus.NewRegistry(), prometheus.NewRegistry()
	for _, r := range []*prometheus.Registry{registry, detailed} {
		r.MustRegister(New(plain...))
	}
	detailed.MustRegister(NewQP(adapters...))
	all := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	each := promhttp.HandlerFor(detailed, promhttp.HandlerOpts{MaxRequestsInFlight: maxDetailed})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if on, err := strconv.ParseBool(r.URL.Query().Get("qps")); err == nil && on {
			each.ServeHTTP(w, r)
			return
		}
		all.ServeHTTP(w, r)
	})
}

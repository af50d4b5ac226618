package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/softroce/softroce/internal/nic"
)

const namespace = "softroce"

// Adapter is what is collected; *nic.Adapter is one.
type Adapter interface {
	// Snapshot returns what the adapter counted. Safe for concurrent use.
	Snapshot() nic.Snapshot
}

// Collector is a prometheus.Collector of adapters. Safe for concurrent use.
type Collector struct{ adapters []Adapter }

// New returns a collector of the adapters. It keeps them, until the last
// scrape; their names must differ.
func New(adapters ...Adapter) *Collector { return &Collector{adapters: adapters} }

// workerCounter is one number that every worker counts.
type workerCounter struct {
	desc  *prometheus.Desc
	value func(*nic.WorkerSnapshot) uint64
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, append([]string{"adapter"}, labels...), nil)
}

func workerDesc(name, help string, labels ...string) *prometheus.Desc {
	return desc(name, help, append([]string{"worker"}, labels...)...)
}

func engine(name, help string, field func(*nic.EngineCounters) uint64) workerCounter {
	return workerCounter{workerDesc(name, help), func(w *nic.WorkerSnapshot) uint64 { return field(&w.Transport) }}
}

func shell(name, help string, field func(*nic.WorkerStats) uint64) workerCounter {
	return workerCounter{workerDesc(name, help), func(w *nic.WorkerSnapshot) uint64 { return field(&w.Stats) }}
}

// workerCounters is the one table of plain counters. Those named after the
// kernel's hw_counters come first.
var workerCounters = []workerCounter{
	engine("sent_pkts_total", "Packets the engine built (hw_counter sent_pkts).", func(c *nic.EngineCounters) uint64 { return c.SentPkts }),
	engine("rcvd_pkts_total", "Packets given to the engine (hw_counter rcvd_pkts).", func(c *nic.EngineCounters) uint64 { return c.RcvdPkts }),
	engine("duplicate_request_total", "Requests received that were executed before.", func(c *nic.EngineCounters) uint64 { return c.DuplicateRequest }),
	engine("out_of_seq_request_total", "Requests received beyond the expected PSN.", func(c *nic.EngineCounters) uint64 { return c.OutOfSeqRequest }),
	engine("rcvd_rnr_err_total", "RNR NAKs received.", func(c *nic.EngineCounters) uint64 { return c.RcvdRNRErr }),
	engine("send_rnr_err_total", "RNR NAKs sent.", func(c *nic.EngineCounters) uint64 { return c.SendRNRErr }),
	engine("rcvd_seq_err_total", "NAKs of a PSN sequence error received.", func(c *nic.EngineCounters) uint64 { return c.RcvdSeqErr }),
	engine("ack_deferred_total", "ACK timer expiries put off because own packets wait to leave.", func(c *nic.EngineCounters) uint64 { return c.AckDeferred }),
	engine("retry_exceeded_err_total", "Requests that ended with RETRY_EXC_ERR.", func(c *nic.EngineCounters) uint64 { return c.RetryExceededErr }),
	engine("retry_rnr_exceeded_err_total", "Requests that ended with RNR_RETRY_EXC_ERR.", func(c *nic.EngineCounters) uint64 { return c.RetryRNRExceededErr }),
	engine("completer_retry_err_total", "Retries that a response gave the reason for.", func(c *nic.EngineCounters) uint64 { return c.CompleterRetryErr }),
	engine("rdma_sends_total", "SEND requests started.", func(c *nic.EngineCounters) uint64 { return c.RDMASends }),
	engine("rdma_recvs_total", "Receives completed.", func(c *nic.EngineCounters) uint64 { return c.RDMARecvs }),
	engine("local_ack_timeout_err_total", "Expiries of the local ACK timer.", func(c *nic.EngineCounters) uint64 { return c.LocalAckTimeoutErr }),
	engine("packet_seq_err_total", "Responses received beyond the expected PSN.", func(c *nic.EngineCounters) uint64 { return c.PacketSeqErr }),

	engine("send_seq_err_total", "NAKs of a PSN sequence error sent.", func(c *nic.EngineCounters) uint64 { return c.SendSeqErr }),
	engine("retransmits_total", "Request packets sent again.", func(c *nic.EngineCounters) uint64 { return c.Retransmits }),
	engine("replays_total", "Response packets sent again.", func(c *nic.EngineCounters) uint64 { return c.Replays }),
	engine("engine_sent_bytes_total", "UDP payload bytes of the packets built.", func(c *nic.EngineCounters) uint64 { return c.SentBytes }),
	engine("engine_rcvd_bytes_total", "UDP payload bytes of the packets given to the engine.", func(c *nic.EngineCounters) uint64 { return c.RcvdBytes }),

	shell("udp_in_packets_total", "Datagrams received.", func(s *nic.WorkerStats) uint64 { return s.PacketsIn }),
	shell("udp_in_bytes_total", "UDP payload bytes received.", func(s *nic.WorkerStats) uint64 { return s.BytesIn }),
	shell("udp_out_packets_total", "Datagrams sent.", func(s *nic.WorkerStats) uint64 { return s.PacketsOut }),
	shell("udp_out_bytes_total", "UDP payload bytes sent.", func(s *nic.WorkerStats) uint64 { return s.BytesOut }),
	shell("udp_receives_total", "Buffers received, each of one datagram or, merged by the kernel, of several.", func(s *nic.WorkerStats) uint64 { return s.Receives }),
	shell("udp_sends_total", "Sends, each of one datagram or, for the kernel to cut, of several.", func(s *nic.WorkerStats) uint64 { return s.Sends }),
	shell("udp_segmentation_stopped_total", "Peers to which segmented sends turned out not to work.", func(s *nic.WorkerStats) uint64 { return s.SegmentsStopped }),
	shell("local_packets_total", "Packets between two queue pairs of this adapter, which go by memory; also among those sent and received.", func(s *nic.WorkerStats) uint64 { return s.Local }),
	shell("udp_receive_errors_total", "Receive calls that failed.", func(s *nic.WorkerStats) uint64 { return s.RecvErrors }),
	shell("udp_send_blocked_total", "Times that a send socket was full: a wait, no loss.", func(s *nic.WorkerStats) uint64 { return s.SendBlocked }),
	shell("identifications_relearned_total", "Times that a peer's IP identifications were learned anew.", func(s *nic.WorkerStats) uint64 { return s.Relearned }),
	shell("crowded_yields_total", "Yields of the CPU that took long: the workers then sleep instead of polling.", func(s *nic.WorkerStats) uint64 { return s.Crowded }),
	shell("handovers_total", "Packets handed to the worker that they belong to.", func(s *nic.WorkerStats) uint64 { return s.Handovers }),
	shell("turns_total", "Turns of the worker.", func(s *nic.WorkerStats) uint64 { return s.Turns }),
	shell("sleeps_total", "Times that the worker went to sleep.", func(s *nic.WorkerStats) uint64 { return s.Sleeps }),
	shell("memory_faults_total", "Faults on memory that a program took away.", func(s *nic.WorkerStats) uint64 { return s.Faults }),
	shell("impair_overflow_total", "Packets lost since too many waited for a rule that impairs packets.", func(s *nic.WorkerStats) uint64 { return s.ImpairFull }),
	shell("bad_slots_total", "Ring slots that no library writes.", func(s *nic.WorkerStats) uint64 { return s.BadSlots }),
	shell("cq_events_total", "Completion events written.", func(s *nic.WorkerStats) uint64 { return s.CQEvents }),
	shell("cq_events_lost_total", "Completion events that a program's full pipe did not take.", func(s *nic.WorkerStats) uint64 { return s.EventsLost }),
	shell("cq_overflows_total", "Completion queues that overflowed.", func(s *nic.WorkerStats) uint64 { return s.CQOverflows }),
	shell("cq_completions_lost_total", "Completions lost to overflown queues.", func(s *nic.WorkerStats) uint64 { return s.CQLost }),
}

// adapterCounter is one number that the control plane counts.
var adapterCounters = []struct {
	desc  *prometheus.Desc
	value func(*nic.ControlSnapshot) uint64
}{
	{desc("control_requests_total", "Control requests answered."), func(c *nic.ControlSnapshot) uint64 { return c.Requests }},
	{desc("control_refused_total", "Control requests answered with an error."), func(c *nic.ControlSnapshot) uint64 { return c.Refused }},
	{desc("control_bad_messages_total", "Control messages that could not be decoded."), func(c *nic.ControlSnapshot) uint64 { return c.BadMessages }},
	{desc("programs_connected_total", "Programs that connected."), func(c *nic.ControlSnapshot) uint64 { return c.Programs }},
	{desc("programs_gone_total", "Programs that are gone and cleaned up after."), func(c *nic.ControlSnapshot) uint64 { return c.Deaths }},
	{desc("program_faults_total", "Times that a program's queue pairs were ended for a fault of its own."), func(c *nic.ControlSnapshot) uint64 { return c.Faults }},
	{desc("async_events_total", "Asynchronous events written."), func(c *nic.ControlSnapshot) uint64 { return c.AsyncEvents }},
	{desc("link_downed_total", "Times that the port went down."), func(c *nic.ControlSnapshot) uint64 { return c.LinkDowns }},
	{desc("async_events_lost_total", "Asynchronous events that a program's full pipe did not take."), func(c *nic.ControlSnapshot) uint64 { return c.AsyncLost }},
}

var (
	naksDesc  = workerDesc("naks_total", "NAKs by direction (sent, rcvd) and kind.", "direction", "kind")
	dropsDesc = workerDesc("drops_total", "Packets dropped by reason: before a queue pair was found (stage packet) or by its engine (stage qp).", "stage", "reason")
	handled   = workerDesc("handled_total", "Packets that the engine did not drop, by what became of them.", "verdict")
	sendErrs  = workerDesc("udp_send_errors_total", "Datagrams that the kernel refused to send, by errno: lost.", "errno")
	qpsDesc   = workerDesc("qps", "Queue pairs by state.", "state")
	slabDesc  = workerDesc("slab_bytes", "Bytes held by copies of requests in flight.")
	usedDesc  = desc("resource_used", "Use of a limited resource by all programs.", "resource")
	limitDesc = desc("resource_limit", "Limit of a resource for all programs together.", "resource")
	cmSent    = desc("cm_messages_total", "Messages of the connection manager by direction (sent, rcvd) and kind.", "direction", "message")
	cmMADs    = desc("cm_mads_total", "Management datagrams received with the right keys, by what became of them.", "verdict")
	cmResent  = desc("cm_resent_total", "Messages of the connection manager sent again after a time without an answer.")
	cmLost    = desc("cm_lost_total", "Messages of the connection manager that could not be sent.")
	cmEvents  = desc("cm_events_total", "Events of the connection manager written.")
	cmHeld    = desc("cm_events_held_total", "Events of the connection manager that waited for room in a program's pipe.")
	cmNow     = desc("cm_ids", "What the connection manager holds: connections, those of them that are half open, listeners.", "kind")
	harmed    = desc("impaired_packets_total", "Packets impaired on purpose, by the rule in place (its number) and its action.", "rule", "action")
	harming   = desc("impair_rules", "Rules in place that impair packets on purpose.")
	bufDesc   = desc("receive_buffer_bytes", "Receive buffer of one socket as the kernel gave it.")
	infoDesc  = desc("gid_info", "The adapter's GIDs by index; always 1.", "index", "gid")
)

// Describe sends every metric's description.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for i := range workerCounters {
		ch <- workerCounters[i].desc
	}
	for i := range adapterCounters {
		ch <- adapterCounters[i].desc
	}
	for _, d := range []*prometheus.Desc{
		naksDesc, dropsDesc, handled, sendErrs, qpsDesc, slabDesc, usedDesc, limitDesc, bufDesc, infoDesc,
		cmSent, cmMADs, cmResent, cmLost, cmEvents, cmHeld, cmNow, harmed, harming,
	} {
		ch <- d
	}
}

// Collect takes one snapshot of each adapter and sends its metrics.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, a := range c.adapters {
		s := a.Snapshot()
		e := emitter{ch: ch, adapter: s.Name}
		e.adapterMetrics(&s)
		for i := range s.Workers {
			e.worker(strconv.Itoa(i), &s.Workers[i])
		}
	}
}

// emitter sends one adapter's metrics.
type emitter struct {
	ch      chan<- prometheus.Metric
	adapter string
}

func (e *emitter) counter(d *prometheus.Desc, v uint64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{e.adapter}, labels...)...)
}

func (e *emitter) gauge(d *prometheus.Desc, v float64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{e.adapter}, labels...)...)
}

func (e *emitter) adapterMetrics(s *nic.Snapshot) {
	for i := range adapterCounters {
		e.counter(adapterCounters[i].desc, adapterCounters[i].value(&s.Control))
	}
	for _, u := range s.Use {
		e.gauge(usedDesc, float64(u.Used), u.Resource.Label())
		e.gauge(limitDesc, float64(u.Limit), u.Resource.Label())
	}
	for i, g := range s.GIDs {
		if g.IsZero() {
			continue // a hole
		}
		e.gauge(infoDesc, 1, strconv.Itoa(i), g.String())
	}
	e.gauge(bufDesc, float64(s.RecvBuffer))
	e.gauge(harming, float64(len(s.Rules)))
	for i := range s.Rules {
		r := &s.Rules[i]
		e.counter(harmed, r.Hit, strconv.Itoa(r.ID), r.Rule.Action.String())
	}
	e.connectionManager(&s.CM)
}

func (e *emitter) connectionManager(s *nic.CMSnapshot) {
	for _, m := range s.Messages {
		e.counter(cmSent, m.Sent, "sent", m.Name)
		e.counter(cmSent, m.Received, "rcvd", m.Name)
	}
	for _, v := range s.Verdicts {
		e.counter(cmMADs, v.Count, v.Name)
	}
	e.counter(cmResent, s.Resent)
	e.counter(cmLost, s.Lost)
	e.counter(cmEvents, s.Events)
	e.counter(cmHeld, s.Held)
	e.gauge(cmNow, float64(s.Connections), "connections")
	e.gauge(cmNow, float64(s.HalfOpen), "half_open")
	e.gauge(cmNow, float64(s.Listeners), "listeners")
}

func (e *emitter) worker(worker string, w *nic.WorkerSnapshot) {
	for i := range workerCounters {
		e.counter(workerCounters[i].desc, workerCounters[i].value(w), worker)
	}
	e.naks(worker, &w.Transport)
	for d := range nic.NumDrops {
		e.counter(dropsDesc, w.Stats.Drops[d], worker, "packet", d.String())
	}
	for v := range nic.NumVerdicts {
		if v.Dropped() {
			e.counter(dropsDesc, w.Transport.Verdicts[v], worker, "qp", v.String())
		} else {
			e.counter(handled, w.Transport.Verdicts[v], worker, v.String())
		}
	}
	for n, v := range w.Stats.SendErrors {
		if v != 0 {
			e.counter(sendErrs, v, worker, nic.ErrnoName(n))
		}
	}
	for s, n := range w.QPs {
		e.gauge(qpsDesc, float64(n), worker, nic.QPState(s).String())
	}
	e.gauge(slabDesc, float64(w.SlabBytes), worker)
}

// nakKinds names the NAK codes (IBTA Vol 1 §9.7.5.1.2, table 45).
var nakKinds = [...]string{"sequence", "invalid_request", "remote_access", "remote_operational", "invalid_rd"}

func (e *emitter) naks(worker string, c *nic.EngineCounters) {
	for _, d := range []struct {
		direction string
		codes     *[32]uint64
		rnr       uint64
	}{{"rcvd", &c.RcvdNAKs, c.RcvdRNRErr}, {"sent", &c.SentNAKs, c.SendRNRErr}} {
		reserved := uint64(0)
		for code, v := range d.codes {
			if code < len(nakKinds) {
				e.counter(naksDesc, v, worker, d.direction, nakKinds[code])
			} else {
				reserved += v
			}
		}
		e.counter(naksDesc, reserved, worker, d.direction, "reserved")
		e.counter(naksDesc, d.rnr, worker, d.direction, "rnr")
	}
}

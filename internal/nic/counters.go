package nic

import (
	"fmt"

	"github.com/softroce/softroce/internal/impair"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/transport"
)

// A workerRow is a counter that every worker counts, a controlRow one of the
// control plane's.
type workerRow struct {
	name, help string
	value      func(*WorkerSnapshot) uint64
}

type controlRow struct {
	name, help string
	value      func(*ControlSnapshot) uint64
}

// workerRows are, with controlRows, the one table of what a listing shows besides
// reasons of drops. The first have the kernel's names (rdma-statistic(8) with
// rxe).
var workerRows = []workerRow{
	{"sent_pkts", "packets sent", func(w *WorkerSnapshot) uint64 { return w.Transport.SentPkts }},
	{"rcvd_pkts", "packets received for a queue pair", func(w *WorkerSnapshot) uint64 { return w.Transport.RcvdPkts }},
	{"duplicate_request", "requests received that were executed before", func(w *WorkerSnapshot) uint64 { return w.Transport.DuplicateRequest }},
	{"out_of_seq_request", "requests received beyond the expected PSN", func(w *WorkerSnapshot) uint64 { return w.Transport.OutOfSeqRequest }},
	{"rcvd_rnr_err", "RNR NAKs received", func(w *WorkerSnapshot) uint64 { return w.Transport.RcvdRNRErr }},
	{"send_rnr_err", "RNR NAKs sent", func(w *WorkerSnapshot) uint64 { return w.Transport.SendRNRErr }},
	{"rcvd_seq_err", "NAKs of a PSN sequence error received", func(w *WorkerSnapshot) uint64 { return w.Transport.RcvdSeqErr }},
	{"ack_deferred", "ACK timer expiries put off because own packets wait to leave", func(w *WorkerSnapshot) uint64 { return w.Transport.AckDeferred }},
	{"retry_exceeded_err", "requests that ended with RETRY_EXC_ERR", func(w *WorkerSnapshot) uint64 { return w.Transport.RetryExceededErr }},
	{"retry_rnr_exceeded_err", "requests that ended with RNR_RETRY_EXC_ERR", func(w *WorkerSnapshot) uint64 { return w.Transport.RetryRNRExceededErr }},
	{"completer_retry_err", "retries that a response gave the reason for", func(w *WorkerSnapshot) uint64 { return w.Transport.CompleterRetryErr }},
	{"send_err", "packets that the kernel refused to send", sendErrs},
	{"rdma_sends", "SEND requests started", func(w *WorkerSnapshot) uint64 { return w.Transport.RDMASends }},
	{"rdma_recvs", "receives completed", func(w *WorkerSnapshot) uint64 { return w.Transport.RDMARecvs }},

	{"sent_bytes", "UDP payload bytes sent", func(w *WorkerSnapshot) uint64 { return w.Transport.SentBytes }},
	{"rcvd_bytes", "UDP payload bytes received for a queue pair", func(w *WorkerSnapshot) uint64 { return w.Transport.RcvdBytes }},
	{"send_seq_err", "NAKs of a PSN sequence error sent", func(w *WorkerSnapshot) uint64 { return w.Transport.SendSeqErr }},
	{"packet_seq_err", "responses received beyond the expected PSN", func(w *WorkerSnapshot) uint64 { return w.Transport.PacketSeqErr }},
	{"local_ack_timeout_err", "expiries of the local ACK timer", func(w *WorkerSnapshot) uint64 { return w.Transport.LocalAckTimeoutErr }},
	{"retransmits", "request packets sent again", func(w *WorkerSnapshot) uint64 { return w.Transport.Retransmits }},
	{"replays", "response packets sent again", func(w *WorkerSnapshot) uint64 { return w.Transport.Replays }},
	{"dropped_messages", "messages of unreliable connections begun and dropped", func(w *WorkerSnapshot) uint64 { return w.Transport.DroppedMessages }},
	{"local_pkts", "packets between two queue pairs of this adapter", func(w *WorkerSnapshot) uint64 { return w.Stats.Local }},
	{"udp_sends", "sends, each of one datagram or several", func(w *WorkerSnapshot) uint64 { return w.Stats.Sends }},
	{"udp_receives", "buffers received, each of one datagram or several", func(w *WorkerSnapshot) uint64 { return w.Stats.Receives }},
	{"udp_send_blocked", "times that a send socket was full", func(w *WorkerSnapshot) uint64 { return w.Stats.SendBlocked }},
	{"udp_receive_errors", "receive calls that failed", func(w *WorkerSnapshot) uint64 { return w.Stats.RecvErrors }},
	{"segmentation_stopped", "peers to which segmented sends turned out not to work", func(w *WorkerSnapshot) uint64 { return w.Stats.SegmentsStopped }},
	{"identifications_relearned", "times that a peer's IP identifications were learned anew", func(w *WorkerSnapshot) uint64 { return w.Stats.Relearned }},
	{"handovers", "packets handed to the worker that they belong to", func(w *WorkerSnapshot) uint64 { return w.Stats.Handovers }},
	{"turns", "turns of the workers", func(w *WorkerSnapshot) uint64 { return w.Stats.Turns }},
	{"sleeps", "times that a worker went to sleep", func(w *WorkerSnapshot) uint64 { return w.Stats.Sleeps }},
	{"cq_events", "completion events written", func(w *WorkerSnapshot) uint64 { return w.Stats.CQEvents }},
	{"cq_overflows", "completion queues that overflowed", func(w *WorkerSnapshot) uint64 { return w.Stats.CQOverflows }},
	{"cq_completions_lost", "completions lost to overflown queues", func(w *WorkerSnapshot) uint64 { return w.Stats.CQLost }},
	{"memory_faults", "faults on memory that a program took away", func(w *WorkerSnapshot) uint64 { return w.Stats.Faults }},
	{"impair_overflow", "packets lost since too many waited for a rule that impairs packets", func(w *WorkerSnapshot) uint64 { return w.Stats.ImpairFull }},
	{"bad_slots", "ring slots that no library writes", func(w *WorkerSnapshot) uint64 { return w.Stats.BadSlots }},
}

var controlRows = []controlRow{
	{"link_downed", "times that the port went down", func(c *ControlSnapshot) uint64 { return c.LinkDowns }},
	{"async_events", "asynchronous events written", func(c *ControlSnapshot) uint64 { return c.AsyncEvents }},
	{"async_events_lost", "asynchronous events that a program's full pipe did not take", func(c *ControlSnapshot) uint64 { return c.AsyncLost }},
	{"control_requests", "control requests answered", func(c *ControlSnapshot) uint64 { return c.Requests }},
	{"control_refused", "control requests answered with an error", func(c *ControlSnapshot) uint64 { return c.Refused }},
	{"programs_connected", "programs that connected", func(c *ControlSnapshot) uint64 { return c.Programs }},
	{"programs_gone", "programs that are gone", func(c *ControlSnapshot) uint64 { return c.Deaths }},
}

func sendErrs(w *WorkerSnapshot) (n uint64) {
	for _, v := range w.Stats.SendErrors {
		n += v
	}
	return n
}

// total sums a counter up.
func (s *Snapshot) total(value func(*WorkerSnapshot) uint64) (n uint64) {
	for i := range s.Workers {
		n += value(&s.Workers[i])
	}
	return n
}

// listCounters answers with every counter, the adapter's as a whole. It waits
// for the workers, and holds no lock.
func (p *program) listCounters(*uapi.ListCountersRequest) (reply, error) {
	s := p.a.counts()
	s.CM = p.a.cmSnapshot()
	r := &uapi.ListCountersReply{}
	add := func(name, help string, value uint64) {
		r.Counters = append(r.Counters, uapi.Counter{Name: name, Help: help, Value: value})
	}
	for _, c := range workerRows {
		add(c.name, c.help, s.total(c.value))
	}
	for _, c := range controlRows {
		add(c.name, c.help, c.value(&s.Control))
	}
	for act, n := range p.a.impairActions() {
		add(fmt.Sprintf("impaired_%v", impair.Action(act)), "packets impaired on purpose by rules of this action", n)
	}
	for d := range NumDrops {
		add(fmt.Sprintf("drop_%v", d), "packets dropped before a queue pair was found",
			s.total(func(w *WorkerSnapshot) uint64 { return w.Stats.Drops[d] }))
	}
	for v := range NumVerdicts {
		if v.Dropped() {
			add(fmt.Sprintf("drop_qp_%v", v), "packets dropped by a queue pair",
				s.total(func(w *WorkerSnapshot) uint64 { return w.Transport.Verdicts[v] }))
		}
	}
	r.Counters = append(r.Counters, s.CM.counters()...)
	return reply{body: r}, nil
}

// violations counts packets with a wrong key, for the port's attributes.
func (a *Adapter) violations() (pkeys, qkeys uint32) {
	for _, w := range a.workers {
		w.do(func() {
			pkeys += uint32(w.counters.Verdicts[transport.DropPKey])
			qkeys += uint32(w.counters.Verdicts[transport.DropQKey])
		})
	}
	return pkeys, qkeys
}

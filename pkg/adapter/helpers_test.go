package adapter_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/nic"
	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

// patience ends waits of a test that hangs; nothing is measured by it.
const patience = 60 * time.Second

// rcvbuf is a socket buffer as most hosts give it.
const rcvbuf = 212992

const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// must stops the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// within bounds a wait in a test, generously.
func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// logBuffer collects what an adapter logs.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// lines are the lines that contain all of the words.
func (l *logBuffer) lines(words ...string) (found []string) {
	for line := range bytes.Lines([]byte(l.String())) {
		all := true
		for _, w := range words {
			all = all && bytes.Contains(line, []byte(w))
		}
		if all {
			found = append(found, string(line))
		}
	}
	return found
}

func (l *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// A host is one adapter with its log.
type host struct {
	*adapter.Adapter
	log *logBuffer
}

// start starts an adapter of two workers on an address of its own.
func start(t testing.TB, change func(*adapter.Config)) *host {
	t.Helper()
	h, err := tryStart(t, change)
	must(t, err)
	t.Cleanup(func() { must(t, h.Close()) })
	return h
}

func tryStart(t testing.TB, change func(*adapter.Config)) (*host, error) {
	t.Helper()
	h := &host{log: &logBuffer{}}
	cfg := adapter.Config{
		Workers: testmatrix.Workers(t, 2), RecvBuffer: rcvbuf, Offload: testmatrix.Offload(t), Backend: testmatrix.Backend(t), Log: h.log.logger(),
	}
	if change != nil {
		change(&cfg)
	}
	if len(cfg.Addrs) == 0 && cfg.Interface == "" {
		cfg.Addrs = testaddr.Take(t, 1)
	}
	if cfg.Backend == adapter.BackendTUN {
		cfg.TUN = testmatrix.TUN(t, cfg.Addrs)
	}
	var err error
	h.Adapter, err = adapter.Start(cfg)
	return h, err
}

// on gives the addresses of an adapter.
func on(addrs ...netip.Addr) func(*adapter.Config) {
	return func(c *adapter.Config) { c.Addrs = addrs }
}

// workers sums what an adapter's workers counted.
func (h *host) workers() (sum nic.WorkerSnapshot) {
	for _, w := range h.NIC().Snapshot().Workers {
		for i, n := range w.Stats.Drops {
			sum.Stats.Drops[i] += n
		}
		for i, n := range w.Transport.Verdicts {
			sum.Transport.Verdicts[i] += n
		}
		for i := range w.Transport.SentNAKs {
			sum.Transport.SentNAKs[i] += w.Transport.SentNAKs[i]
			sum.Transport.RcvdNAKs[i] += w.Transport.RcvdNAKs[i]
		}
		sum.Stats.PacketsIn += w.Stats.PacketsIn
		sum.Stats.PacketsOut += w.Stats.PacketsOut
		sum.Stats.SendBlocked += w.Stats.SendBlocked
		sum.Stats.CQEvents += w.Stats.CQEvents
		sum.Stats.EventsLost += w.Stats.EventsLost
		sum.Stats.CQOverflows += w.Stats.CQOverflows
		sum.Stats.Relearned += w.Stats.Relearned
		sum.Stats.BadSlots += w.Stats.BadSlots
		sum.Stats.Faults += w.Stats.Faults
		sum.Transport.Retransmits += w.Transport.Retransmits
		sum.Transport.Replays += w.Transport.Replays
		sum.Transport.LocalAckTimeoutErr += w.Transport.LocalAckTimeoutErr
	}
	return sum
}

// drops is how many packets were dropped for a reason.
func (h *host) drops(why nic.Drop) uint64 { return h.workers().Stats.Drops[why] }

// stats are one queue pair's.
func (h *host) stats(t testing.TB, n verbs.QPN) nic.QPSnapshot {
	t.Helper()
	for _, q := range h.NIC().QPSnapshots() {
		if q.QPN == n {
			return q
		}
	}
	t.Fatalf("the adapter has no queue pair %v", n)
	return nic.QPSnapshot{}
}

// A shape says what a program makes; zero is the default in parentheses.
type shape struct {
	size    int          // bytes of its region (64 KiB)
	foreign bool         // the region is Go memory
	wr      uint32       // requests per queue (32)
	cqe     int          // (128)
	typ     verbs.QPType // (RC)
	srq     uint32       // requests that a shared receive queue takes; 0: there is none
	events  bool         // the CQ has a channel
	sigAll  bool
	access  verbs.Access // of the region (all)
}

// A program is what a test needs of one: a queue pair, its queue and a region.
type program struct {
	t    testing.TB
	host *host
	dev  *verbs.Device
	pd   *verbs.PD
	ch   *verbs.CompChannel
	cq   *verbs.CQ
	mr   *verbs.MR
	srq  *verbs.SRQ
	qp   *verbs.QP
	typ  verbs.QPType
	gid  verbs.GID
	psn  verbs.PSN
}

// open opens the adapter as a new program.
func (h *host) open(t testing.TB, s shape) *program {
	t.Helper()
	dev, err := h.Open()
	must(t, err)
	t.Cleanup(func() { must(t, dev.Close()) })
	return h.openOn(t, dev, s)
}

// openOn makes one more set of objects on a device.
func (h *host) openOn(t testing.TB, dev *verbs.Device, s shape) *program {
	t.Helper()
	p := &program{t: t, host: h, dev: dev, psn: 0xFFFFF0}
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&s.size, 64<<10)
	def(&s.cqe, 128)
	if s.wr == 0 {
		s.wr = 32
	}
	if s.access == 0 {
		s.access = allAccess
	}
	var err error
	p.pd, err = dev.AllocPD()
	must(t, err)
	if s.events {
		p.ch, err = dev.CreateCompChannel()
		must(t, err)
	}
	p.cq, err = dev.CreateCQ(s.cqe, p.ch, 0)
	must(t, err)
	if s.foreign {
		p.mr, err = p.pd.RegMR(make([]byte, s.size), s.access)
	} else {
		p.mr, err = p.pd.AllocMR(s.size, s.access)
	}
	must(t, err)
	if s.srq > 0 {
		p.srq, err = p.pd.CreateSRQ(verbs.SRQAttr{MaxWR: s.srq, MaxSGE: 2})
		must(t, err)
	}
	if p.typ = s.typ; s.typ == 0 {
		p.typ = verbs.RC
	}
	p.qp = p.newQP(s.wr, s.sigAll)
	p.gid, err = dev.QueryGID(0)
	must(t, err)
	return p
}

func (p *program) newQP(wr uint32, sigAll bool) *verbs.QP {
	p.t.Helper()
	qp, err := p.pd.CreateQP(&verbs.QPInitAttr{
		Type: p.typ, SendCQ: p.cq, RecvCQ: p.cq, SRQ: p.srq, SQSigAll: sigAll,
		Cap: verbs.QPCap{MaxSendWR: wr, MaxRecvWR: wr, MaxSendSGE: 8, MaxRecvSGE: 8, MaxInlineData: 128},
	})
	must(p.t, err)
	return qp
}

func (p *program) peer() verbs.RCPeer {
	return verbs.RCPeer{QPN: p.qp.Num(), PSN: p.psn, GID: p.gid}
}

// connectTo takes this end to RTS.
func (p *program) connectTo(peer verbs.RCPeer, conf verbs.RCConfig) {
	p.t.Helper()
	conf.PSN = p.psn
	must(p.t, p.qp.Connect(peer, conf))
}

// connect takes both ends to RTS.
func connect(a, b *program, conf verbs.RCConfig) {
	a.t.Helper()
	a.connectTo(b.peer(), conf)
	b.connectTo(a.peer(), conf)
}

// pair is two connected programs on two adapters.
func pair(t testing.TB, s shape, conf verbs.RCConfig, change func(*adapter.Config)) (a, b *program) {
	t.Helper()
	a, b = start(t, change).open(t, s), start(t, change).open(t, s)
	connect(a, b, conf)
	return a, b
}

// next polls for one completion.
func (p *program) next() verbs.WC {
	p.t.Helper()
	wc, ok := pollOne(p.cq)
	if !ok {
		p.t.Fatalf("no completion after %v", patience)
	}
	return wc
}

// pollOne polls for one completion; not only for the test's goroutine.
func pollOne(cq *verbs.CQ) (verbs.WC, bool) {
	var wcs [1]verbs.WC
	end := time.Now().Add(patience)
	for polls := 0; ; polls++ {
		n, err := cq.Poll(wcs[:])
		if n == 1 {
			return wcs[0], true
		}
		if err != nil || polls%512 == 511 && time.Now().After(end) {
			return wcs[0], false
		}
	}
}

// none checks that no completion waits.
func (p *program) none() {
	p.t.Helper()
	var wcs [4]verbs.WC
	if n, err := p.cq.Poll(wcs[:]); n != 0 || err != nil {
		p.t.Errorf("%d completions too many, %v: %+v", n, err, wcs[:n])
	}
}

// status takes a completion and checks its mark and status.
func (p *program) status(wrid uint64, want verbs.WCStatus) verbs.WC {
	p.t.Helper()
	wc := p.next()
	if wc.WRID != wrid || wc.Status != want {
		p.t.Fatalf("completion %d: %v, want %d: %v", wc.WRID, wc.Status, wrid, want)
	}
	return wc
}

// post posts send requests, all of which must be taken.
func (p *program) post(wrs ...verbs.SendWR) {
	p.t.Helper()
	if n, err := p.qp.PostSend(wrs...); n != len(wrs) || err != nil {
		p.t.Fatalf("%d of %d send requests posted: %v", n, len(wrs), err)
	}
}

// do posts one signaled request and waits for its success.
func (p *program) do(wr verbs.SendWR) verbs.WC {
	p.t.Helper()
	wr.Flags |= verbs.SendSignaled
	p.post(wr)
	return p.status(wr.WRID, verbs.WCSuccess)
}

// recv posts a receive into the region.
func (p *program) recv(wrid uint64, off, n int) {
	p.t.Helper()
	wr := verbs.RecvWR{WRID: wrid}
	if n > 0 {
		wr.SGList = []verbs.SGE{p.mr.SGE(off, n)}
	}
	post := p.qp.PostRecv
	if p.srq != nil {
		post = p.srq.PostRecv
	}
	if _, err := post(wr); err != nil {
		p.t.Fatal(err)
	}
}

// write and read are RDMA requests between the regions.
func (p *program) write(to *program, off, roff, n int) verbs.SendWR {
	return verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{p.mr.SGE(off, n)},
		RemoteAddr: to.mr.Addr() + uint64(roff), RKey: to.mr.RKey(),
	}
}

func (p *program) read(from *program, off, roff, n int) verbs.SendWR {
	wr := p.write(from, off, roff, n)
	wr.Opcode = verbs.WRRDMARead
	return wr
}

// fill writes a pattern that differs by seed.
func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed*13)
	}
}

// alive does one WRITE and one READ back and compares, as proof that a
// connection works.
func alive(a, b *program) {
	a.t.Helper()
	const n = 3000
	fill(a.mr.Bytes()[:n], 1)
	clear(b.mr.Bytes()[:n])
	clear(a.mr.Bytes()[n : 2*n])
	a.do(a.write(b, 0, 0, n))
	a.do(a.read(b, n, 0, n))
	if !bytes.Equal(a.mr.Bytes()[:n], a.mr.Bytes()[n:2*n]) || !bytes.Equal(a.mr.Bytes()[:n], b.mr.Bytes()[:n]) {
		a.t.Error("the data that arrived is not what was sent")
	}
}

// eventually waits for a condition that nothing announces.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	end := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(end) {
			t.Fatalf("still not: %s", what)
		}
		<-tick.C
	}
}

package transport_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/simnet"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// A twin records what a test's queue pairs do, for a comparison with the same
// test whose queue pairs do not handle runs. A nil twin does nothing.
type twin struct {
	runs   bool
	rand   simnet.Rand
	log    []string
	buf    [64 << 10]byte
	sent   int // packets built as part of runs
	taken  int // packets handled as part of runs
	failed string
}

// note records the state of an end.
func (t *twin) note(e *end) {
	if t != nil {
		t.log = append(t.log, fmt.Sprintf("%v: %v %v %v", e.qpn, e.qp.NextTimeout(), e.qp.Window(), e.qp.Inner()))
	}
}

// built records a packet.
func (t *twin) built(e *end, b []byte) {
	if t != nil {
		t.log = append(t.log, fmt.Sprintf("%v-> %s %x", e.qpn, packetText(b), b[len(b)-bth.ICRCLen:]))
	}
}

// pollRun builds a run behind a packet of n bytes, at random, of as many packets
// as begin within room bytes, and returns its length in bytes.
func (t *twin) pollRun(e *end, now time.Time, n, room int, send func([]byte)) int {
	if t == nil || !t.runs || room <= 0 || t.rand.IntN(4) == 0 {
		return 0
	}
	var p bth.Packet
	if err := p.Parse(e.buf[:n]); err != nil {
		t.failed = err.Error()
		return 0
	}
	size := bth.BTHLen + len(p.Payload) + bth.ICRCLen
	buf := t.buf[:t.rand.IntN(len(t.buf))]
	for i := range buf {
		buf[i] = 0xEE
	}
	most := min((room+size-1)/size, t.rand.IntN(40))
	k, first := e.qp.PollMiddles(now, buf, most)
	if k > 0 && (k > most || k*size > len(buf) || first != p.BTH().PSN().Add(1)) {
		t.failed = fmt.Sprintf("behind %s: %d packets, the first has PSN %v; room for %d", packetText(e.buf[:n]), k, first, most)
		return 0
	}
	for i := k * size; i < len(buf); i++ {
		if buf[i] != 0xEE {
			t.failed = fmt.Sprintf("a run of %d packets of %d bytes: byte %d was written", k, size, i)
			break
		}
	}
	for i := range k {
		t.built(e, buf[i*size:(i+1)*size])
		send(buf[i*size : (i+1)*size])
	}
	t.sent += k
	return k * size
}

// sendRun sends a run behind a packet of n bytes that a side of the world sent,
// and returns the number of packets.
func (t *twin) sendRun(w *world, s *side, now time.Time, n int) (k int) {
	t.built(s.end, s.buf[:n])
	t.pollRun(s.end, now, n, 1<<30, func(b []byte) {
		w.net.Send(s.index, 1-s.index, b)
		k++
	})
	return k
}

// differ says where two twins differ.
func (t *twin) differ(u *twin) string {
	if t.failed != "" {
		return t.failed
	}
	for i := range min(len(t.log), len(u.log)) {
		if t.log[i] != u.log[i] {
			return fmt.Sprintf("entry %d of %d: got\n%s\nwant\n%s", i, len(u.log), t.log[i], u.log[i])
		}
	}
	if len(t.log) != len(u.log) {
		return fmt.Sprintf("%d entries, want %d", len(t.log), len(u.log))
	}
	return ""
}

// twins runs the world of a configuration with and without runs. Nothing must
// tell the two apart.
func twins(t *testing.T, make func() worldConfig) (runs *twin) {
	var pair [2]*twin
	var errs [2]string
	for i := range pair {
		c := make()
		w := newWorld(t, c)
		pair[i] = &twin{runs: i == 1, rand: simnet.NewRand(c.seed)}
		w.twin = pair[i]
		if err := w.run(); err != nil {
			errs[i] = err.Error()
		}
	}
	if s := pair[1].differ(pair[0]); s != "" {
		t.Errorf("seed %d: %s", make().seed, s)
	}
	if errs[0] != errs[1] {
		t.Errorf("seed %d: %s, want %s", make().seed, errs[1], errs[0])
	}
	return pair[1]
}

// runsOf is the configuration of a seed: half of them without jitter, so that
// packets arrive in runs, some without losses.
func runsOf(seed uint64) worldConfig {
	c := pairOf(seed, []float64{0, .01, .05}[seed%3])
	c.refuse = false // it draws by the packet
	if seed%2 == 0 {
		c.net.Jitter = 0
	}
	if seed%5 > 1 {
		c.opts.window = 1 << 20
	}
	c.opts.mtu = bth.MTU256 + bth.MTU(seed/2%3)
	return c
}

// TestRunsChangeNothing: packets built and handled as runs are the same, byte
// for byte, and leave the same state behind, as those built and handled one by
// one.
func TestRunsChangeNothing(t *testing.T) {
	seeds := *simSeeds / 2
	if testing.Short() {
		seeds = (seeds + 9) / 10
	}
	sent, taken := 0, 0
	for seed := *simFrom; seed < *simFrom+uint64(seeds); seed++ {
		r := twins(t, func() worldConfig { return runsOf(seed) })
		sent += r.sent
		taken += r.taken
	}
	t.Logf("%d seeds: %d packets sent and %d handled in runs", seeds, sent, taken)
	if sent == 0 {
		t.Error("no runs")
	}
}

// TestRunsOfMany: the same with queue pairs that share the windows to a peer.
func TestRunsOfMany(t *testing.T) {
	for _, op := range []wq.Opcode{wq.RDMAWrite, wq.RDMARead} {
		for seed := range uint64(6) {
			var pair [2]*twin
			for i := range pair {
				f := newFleet(t, fleetConfig{
					net: simnet.Config{Seed: seed, Delay: netDelay, Loss: []float64{0, .002}[seed%2]},
					qps: int(1 + 3*seed), op: op, size: 200 << 10, mtu: bth.MTU256 + bth.MTU(seed%5),
				})
				pair[i] = &twin{runs: i == 1, rand: simnet.NewRand(seed)}
				f.twin = pair[i]
				f.run(4<<20, time.Second)
			}
			if s := pair[1].differ(pair[0]); s != "" {
				t.Fatalf("%v, seed %d: %s", op, seed, s)
			}
			if pair[1].sent == 0 {
				t.Errorf("%v, seed %d: no runs", op, seed)
			}
		}
	}
}

// FuzzRuns compares twins while bytes choose what happens to each packet.
func FuzzRuns(f *testing.F) {
	f.Add([]byte{}, uint16(0))
	f.Add([]byte{0, 0, 1, 0, 0, 0, 0, 2, 3, 4}, uint16(2))
	f.Fuzz(func(t *testing.T, fates []byte, seed uint16) {
		twins(t, func() worldConfig {
			c := runsOf(uint64(seed))
			c.ops = 12
			c.net.Choose = func(seq uint64, _ int) (fate simnet.Fate) {
				if seq < uint64(len(fates)) {
					fate.Drop = fates[seq]&3 == 1
					fate.Hold = time.Duration(fates[seq]>>2) * time.Microsecond
				}
				return fate
			}
			return c
		})
	})
}

// BenchmarkRuns is what the engine takes for a packet of a long WRITE or READ,
// with runs and without.
func BenchmarkRuns(b *testing.B) {
	for _, mtu := range []bth.MTU{bth.MTU1024, bth.MTU4096} {
		for _, op := range []wq.Opcode{wq.RDMAWrite, wq.Send, wq.RDMARead} {
			for _, runs := range []bool{false, true} {
				b.Run(fmt.Sprintf("mtu%d/%v/runs=%v", mtu.Bytes(), op, runs), func(b *testing.B) { benchRuns(b, mtu, op, runs) })
			}
		}
	}
}

const benchRunSize = 256 << 10

func benchRuns(b *testing.B, mtu bth.MTU, op wq.Opcode, runs bool) {
	x, y := connected(b, options{mtu: mtu})
	m := &mill{buf: make([]byte, benchRunSize+1<<16), mtu: mtu.Bytes(), runs: runs}
	wr := wq.SendWR{Opcode: op, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(0, benchRunSize)}}
	recv := wq.RecvWR{SGList: []wq.SGE{y.sge(0, benchRunSize)}}
	b.ReportAllocs()
	for b.Loop() {
		if op == wq.Send {
			if err := y.recv.Push(&recv); err != nil {
				b.Fatal(err)
			}
		}
		x.post(start, wr)
		for m.move(x, y) || m.move(y, x) {
		}
		y.recvCQ.take0()
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(m.pull)/float64(m.sent), "ns/pull")
	b.ReportMetric(float64(m.handle)/float64(m.sent), "ns/handle")
}

// A mill moves packets from one end to the other, in runs or not, and measures
// what each of the two takes for it. Parsing is not measured.
type mill struct {
	buf    []byte
	lens   []int
	pkts   []transport.Packet
	runs   bool
	mtu    int
	sent   int
	pull   time.Duration
	handle time.Duration
}

// move moves at most one run and reports whether there was one.
func (m *mill) move(x, y *end) bool {
	m.lens = m.lens[:0]
	at := 0
	t0 := time.Now()
	for len(m.buf)-at > transport.TransmitSpace && len(m.lens) < beltBatch {
		n, tx := x.qp.PollTransmit(start, m.buf[at:])
		if n == 0 {
			break
		}
		m.lens = append(m.lens, n)
		at += n
		if !m.runs || tx.Opcode == bth.RCAcknowledge {
			continue
		}
		k, _ := x.qp.PollMiddles(start, m.buf[at:], beltBatch-len(m.lens))
		if k == 0 {
			continue
		}
		size := bth.BTHLen + m.mtu + bth.ICRCLen
		for range k {
			m.lens = append(m.lens, size)
		}
		at += k * size
	}
	m.pull += time.Since(t0)
	m.sent += len(m.lens)
	m.give(x, y)
	return len(m.lens) > 0
}

// give hands the packets that were moved to y.
func (m *mill) give(x, y *end) {
	if m.pkts == nil {
		m.pkts = make([]transport.Packet, beltBatch)
	}
	at := 0
	for i, n := range m.lens {
		p := &m.pkts[i]
		p.Src, p.Dst = x.gid, y.gid
		if err := p.Parse(m.buf[at : at+n]); err != nil {
			y.t.Fatal(err)
		}
		at += n
	}
	t0 := time.Now()
	for i := range m.lens {
		y.qp.HandlePacket(start, &m.pkts[i])
	}
	m.handle += time.Since(t0)
}

package transport_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/simnet"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// A twin records what a test's queue pairs do, for a comparison with the same
// test whose queue pairs do not handle runs. A nil twin does nothing.
type twin struct {
	runs   bool
	rand   simnet.Rand
	log    []string
	states map[int]string // of the end that made the entry before
	quiet  bool           // inside a run
	buf    [64 << 10]byte
	ahead  []simnet.Datagram // taken from the network, not handled
	sent   int               // packets built as part of runs
	taken  int               // packets handled as part of runs
	failed string
}

func newTwin(runs bool, seed uint64) *twin {
	return &twin{runs: runs, rand: simnet.NewRand(seed), states: make(map[int]string)}
}

// note records the state of an end.
func (t *twin) note(e *end) {
	if t != nil {
		t.states[len(t.log)] = fmt.Sprintf("%v: %v %v %v", e.qpn, e.qp.NextTimeout(), e.qp.Window(), e.qp.Inner())
	}
}

// entry records what an end did, and its state behind some of the entries, when
// it is not inside a run.
func (t *twin) entry(e *end, s string) {
	t.log = append(t.log, s)
	if !t.quiet && len(t.log)%5 == 0 {
		t.note(e)
	}
}

// built records a packet.
func (t *twin) built(e *end, b []byte) {
	if t != nil {
		t.entry(e, fmt.Sprintf("%v-> %s %x", e.qpn, packetText(b), b[len(b)-bth.ICRCLen:]))
	}
}

// handled records the verdict on a packet.
func (t *twin) handled(e *end, b []byte, v transport.Verdict) {
	if t != nil {
		t.entry(e, fmt.Sprintf("%v<- %s %v", e.qpn, packetText(b), v))
	}
}

// take is the next datagram.
func (t *twin) take(n *simnet.Net) (simnet.Datagram, bool) {
	if t == nil || len(t.ahead) == 0 {
		return n.Take()
	}
	d := t.ahead[0]
	t.ahead = t.ahead[1:]
	return d, true
}

// takeRun hands the packets that follow d, which an end handled, on as a run, as
// an adapter would, when they are one, and a random part of it at that. bare:
// they have no ICRC.
func (t *twin) takeRun(n *simnet.Net, e *end, d *simnet.Datagram, v transport.Verdict, bare bool) {
	if t == nil || !t.runs || v != transport.Accepted || t.rand.IntN(8) == 0 {
		return
	}
	var p bth.Packet
	if p.Parse(d.Data) != nil || p.Info.Position != bth.First && p.Info.Position != bth.Middle {
		return
	}
	size, op := bth.BTHLen+len(p.Payload)+bth.ICRCLen, middleOf[p.Info.Op]
	lead := append([]byte(nil), d.Data[:bth.BTHLen-3]...)
	lead[0], lead[4], lead[8] = byte(op), 0, 0
	h := bth.NetHeader{Src: e.parsed.Src, Dst: e.gid, SrcPort: worldPort, DstPort: 4791}
	first, k := p.BTH().PSN().Add(1), 0
	var run []byte
	for most := 1 + t.rand.IntN(60); k < most && t.look(n, k); k++ {
		b := t.ahead[k].Data
		if t.ahead[k].To != d.To || len(b) != size || !bytes.HasPrefix(b, lead) || bth.BTH(b).PSN() != first.Add(uint32(k)) {
			break
		}
		if !bare && bth.ICRC(h.Seed(size), b[:size-bth.ICRCLen]) != binary.LittleEndian.Uint32(b[size-bth.ICRCLen:]) {
			break
		}
		run = append(run, b...)
	}
	took := e.qp.HandleMiddles(n.Now(), op, first, run, size)
	if took < 0 || took > k {
		t.failed = fmt.Sprintf("took %d of %d packets", took, k)
		return
	}
	for i := range took {
		t.quiet = i < took-1
		t.handled(e, t.ahead[i].Data, transport.Accepted)
	}
	t.quiet = false
	t.ahead = t.ahead[took:]
	t.taken += took
}

// look says whether there is a datagram k places behind the one that is handled.
func (t *twin) look(n *simnet.Net, k int) bool {
	if k < len(t.ahead) {
		return true
	}
	d, ok := n.Take()
	if ok {
		d.Data = append([]byte(nil), d.Data...)
		t.ahead = append(t.ahead, d)
	}
	return ok
}

var middleOf = map[bth.Op]bth.Opcode{
	bth.OpSend: bth.RCSendMiddle, bth.OpWrite: bth.RCWriteMiddle, bth.OpReadResponse: bth.RCReadResponseMiddle,
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
		t.quiet = i < k-1
		t.built(e, buf[i*size:(i+1)*size])
		send(buf[i*size : (i+1)*size])
	}
	t.quiet = false
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
	for i := range len(t.log) + 1 {
		s, noted := t.states[i]
		if !noted {
			continue
		}
		if want, ok := u.states[i]; ok && s != want {
			return fmt.Sprintf("after entry %d, %s: got\n%s\nwant\n%s", i-1, t.log[i-1], s, want)
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
		pair[i] = newTwin(i == 1, c.seed)
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
	if sent == 0 || taken == 0 {
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
				pair[i] = newTwin(i == 1, seed)
				f.twin = pair[i]
				f.run(4<<20, time.Second)
			}
			if s := pair[1].differ(pair[0]); s != "" {
				t.Fatalf("%v, seed %d: %s", op, seed, s)
			}
			if pair[1].sent == 0 || pair[1].taken == 0 {
				t.Errorf("%v, seed %d: no runs", op, seed)
			}
		}
	}
}

// TestRunsAllocateNothing: nor do they in steady state.
func TestRunsAllocateNothing(t *testing.T) {
	for _, op := range []wq.Opcode{wq.RDMAWrite, wq.Send, wq.RDMARead} {
		x, y := connected(t, options{})
		m := newMill(bth.MTU1024, true)
		step := func() { m.message(op, x, y) }
		for range 70 { // the slots of the receive queue have their lists then
			step()
		}
		if n := testing.AllocsPerRun(20, step); n != 0 {
			t.Errorf("%v: %v allocations a message", op, n)
		}
	}
}

// inStep treats two equal pairs alike up to a point, which prepare leads to, and
// then the one with runs and the other without. It gives the end that is looked
// at.
func inStep(t *testing.T, prepare func(x, y *end) *end, runs, plain func(e *end)) {
	t.Helper()
	var got [2]string
	for i, then := range []func(*end){runs, plain} {
		x, y := connected(t, options{peers: [2]*transport.Peers{transport.NewPeers(0), transport.NewPeers(0)}})
		e := prepare(x, y)
		then(e)
		got[i] = e.qp.Inner()
	}
	if got[0] != got[1] {
		t.Errorf("got\n%s\nwant\n%s", got[0], got[1])
	}
}

// TestRunBehindOwnRequest: what a request left of the window goes back when
// responses follow.
func TestRunBehindOwnRequest(t *testing.T) {
	inStep(t, func(x, y *end) *end {
		x.post(start, wq.SendWR{Opcode: wq.RDMARead, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(0, 8<<10)}})
		y.post(start, wq.SendWR{Opcode: wq.RDMAWrite, RemoteAddr: memBase, RKey: x.mr.RKey(), SGList: []wq.SGE{y.sge(0, 2000)}})
		y.poll(start)
		y.handle(start, x.poll(start), x.gid)
		y.poll(start)
		y.poll(start)
		return y
	}, func(y *end) {
		if n, _ := y.qp.PollMiddles(start, make([]byte, 1<<16), 4); n != 0 {
			t.Errorf("%d packets in the place of a request", n)
		}
		y.poll(start)
		if n, _ := y.qp.PollMiddles(start, make([]byte, 1<<16), 4); n != 4 {
			t.Errorf("%d packets, want 4", n)
		}
	}, func(y *end) {
		for range 5 {
			y.poll(start)
		}
	})
}

// TestRunOfLateResponses: responses that come when the request is about to be
// sent again.
func TestRunOfLateResponses(t *testing.T) {
	var late [][]byte
	var now time.Time
	inStep(t, func(x, y *end) *end {
		x.post(start, wq.SendWR{Opcode: wq.RDMARead, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(0, 3000), x.sge(3000, 5192)}})
		y.handle(start, x.poll(start), x.gid)
		late = y.pollAll(start)
		now = x.qp.NextTimeout()
		x.qp.HandleTimeout(now)
		x.handle(now, late[0], y.gid)
		return x
	}, func(x *end) {
		run := bytes.Join(late[1:], nil)
		if n := x.qp.HandleMiddles(now, bth.RCReadResponseMiddle, bth.BTH(run).PSN(), run[:6*1040], 1040); n != 6 {
			t.Errorf("took %d packets, want 6", n)
		}
	}, func(x *end) {
		for _, b := range late[1:7] {
			x.handle(now, b, gid4(2))
		}
	})
}

// TestRunBehindGap: a run that fills a gap ends what was said about it.
func TestRunBehindGap(t *testing.T) {
	var pkts [][]byte
	inStep(t, func(x, y *end) *end {
		x.post(start, wq.SendWR{Opcode: wq.RDMAWrite, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(0, 8<<10)}})
		pkts = x.pollAll(start)
		y.handle(start, pkts[0], x.gid)
		y.handle(start, pkts[4], x.gid)
		y.poll(start)
		return y
	}, func(y *end) {
		run := bytes.Join(pkts[1:], nil)
		if n := y.qp.HandleMiddles(start, bth.RCWriteMiddle, bth.BTH(run).PSN(), run[:3*1040], 1040); n != 3 {
			t.Errorf("took %d packets, want 3", n)
		}
	}, func(y *end) {
		for _, b := range pkts[1:4] {
			y.handle(start, b, gid4(1))
		}
	})
}

// TestRunTooLong: a run that does not end where its message must is taken as
// far as it goes.
func TestRunTooLong(t *testing.T) {
	for _, c := range []struct {
		op    wq.Opcode
		size  int // of the message
		recv  int
		takes int
	}{{wq.RDMAWrite, 4096, 0, 2}, {wq.RDMAWrite, 4097, 0, 3}, {wq.Send, 4096, 4096, 3}, {wq.Send, 4096, 4095, 2}, {wq.RDMARead, 4096, 0, 2}} {
		x, y := connected(t, options{})
		e, from := y, x
		y.postRecv(start, 1, y.sge(0, c.recv))
		x.post(start, wq.SendWR{Opcode: c.op, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(0, c.size)}})
		if c.op == wq.RDMARead {
			y.handle(start, x.poll(start), x.gid)
			e, from = x, y
		}
		first := from.poll(start)
		e.handle(start, first, from.gid)
		op := middleOf[bth.Opcode(first[0]).Info().Op]
		if n := e.qp.HandleMiddles(start, op, bth.BTH(first).PSN().Add(1), make([]byte, 10*1040), 1040); n != c.takes {
			t.Errorf("%v of %d bytes: took %d packets, want %d", c.op, c.size, n, c.takes)
		}
	}
}

// unmapped is memory that can only be copied.
type unmapped struct{ mrtable.HeapMemory }

func (unmapped) Bytes(uint64, uint64) []byte { return nil }

// TestRunsLeaveTheRest: what is not simple is left to PollTransmit and
// HandlePacket, and nothing changed.
func TestRunsLeaveTheRest(t *testing.T) {
	const size = 8 << 10
	for _, c := range []struct {
		name         string
		op           wq.Opcode
		change       func(x, y *end) // behind the first packet
		polls, takes int
	}{
		{"WRITE", wq.RDMAWrite, func(_, _ *end) {}, 6, 6},
		{"SEND", wq.Send, func(_, _ *end) {}, 6, 6},
		{"sender's key is gone", wq.RDMAWrite, func(x, _ *end) { _ = x.keys.Mark(x.mr) }, 0, 0},
		{"receiver's key is gone", wq.RDMAWrite, func(_, y *end) { _ = y.keys.Mark(y.mr) }, 6, 0},
		{"receive's key is gone", wq.Send, func(_, y *end) { _ = y.keys.Mark(y.mr) }, 6, 0},
		{"an answer waits", wq.RDMAWrite, func(x, y *end) {
			y.post(start, wq.SendWR{Opcode: wq.RDMAWrite, RemoteAddr: memBase, RKey: x.mr.RKey(), SGList: []wq.SGE{y.sge(0, 8)}})
			x.handle(start, y.poll(start), y.gid)
		}, 0, 0},
		{"no remote access any more", wq.RDMAWrite, func(_, y *end) {
			a := qpstate.Attr{AccessFlags: uint32(mrtable.AccessRemoteRead)}
			if err := y.qp.Modify(start, &a, qpstate.MaskAccessFlags, nil); err != nil {
				t.Fatal(err)
			}
		}, 6, 0},
		{"sender in ERR", wq.RDMAWrite, func(x, _ *end) { x.qp.Fatal(start) }, 0, 0},
		{"receiver in ERR", wq.RDMAWrite, func(_, y *end) { y.qp.Fatal(start) }, 6, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, y := connected(t, options{})
			y.postRecv(start, 1, y.sge(0, size))
			x.post(start, wq.SendWR{Opcode: c.op, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(0, size)}})
			first := x.poll(start)
			y.handle(start, first, x.gid)
			c.change(x, y)
			buf := make([]byte, 64<<10)
			before := x.qp.Inner()
			n, psn := x.qp.PollMiddles(start, buf, 100)
			if n != c.polls {
				t.Fatalf("built %d packets, want %d", n, c.polls)
			}
			if n == 0 {
				if x.qp.Inner() != before {
					t.Errorf("nothing was built, but the state changed")
				}
				return
			}
			op, ln := bth.Opcode(buf[0]), bth.BTHLen+1024+bth.ICRCLen
			before = y.qp.Inner()
			for _, bad := range []struct {
				op   bth.Opcode
				psn  bth.PSN
				size int
			}{{bth.RCReadResponseMiddle, psn, ln}, {bth.RCSendLast, psn, ln}, {op ^ bth.RCSendMiddle ^ bth.RCWriteMiddle, psn, ln}, {op, psn + 1, ln}, {op, psn - 1, ln}, {op, psn, ln / 2}, {op, psn, 2 * ln}} {
				if k := y.qp.HandleMiddles(start, bad.op, bad.psn, buf[:n*ln], bad.size); k != 0 {
					t.Errorf("took %d packets, opcode %v, PSN %v, size %d", k, bad.op, bad.psn, bad.size)
				}
			}
			if y.qp.Inner() != before {
				t.Errorf("nothing was taken, but the state changed")
			}
			if k := y.qp.HandleMiddles(start, op, psn, buf[:n*ln+17], ln); k != c.takes {
				t.Errorf("took %d packets, want %d", k, c.takes)
			}
		})
	}
}

// TestRunsOfCopiedMemory: memory that is not mapped is not sent in runs, but is
// written by them.
func TestRunsOfCopiedMemory(t *testing.T) {
	const size = 8 << 10
	copied := func(e *end) *end {
		r, err := e.keys.Register(1, unmapped{e.mem}, memBase, memSize, allAccess, 0)
		if err != nil {
			t.Fatal(err)
		}
		e.mr = r
		return e
	}
	x, y := connected(t, options{})
	copied(x)
	x.post(start, wq.SendWR{Opcode: wq.RDMAWrite, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(0, size)}})
	for x.poll(start) != nil {
		if n, _ := x.qp.PollMiddles(start, make([]byte, 1<<16), 100); n != 0 {
			t.Fatalf("a run of %d packets from memory that is not mapped", n)
		}
	}
	x, y = connected(t, options{})
	copied(y)
	m := newMill(bth.MTU1024, true)
	m.message(wq.RDMAWrite, x, y)
	if !bytes.Equal(x.mem[:benchRunSize], y.mem[:benchRunSize]) {
		t.Error("the message differs")
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
	m := newMill(mtu, runs)
	b.ReportAllocs()
	for b.Loop() {
		m.message(op, x, y)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(m.pull)/float64(m.sent), "ns/pull")
	b.ReportMetric(float64(m.handle)/float64(m.sent), "ns/handle")
}

func newMill(mtu bth.MTU, runs bool) *mill {
	return &mill{buf: make([]byte, benchRunSize+1<<16), pkts: make([]transport.Packet, beltBatch), runs: runs, mtu: mtu.Bytes()}
}

// message moves a message of x.
func (m *mill) message(op wq.Opcode, x, y *end) {
	if op == wq.Send {
		m.recv.SGList = append(m.recv.SGList[:0], y.sge(0, benchRunSize))
		if err := y.recv.Push(&m.recv); err != nil {
			y.t.Fatal(err)
		}
	}
	m.wr = wq.SendWR{Opcode: op, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: append(m.wr.SGList[:0], x.sge(0, benchRunSize))}
	if err := x.qp.PostSend(start, &m.wr); err != nil {
		x.t.Fatal(err)
	}
	for m.move(x, y) || m.move(y, x) {
	}
	y.recvCQ.take0()
}

// A mill moves packets from one end to the other, in runs or not, and measures
// what each of the two takes for it. Parsing is not measured.
type mill struct {
	buf    []byte
	lens   []int
	pkts   []transport.Packet
	wr     wq.SendWR
	recv   wq.RecvWR
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
	at = 0
	for i := 0; i < len(m.lens); {
		p := &m.pkts[i]
		y.qp.HandlePacket(start, p)
		at += m.lens[i]
		i++
		k, size := 0, bth.BTHLen+m.mtu+bth.ICRCLen
		for m.runs && i+k < len(m.lens) && m.lens[i+k] == size && !m.pkts[i+k].BTH().AckReq() && m.pkts[i+k].Info.Position == bth.Middle {
			k++
		}
		if k > 0 {
			k = y.qp.HandleMiddles(start, m.pkts[i].Opcode, m.pkts[i].BTH().PSN(), m.buf[at:at+k*size], size)
			at, i = at+k*size, i+k
		}
	}
	m.handle += time.Since(t0)
}

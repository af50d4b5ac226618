package transport_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// A belt carries packets from one end to the other, a batch at a time, and
// measures what each engine takes for them. Parsing is not measured: it is the
// caller's.
type belt struct {
	a, b   []*end
	pkts   []transport.Packet
	arena  []byte
	lens   []int
	posts  int
	sent   int // request packets
	acks   int
	post   time.Duration
	pull   time.Duration // PollTransmit of requests
	handle time.Duration // HandlePacket of requests
	ack    time.Duration // both ends' work on acknowledgements
}

const beltBatch = 64

func newBelt(b *testing.B, pairs int, o options, omit bool) *belt {
	l := &belt{pkts: make([]transport.Packet, beltBatch), arena: make([]byte, beltBatch*transport.TransmitSpace), lens: make([]int, beltBatch)}
	for range pairs {
		x, y := connected(b, o)
		x.qp.OmitICRC(omit)
		y.qp.OmitICRC(omit)
		l.a, l.b = append(l.a, x), append(l.b, y)
	}
	return l
}

// pullFrom builds packets until the batch is full or the end has none.
func (l *belt) pullFrom(e *end, n int) int {
	for n < beltBatch {
		k, _ := e.qp.PollTransmit(start, l.arena[n*transport.TransmitSpace:])
		if k == 0 {
			break
		}
		l.lens[n] = k
		n++
	}
	return n
}

// parse parses packets [from, to) for the end.
func (l *belt) parse(from, to int, e, peer *end) {
	for i := from; i < to; i++ {
		p := &l.pkts[i]
		p.Src, p.Dst = peer.gid, e.gid
		at := i * transport.TransmitSpace
		if err := p.Parse(l.arena[at : at+l.lens[i]]); err != nil {
			e.t.Fatal(err)
		}
	}
}

// run moves packets until all is done.
func (l *belt) run(ends []int) {
	for moved := true; moved; {
		n := 0
		t0 := time.Now()
		for i, x := range l.a {
			n = l.pullFrom(x, n)
			ends[i] = n
		}
		l.pull += time.Since(t0)
		l.sent += n
		moved = n > 0
		from := 0
		for i := range l.a {
			l.parse(from, ends[i], l.b[i], l.a[i])
			from = ends[i]
		}
		t0 = time.Now()
		from = 0
		for i, y := range l.b {
			for ; from < ends[i]; from++ {
				y.qp.HandlePacket(start, &l.pkts[from])
			}
		}
		l.handle += time.Since(t0)
		t0 = time.Now()
		for i, y := range l.b {
			n := l.pullFrom(y, 0)
			l.parse(0, n, l.a[i], y)
			for k := range n {
				l.a[i].qp.HandlePacket(start, &l.pkts[k])
			}
			l.acks += n
			moved = moved || n > 0
		}
		l.ack += time.Since(t0)
		for i := range l.a {
			l.a[i].sendCQ.take0()
			l.b[i].recvCQ.take0()
		}
	}
}

// BenchmarkEngine is what the engine alone takes for a stream of WRITEs: ns a
// packet in PollTransmit and in HandlePacket, ns a request in PostSend, and ns
// a packet for the acknowledgements. "bare" is without the CRC, but with the
// copies; BenchmarkCopy measures those.
func BenchmarkEngine(b *testing.B) {
	for _, c := range []struct {
		name        string
		mtu         bth.MTU
		size, burst int // bytes of a message, messages a queue pair and round
		pairs       int
		typ         qpstate.Type
	}{
		{"mtu4096", bth.MTU4096, 256 << 10, 1, 1, qpstate.RC},
		{"mtu1024", bth.MTU1024, 256 << 10, 1, 1, qpstate.RC},
		{"64B-16qps", bth.MTU1024, 64, 4, 16, qpstate.RC},
		{"uc-mtu1024", bth.MTU1024, 256 << 10, 1, 1, qpstate.UC},
		{"uc-64B-16qps", bth.MTU1024, 64, 4, 16, qpstate.UC},
	} {
		for _, omit := range []bool{false, true} {
			name := c.name + "/icrc"
			if omit {
				name = c.name + "/bare"
			}
			b.Run(name, func(b *testing.B) {
				o := options{typ: c.typ, mtu: c.mtu, sendWR: 64, memSize: max(c.size, 1<<16)}
				l := newBelt(b, c.pairs, o, omit)
				ends := make([]int, c.pairs)
				b.ReportAllocs()
				for b.Loop() {
					t0 := time.Now()
					for i, x := range l.a {
						wr := wq.SendWR{Opcode: wq.RDMAWrite, RemoteAddr: memBase, RKey: l.b[i].mr.RKey(), SGList: []wq.SGE{x.sge(0, c.size)}}
						for k := range c.burst {
							if k == c.burst-1 {
								wr.Flags = wq.SendSignaled
							}
							x.post(start, wr)
							l.posts++
						}
					}
					l.post += time.Since(t0)
					l.run(ends)
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(l.pull)/float64(l.sent), "ns/pull")
				b.ReportMetric(float64(l.handle)/float64(l.sent), "ns/handle")
				b.ReportMetric(float64(l.post)/float64(l.posts), "ns/post")
				b.ReportMetric(float64(l.ack)/float64(l.sent), "ns/ack-a-packet")
				b.ReportMetric(float64(l.sent)/float64(max(l.acks, 1)), "packets/ack")
			})
		}
	}
}

// BenchmarkCopy is the copy of a payload in the pattern of BenchmarkEngine.
func BenchmarkCopy(b *testing.B) {
	for _, n := range []int{64, 1024, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			src, dst := make([]byte, 256<<10), make([]byte, beltBatch*transport.TransmitSpace)
			i, k := 0, 0
			for b.Loop() {
				copy(dst[k+28:k+28+n], src[i:i+n])
				if i += n; i == len(src) {
					i = 0
				}
				if k += transport.TransmitSpace; k == len(dst) {
					k = 0
				}
			}
		})
	}
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

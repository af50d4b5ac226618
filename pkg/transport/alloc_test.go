package transport_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// loop moves packets between two ends without making anything.
type loop struct {
	a, b *end
	now  time.Time
}

func (l *loop) settle() {
	for moved := true; moved; {
		moved = false
		for _, d := range [2][2]*end{{l.a, l.b}, {l.b, l.a}} {
			for {
				n, _ := d[0].qp.PollTransmit(l.now, d[0].buf[:])
				if n == 0 {
					break
				}
				moved = true
				p := &d[1].parsed
				p.Src, p.Dst = d[0].gid, d[1].gid
				if p.Parse(d[0].buf[:n]) == nil {
					d[1].qp.HandlePacket(l.now, p)
				}
			}
		}
	}
	l.a.sendCQ.take0()
	l.a.recvCQ.take0()
	l.b.sendCQ.take0()
	l.b.recvCQ.take0()
}

// TestNoAllocation: in steady state nothing is allocated, per packet or per work
// request, on either side, for any operation; nor for a loss and its repair.
func TestNoAllocation(t *testing.T) {
	for _, n := range []int{0, 8, 100, 10000} {
		for _, op := range []wq.Opcode{wq.Send, wq.SendWithImm, wq.RDMAWrite, wq.RDMAWriteWithImm, wq.RDMARead, wq.AtomicFetchAndAdd, wq.AtomicCmpAndSwp} {
			for _, inline := range []bool{false, true} {
				atomic := op == wq.AtomicFetchAndAdd || op == wq.AtomicCmpAndSwp
				if inline && (n > 512 || atomic || op == wq.RDMARead) || atomic && n != 8 {
					continue
				}
				t.Run(fmt.Sprintf("%v/len=%d/inline=%v", op, n, inline), func(t *testing.T) {
					a, b := connected(t, options{sigAll: true, timeout: 8})
					l := &loop{a, b, start}
					wr := wq.SendWR{Opcode: op, RemoteAddr: memBase, RKey: b.mr.RKey(), SGList: []wq.SGE{a.sge(0, n/2), a.sge(n/2, n-n/2)}}
					if atomic {
						wr.SGList = []wq.SGE{a.sge(0, 8)}
					}
					if inline {
						wr.Flags, wr.SGList, wr.Inline = wq.SendInline, nil, a.mem[:n]
					}
					recv := wq.RecvWR{SGList: []wq.SGE{b.sge(0x20000, n)}}
					lossy := false
					step := func() {
						for i := 0; i < 3; i++ {
							if err := b.recv.Push(&recv); err != nil {
								b.t.Fatal(err)
							}
							if err := a.qp.PostSend(l.now, &wr); err != nil {
								a.t.Fatal(err)
							}
						}
						if lossy { // the first burst is lost
							for k := 1; k > 0; k, _ = a.qp.PollTransmit(l.now, a.buf[:]) {
							}
							l.now = a.qp.NextTimeout()
							a.qp.HandleTimeout(l.now)
						}
						l.settle()
						for b.recv.Len() > 0 {
							b.recv.TakeRecv(&recv)
						}
					}
					for _, lossy = range []bool{false, true} {
						for i := 0; i < 20; i++ {
							step()
						}
						if k := testing.AllocsPerRun(50, step); k != 0 {
							t.Errorf("lossy %v: %v allocations for three requests", lossy, k)
						}
					}
					if a.qp.State() != qpstate.RTS {
						t.Errorf("state %v", a.qp.State())
					}
				})
			}
		}
	}
}

// TestNoAllocationUnacknowledged: the same for UC and UD, with and without a
// shared receive queue, for lost messages and for errors of the sender.
func TestNoAllocationUnacknowledged(t *testing.T) {
	for _, typ := range []qpstate.Type{qpstate.UC, qpstate.UD} {
		for _, n := range []int{0, 100, 4000} {
			for _, shared := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v/len=%d/srq=%v", typ, n, shared), func(t *testing.T) {
					o := options{typ: typ, sigAll: true}
					if shared {
						o.srq = wq.NewRecvQueue(64)
					}
					a, b := connected(t, o)
					l := &loop{a, b, start}
					wr := a.datagram(1, b, n)
					bad := wr
					bad.SGList = []wq.SGE{{Addr: 1, Length: 8}}
					recv := wq.RecvWR{SGList: []wq.SGE{b.sge(0x20000, 1000), b.sge(0x30000, n+40)}}
					rts := qpstate.Attr{State: qpstate.RTS}
					step := func() {
						for i := range 6 {
							if i < 5 {
								_ = b.recv.Push(&recv)
							}
							if err := a.qp.PostSend(l.now, &wr); err != nil {
								t.Fatal(err)
							}
							if i%3 == 0 { // its first packet is lost
								a.qp.PollTransmit(l.now, a.buf[:])
							}
							l.settle()
						}
						if err := a.qp.PostSend(l.now, &bad); err != nil {
							t.Fatal(err)
						}
						l.settle()
						if err := a.qp.Modify(l.now, &rts, qpstate.MaskState, nil); err != nil {
							t.Fatal(err)
						}
						a.qp.PollEvent()
						b.qp.PollEvent()
						for b.recv.Len() > 0 {
							b.recv.TakeRecv(&recv)
						}
					}
					for range 20 {
						step()
					}
					if k := testing.AllocsPerRun(50, step); k > 1 { // the note of the error
						t.Errorf("%v allocations for seven requests", k)
					}
					if got := b.ctr.Verdicts[transport.Accepted]; got == 0 {
						t.Error("nothing arrived")
					}
				})
			}
		}
	}
}

// TestIdleQPIsSmall: an RC queue pair in RTS without requests takes less than
// 2 KiB, its attributes, path and counters included.
func TestIdleQPIsSmall(t *testing.T) {
	const many = 2000
	o := options{}.withDefaults()
	first := newEnd(t, 0x11, 1, o)
	peer := newEnd(t, 0x22, 2, o)
	cfg := first.cfg
	qps := make([]*end, many)
	for i := range qps {
		qps[i] = &end{t: t, qpn: 0x11, gid: first.gid}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for _, e := range qps {
		var err error
		if e.qp, err = transport.New(cfg); err != nil {
			t.Fatal(err)
		}
	}
	// The path and the attributes given to Modify are the test's own garbage.
	for _, e := range qps {
		e.to(qpstate.RTS, peer, o)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (after.HeapAlloc - before.HeapAlloc) / many
	t.Logf("%d bytes a queue pair", each)
	if each >= 2048 {
		t.Errorf("an idle queue pair takes %d bytes", each)
	}
	for _, x := range []any{qps, first, peer} {
		runtime.KeepAlive(x)
	}
}

// TestSlabIsGivenBack: after its work, and after RESET, a queue pair holds nothing.
func TestSlabIsGivenBack(t *testing.T) {
	a, b := connected(t, options{})
	for i := 0; i < 40; i++ {
		a.post(start, wq.SendWR{Opcode: wq.RDMARead, RemoteAddr: memBase, RKey: b.mr.RKey(), SGList: []wq.SGE{a.sge(0, 100)}})
		a.post(start, wq.SendWR{Opcode: wq.Send, Flags: wq.SendInline, Inline: a.mem[:100]})
		b.postRecv(start, 1, b.sge(0, 100))
		exchange(start, a, b)
	}
	if n := a.slab.InUse(); n != 0 {
		t.Errorf("requester holds %d bytes when idle", n)
	}
	if n := b.slab.InUse(); n == 0 || n > 4096 {
		t.Errorf("responder holds %d bytes of replay records", n)
	}
	a.post(start, wq.SendWR{Opcode: wq.Send, Flags: wq.SendInline, Inline: a.mem[:100]})
	for _, e := range []*end{a, b} {
		e.qp.Close()
		if n := e.slab.InUse(); n != 0 {
			t.Errorf("%d bytes after Close", n)
		}
		if e.qp.State() != qpstate.Reset || !e.qp.NextTimeout().IsZero() {
			t.Errorf("after Close: state %v, timeout %v", e.qp.State(), e.qp.NextTimeout())
		}
	}
}

// BenchmarkWrite is the engine's own cost of a WRITE, both sides, without sockets.
func BenchmarkWrite(b *testing.B) {
	for _, n := range []int{8, 4096, 65536} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x, y := connected(b, options{mtu: bth.MTU4096, sigAll: true})
			l := &loop{x, y, start}
			wr := wq.SendWR{Opcode: wq.RDMAWrite, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(0, n)}}
			b.ReportAllocs()
			b.SetBytes(int64(n))
			for b.Loop() {
				if err := x.qp.PostSend(l.now, &wr); err != nil {
					b.Fatal(err)
				}
				l.settle()
			}
		})
	}
}

package nic

import (
	"bytes"
	"io"
	"runtime"
	"sync"
	"testing"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/verbs"
)

// A full lane makes a sender on the same adapter wait: while the other worker
// does not serve it the lane holds what it holds, and in the end each packet was
// handed over once.
func TestFullLaneMakesTheSenderWait(t *testing.T) {
	for _, c := range []struct {
		name string
		op   verbs.WROpcode
		tap  bool
	}{{"WRITE", verbs.WRRDMAWrite, false}, {"WRITE, captured", verbs.WRRDMAWrite, true}, {"READ", verbs.WRRDMARead, false}} {
		t.Run(c.name, func(t *testing.T) {
			a := startAdapter(t, func(cfg *Config) {
				cfg.Workers, cfg.Window = 2, 4<<20 // a window wider than a lane
				if !c.tap {
					return
				}
				var err error
				if cfg.Capture, err = capture.NewWriter(io.Discard, "lanes", capture.WriterOptions{}); err != nil {
					t.Fatal(err)
				}
			})
			const n = 2 * laneLent
			x, y := newEndpoint(t, openDevice(t, a), n), newEndpoint(t, openDevice(t, a), n)
			wx, wy := a.workerOf(x.qp.Num()), a.workerOf(y.qp.Num())
			if wx == wy {
				t.Fatal("both queue pairs are on one worker")
			}
			s := &site{Adapter: a, e: x}
			join(t, s, &site{Adapter: a, e: y}, 22) // an ACK timer of 17 s
			from, to, src, dst := wx, wy, x, y
			if c.op == verbs.WRRDMARead {
				from, to, src, dst = wy, wx, y, x
			}
			pat := bytes.Repeat([]byte{1, 2, 3, 5, 8}, n/5+1)[:n]
			copy(src.mr.Bytes(), pat)
			busy, release := make(chan struct{}), make(chan struct{})
			var once sync.Once
			end := func() { once.Do(func() { close(release) }) }
			defer end()
			if c.op == verbs.WRRDMAWrite {
				// The one that takes the data is busy with something else.
				to.post(func() { close(busy); <-release })
				<-busy
			}
			wr := verbs.SendWR{
				Opcode: c.op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{x.mr.SGE(0, n)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey(),
			}
			if _, err := x.qp.PostSend(wr); err != nil {
				t.Fatal(err)
			}
			if c.op == verbs.WRRDMAWrite {
				ctx := within(t)
				for stuck := false; !stuck; {
					from.do(func() {
						l := to.lanes[from.index].Load()
						if l == nil {
							return
						}
						slots, lent := l.head.Load()-l.tail.Load(), l.lent-l.back.Load()
						stuck = len(from.waiting) > 0
						if slots > laneSlots || lent > laneLent+turnBytes {
							t.Errorf("the lane holds %d slots and %d bytes", slots, lent)
						}
						if c.tap && lent > 0 || stuck && slots < laneSlots && lent < laneLent {
							t.Errorf("waits with %d slots and %d bytes in the lane", slots, lent)
						}
					})
					if ctx.Err() != nil {
						t.Fatal("the lane does not fill, or the sender does not wait")
					}
					runtime.Gosched()
				}
				end()
			}
			wc, err := completion(within(t), x.cq)
			if err != nil || wc.Status != cq.Success {
				t.Fatalf("%v, %v", wc.Status, err)
			}
			st, again := s.stats()
			if !bytes.Equal(dst.mr.Bytes(), pat) {
				t.Error("the data differ")
			}
			if again != 0 || st.PacketsIn != st.PacketsOut || st.Drops != [NumDrops]uint64{} {
				t.Errorf("%d packets out, %d in, %d sent again, dropped %v", st.PacketsOut, st.PacketsIn, again, st.Drops)
			}
		})
	}
}

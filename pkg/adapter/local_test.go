package adapter_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/softroce/softroce/internal/nic"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

// localPair is two programs of one adapter, whose queue pairs are on one worker
// or on two.
func localPair(t *testing.T, h *host, s shape, together bool) (a, b *program) {
	t.Helper()
	a = h.open(t, s)
	for range 16 {
		b = h.open(t, s) // placed where the fewest are: by turns
		if (h.stats(t, a.qp.Num()).Worker == h.stats(t, b.qp.Num()).Worker) == together {
			return a, b
		}
	}
	t.Fatalf("no two queue pairs with the same worker %v", together)
	return nil, nil
}

// wantMemory checks that the adapter's packets went by memory alone, and none
// was lost.
func wantMemory(t *testing.T, h *host) {
	t.Helper()
	var s nic.WorkerStats
	for _, w := range h.NIC().Snapshot().Workers {
		s.Local += w.Stats.Local
		s.Sends += w.Stats.Sends
		s.PacketsIn += w.Stats.PacketsIn
		s.PacketsOut += w.Stats.PacketsOut
		for why, n := range w.Stats.Drops {
			if n != 0 {
				t.Errorf("%d packets dropped: %v", n, nic.Drop(why))
			}
		}
		if n := w.Transport.Retransmits + w.Transport.Replays; n != 0 {
			t.Errorf("%d packets sent again", n)
		}
	}
	if s.Sends != 0 || s.Local == 0 || s.Local != s.PacketsOut || s.PacketsIn != s.PacketsOut {
		t.Errorf("%d packets out, %d of them by memory, %d in, %d sends", s.PacketsOut, s.Local, s.PacketsIn, s.Sends)
	}
}

// localCells are where two queue pairs of one adapter may be, and whether
// somebody captures.
var localCells = []struct {
	name             string
	workers          int
	together, tapped bool
}{
	{"one worker", 1, true, false},
	{"one worker of two", 2, true, false},
	{"two workers", 2, false, false},
	{"one worker, captured", 1, true, true},
	{"two workers, captured", 2, false, true},
}

// Every verb between two queue pairs of one adapter: no packet uses a socket.
func TestEveryVerbLocally(t *testing.T) {
	for _, c := range localCells {
		t.Run(c.name, func(t *testing.T) {
			var tape bytes.Buffer
			h := start(t, func(cfg *adapter.Config) {
				if cfg.Workers = c.workers; c.tapped {
					cfg.Capture = &tape
				}
			})
			a, b := localPair(t, h, shape{size: 2 << 20}, c.together)
			connect(a, b, verbs.RCConfig{Timeout: 20})
			for range 3 {
				everyVerb(t, a, b)
				everyVerb(t, b, a)
			}
			for _, n := range []int{1 << 20, 2<<20 - 1} {
				big(t, a, b, n)
			}
			wantMemory(t, h)
		})
	}
}

// big writes n bytes to the peer, reads them back and sends them.
func big(t *testing.T, a, b *program, n int) {
	t.Helper()
	fill(a.mr.Bytes()[:n], n)
	want := bytes.Clone(a.mr.Bytes()[:n])
	clear(b.mr.Bytes())
	a.do(a.write(b, 0, 0, n))
	if !bytes.Equal(b.mr.Bytes()[:n], want) {
		t.Errorf("WRITE of %d bytes: the data differ", n)
	}
	clear(a.mr.Bytes())
	a.do(a.read(b, 0, 0, n))
	if !bytes.Equal(a.mr.Bytes()[:n], want) {
		t.Errorf("READ of %d bytes: the data differ", n)
	}
	clear(b.mr.Bytes())
	b.recv(77, 0, n)
	wr := a.write(b, 0, 0, n)
	wr.Opcode = verbs.WRSend
	a.do(wr)
	if b.status(77, verbs.WCSuccess); !bytes.Equal(b.mr.Bytes()[:n], want) {
		t.Errorf("SEND of %d bytes: the data differ", n)
	}
}

// A queue pair whose peer is itself does all that others do.
func TestQueuePairConnectedToItself(t *testing.T) {
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			h := start(t, func(c *adapter.Config) { c.Workers = workers })
			p := h.open(t, shape{size: 1 << 20})
			p.connectTo(p.peer(), verbs.RCConfig{Timeout: 20})
			const n, there = 300_001, 400_000
			mem := p.mr.Bytes()
			fill(mem[:n], 1)
			p.do(p.write(p, 0, there, n))
			if !bytes.Equal(mem[there:there+n], mem[:n]) {
				t.Error("WRITE: the data differ")
			}
			fill(mem[there:there+n], 2)
			p.do(p.read(p, 0, there, n))
			if !bytes.Equal(mem[there:there+n], mem[:n]) {
				t.Error("READ: the data differ")
			}
			fill(mem[:n], 3)
			p.recv(2, there, n)
			wr := p.write(p, 0, 0, n)
			wr.Opcode, wr.WRID, wr.Flags = verbs.WRSend, 1, verbs.SendSignaled
			p.post(wr)
			for wc, seen := p.next(), 0; ; wc = p.next() { // the receive's and the send's
				if wc.Status != verbs.WCSuccess || wc.WRID == 2 && wc.ByteLen != n {
					t.Fatalf("SEND: %+v", wc)
				}
				if seen |= int(wc.WRID); seen == 3 {
					break
				}
			}
			if !bytes.Equal(mem[there:there+n], mem[:n]) {
				t.Error("SEND: the data differ")
			}
			binary.NativeEndian.PutUint64(mem[there:], 41)
			add := p.write(p, 0, there, 8)
			add.Opcode, add.CompareAdd = verbs.WRAtomicFetchAdd, 1
			p.do(add)
			if was, is := binary.NativeEndian.Uint64(mem), binary.NativeEndian.Uint64(mem[there:]); was != 41 || is != 42 {
				t.Errorf("atomic: found %d, left %d; want 41 and 42", was, is)
			}
			p.none()
			wantMemory(t, h)
			// It ends as any other does, with requests of its own on the way.
			for range 20 {
				p.post(p.write(p, 0, there, n))
			}
			must(t, p.qp.Destroy())
		})
	}
}

// A peer on the same adapter that goes under load, alone or with its program:
// what was asked of it ends in an error, each request once, and nobody else is
// disturbed.
func TestLocalPeerGoesUnderLoad(t *testing.T) {
	for _, c := range localCells {
		for _, end := range []string{"destroyed", "in RESET", "its program ends"} {
			t.Run(c.name+", "+end, func(t *testing.T) {
				var tape bytes.Buffer
				h := start(t, func(cfg *adapter.Config) {
					if cfg.Workers = c.workers; c.tapped {
						cfg.Capture = &tape
					}
				})
				x, y := localPair(t, h, shape{}, c.together)
				connect(x, y, verbs.RCConfig{Timeout: 20})
				for round := range 3 {
					a, b := localPair(t, h, shape{size: 1 << 20}, c.together)
					connect(a, b, verbs.RCConfig{Timeout: 8, RetryCnt: 1}) // 1 ms
					const posted = 24
					for i := range posted {
						wr := a.write(b, 0, 0, 200_000)
						if i%2 == 1 { // not what is being read for the WRITEs
							wr = a.read(b, 400_000, 400_000, 200_000)
						}
						wr.WRID, wr.Flags = uint64(i), verbs.SendSignaled
						a.post(wr)
					}
					failed := false
					took := func(i int) {
						t.Helper()
						wc := a.next()
						if wc.WRID != uint64(i) || failed && wc.Status != verbs.WCWRFlushErr {
							t.Fatalf("request %d, after a failed one %v: %+v", i, failed, wc)
						}
						failed = failed || wc.Status != verbs.WCSuccess
					}
					for i := range round * 6 { // some are served, or time out on a busy machine
						took(i)
					}
					switch end {
					case "destroyed":
						must(t, b.qp.Destroy())
					case "in RESET":
						must(t, b.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
					default:
						must(t, b.dev.Close())
					}
					for i := round * 6; i < posted; i++ {
						took(i)
					}
					a.none()
					alive(x, y)
				}
			})
		}
	}
}

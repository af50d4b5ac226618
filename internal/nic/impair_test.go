package nic

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/impair"
	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/udp4791"
	"github.com/softroce/softroce/pkg/verbs"
)

func rulesOf(t testing.TB, text string) []impair.Rule {
	t.Helper()
	rules, err := impair.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func (s *site) impairBy(t testing.TB, text string) {
	t.Helper()
	if _, err := s.Impair(rulesOf(t, text), false); err != nil {
		t.Fatal(err)
	}
}

// meetings are the ways that two queue pairs meet: over the network, and inside of an
// adapter on one worker and on two.
var meetings = []struct {
	name    string
	workers int
	here    bool
}{{"wire", 1, false}, {"wire, 2 workers", 2, false}, {"here", 1, true}, {"here, 2 workers", 2, true}}

// meet makes two connected sites; with here both are the same adapter.
func meet(t *testing.T, workers int, here bool, timeout uint8) (a, b *site) {
	t.Helper()
	change := func(c *Config) { c.Workers = workers }
	a = &site{Adapter: startAdapter(t, change)}
	b = &site{Adapter: a.Adapter}
	if !here {
		b = &site{Adapter: startAdapter(t, change)}
	}
	a.e, b.e = newEndpoint(t, openDevice(t, a.Adapter), 1<<18), newEndpoint(t, openDevice(t, b.Adapter), 1<<18)
	join(t, a, b, timeout)
	return a, b
}

// TestImpairedTransfers moves data under rules that do everything to it, by all
// the ways that two queue pairs meet: it arrives, and each rule did something.
func TestImpairedTransfers(t *testing.T) {
	for _, m := range meetings {
		for _, rule := range []string{
			"drop 5% seed 1", "delay 200us..1ms 20% seed 2", "duplicate 2 20% seed 3", "corrupt 3% seed 4",
			"reorder 2 3% seed 5", "rate 200mbit",
		} {
			t.Run(m.name+"/"+rule, func(t *testing.T) {
				t.Parallel()
				a, b := meet(t, m.workers, m.here, 15) // an ACK timer of 134 ms
				a.impairBy(t, "partition 192.0.2.1\n"+rule)
				for i, n := range []int{1, 1000, 100000, 1 << 18} {
					moveAfresh(t, a, b, verbs.WRRDMAWrite, n, byte(2*i+1))
					moveAfresh(t, a, b, verbs.WRRDMARead, n, byte(2*i+3))
				}
				rules := a.Impairments()
				if r := rules[1]; r.Hit == 0 || r.Matched < r.Hit {
					t.Errorf("%v matched %d packets, hit %d", &r.Rule, r.Matched, r.Hit)
				}
				if r := rules[0]; r.Matched != 0 {
					t.Errorf("%v matched %d packets", &r.Rule, r.Matched)
				}
				if n := a.impairActions()[rules[1].Rule.Action]; n != rules[1].Hit {
					t.Errorf("the action was counted %d times, hits %d", n, rules[1].Hit)
				}
				// Without rules everything is as before, and what waited arrives.
				if _, err := a.Impair(nil, false); err != nil {
					t.Fatal(err)
				}
				moveAfresh(t, a, b, verbs.WRRDMAWrite, 1<<18, 11)
				for _, w := range a.workers {
					w.do(func() {
						if w.impaired.on || w.batch.segments != w.a.group.Segments() {
							t.Errorf("after the rules: impaired %v, segments %v", w.impaired.on, w.batch.segments)
						}
					})
				}
			})
		}
	}
}

// moveAfresh is move between regions that no transfer has used: a request that is
// sent twice may be answered, out of the old one, after it is done.
func moveAfresh(t *testing.T, a, b *site, op verbs.WROpcode, n int, seed byte) {
	t.Helper()
	for _, s := range []*site{a, b} {
		mr, err := s.e.pd.AllocMR(n, allAccess)
		if err != nil {
			t.Fatal(err)
		}
		s.e.mr = mr
	}
	move(t, a, b, op, n, seed)
}

// TestOnePacket harms one packet and says what the queue pairs must notice of it.
func TestOnePacket(t *testing.T) {
	for _, m := range meetings {
		for _, c := range []struct {
			rule       string
			drop       Drop // of the receiver, NumDrops: none
			resent     bool
			duplicates bool // the receiver sees it twice
		}{
			{"drop sent WRITE nth 1", NumDrops, true, false},
			{"drop received WRITE nth 1", DropImpaired, true, false},
			{"drop sent ACK nth 1", NumDrops, true, true},
			{"corrupt byte -1 sent WRITE nth 1", DropICRC, true, false},
			{"corrupt byte 20 sent WRITE nth 1", DropICRC, true, false},
			{"corrupt byte 20 received WRITE nth 1", DropICRC, true, false},
			{"corrupt byte 4 WRITE nth 1", NumDrops, false, false},
			{"corrupt bit 1 sealed WRITE nth 1", NumDrops, true, false}, // a reserved opcode, or another's
			{"duplicate sent WRITE nth 1", NumDrops, false, true},
			{"duplicate received WRITE nth 1", NumDrops, false, true},
		} {
			t.Run(m.name+"/"+c.rule, func(t *testing.T) {
				t.Parallel()
				a, b := meet(t, m.workers, m.here, 15)
				at := a
				for _, r := range rulesOf(t, c.rule) {
					if !m.here && (r.Dir == impair.Received || r.Dir == impair.Sent && r.Ops[0] == "ACK") {
						at = b
					}
				}
				at.impairBy(t, c.rule)
				move(t, a, b, verbs.WRRDMAWrite, 100, 3)
				if r := at.Impairments()[0]; r.Hit != 1 {
					t.Errorf("%v hit %d packets, want 1", &r.Rule, r.Hit)
				}
				if _, resent := a.stats(); (resent > 0) != c.resent {
					t.Errorf("%d packets were sent again, want some: %v", resent, c.resent)
				}
				got, _ := b.stats()
				if c.drop < NumDrops && got.Drops[c.drop] != 1 {
					t.Errorf("%d packets dropped as %v, want 1", got.Drops[c.drop], c.drop)
				}
				if c.duplicates {
					eventually(t, "a duplicate", func() bool {
						var n uint64
						for _, w := range b.Snapshot().Workers {
							n += w.Transport.DuplicateRequest
						}
						return n >= 1
					})
				}
			})
		}
	}
}

// eventually waits for something that is about to be true.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for ctx := within(t); !f(); {
		if ctx.Err() != nil {
			t.Fatalf("%s: never", what)
		}
	}
}

// TestSealedCorruption changes a payload byte so that nobody notices on the way.
func TestSealedCorruption(t *testing.T) {
	for _, m := range meetings {
		t.Run(m.name, func(t *testing.T) {
			a, b := meet(t, m.workers, m.here, 15)
			a.impairBy(t, "corrupt byte 28 sealed sent WRITE") // behind BTH and RETH
			payload := bytes.Repeat([]byte{0x5A}, 64)
			copy(a.e.mr.Bytes(), payload)
			wr := verbs.SendWR{
				Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.e.mr.SGE(0, 64)},
				RemoteAddr: b.e.mr.Addr(), RKey: b.e.mr.RKey(),
			}
			if n, err := a.e.qp.PostSend(wr); n != 1 {
				t.Fatal(err)
			}
			if wc, err := completion(within(t), a.e.cq); err != nil || wc.Status != cq.Success {
				t.Fatalf("%v, %v", wc.Status, err)
			}
			payload[0] ^= 0xFF
			if got := b.e.mr.Bytes()[:64]; !bytes.Equal(got, payload) {
				t.Errorf("got %x, want the first byte changed", got[:4])
			}
		})
	}
}

// TestDelayedQueueIsBounded holds more packets than there is room for.
func TestDelayedQueueIsBounded(t *testing.T) {
	for _, m := range meetings[:3] {
		for _, dir := range []string{"sent", "received"} {
			t.Run(m.name+"/"+dir, func(t *testing.T) {
				a, b := meet(t, m.workers, m.here, 22) // an ACK timer of 17 s
				at, few := a, 3
				if dir == "received" && !m.here {
					at = b
				}
				at.impairBy(t, fmt.Sprintf("delay 1h %s WRITE", dir))
				eventually(t, "rules", func() (on bool) {
					on = true
					for _, w := range at.workers {
						w.do(func() { on = on && w.impaired.on; w.impaired.in.Limit, w.impaired.out.Limit = few, few })
					}
					return on
				})
				for range few + 2 {
					wr := verbs.SendWR{
						Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{a.e.mr.SGE(0, 64)}, RemoteAddr: b.e.mr.Addr(), RKey: b.e.mr.RKey(),
					}
					if n, err := a.e.qp.PostSend(wr); n != 1 {
						t.Fatal(err)
					}
				}
				eventually(t, "overflow", func() bool {
					var full uint64
					held := 0
					for _, w := range at.workers {
						w.do(func() { full += w.stats.ImpairFull; held += w.impaired.in.Len() + w.impaired.out.Len() })
					}
					return full >= 1 && full <= 2 && held >= few && held <= few*len(at.workers)
				})
				// What waits of a queue pair that goes is not sent any more.
				if err := a.e.qp.Destroy(); err != nil {
					t.Fatal(err)
				}
				for _, w := range a.workers {
					w.do(func() {
						if n := w.impaired.out.Len(); n != 0 {
							t.Errorf("%d packets of a queue pair that is gone wait", n)
						}
					})
				}
			})
		}
	}
}

// TestImpairRefuses leaves the rules as they are when new ones are wrong.
func TestImpairRefuses(t *testing.T) {
	a := startAdapter(t, func(c *Config) { c.Impair = rulesOf(t, "drop 1%") })
	if _, err := a.Impair([]impair.Rule{{Percent: 200}}, false); err == nil {
		t.Error("200% was taken")
	}
	if ids, err := a.Impair([]impair.Rule{{Action: impair.Delay, Delay: time.Millisecond}}, true); err != nil || len(ids) != 1 || ids[0] != 2 {
		t.Errorf("a second rule: %v, %v", ids, err)
	}
	if got := a.Impairments(); len(got) != 2 || got[0].Rule.Percent != 1 || !a.impair.on.Load() {
		t.Errorf("in place: %+v", got)
	}
	if a.Unimpair(3) || !a.Unimpair(1) || !a.Unimpair(2) || a.impair.on.Load() {
		t.Errorf("after taking both away: %+v, on %v", a.Impairments(), a.impair.on.Load())
	}
	if _, err := New(Config{Addrs: a.Addrs(), Impair: []impair.Rule{{Percent: 200}}}); err == nil {
		t.Error("an adapter with a wrong rule was started")
	}
}

// TestDelayLosesNothing moves data with an ACK timer of 17 s: every packet that waited
// arrives as it was, in order.
func TestDelayLosesNothing(t *testing.T) {
	for _, m := range meetings {
		for _, rule := range []string{"delay 2ms sent", "delay 2ms received", "delay 1ms", "rate 500mbit sent"} {
			t.Run(m.name+"/"+rule, func(t *testing.T) {
				t.Parallel()
				a, b := meet(t, m.workers, m.here, 22)
				a.impairBy(t, rule)
				move(t, a, b, verbs.WRRDMAWrite, 100000, 3)
				move(t, a, b, verbs.WRRDMARead, 100000, 5)
				if r := a.Impairments()[0]; r.Hit < 20 {
					t.Errorf("%v hit %d packets", &r.Rule, r.Hit)
				}
				for _, s := range []*site{a, b} {
					got, resent := s.stats()
					if m.workers > 1 && testmatrix.Backend(t) == udp4791.BackendTUN {
						resent = 0 // the kernel moves a flow to another queue, and with it to another worker
					}
					if resent != 0 || got.Drops != [NumDrops]uint64{} {
						t.Errorf("%d sent again, drops %v", resent, got.Drops)
					}
				}
			})
		}
	}
}

// TestWhoMayImpair asks as each user: all may look, few may touch.
func TestWhoMayImpair(t *testing.T) {
	for _, c := range []struct {
		asker, adapter uint32
		may            bool
	}{{0, 0, true}, {0, 7, true}, {7, 7, true}, {8, 7, false}, {7, 0, false}, {overflowUID, overflowUID, false}} {
		if got := mayImpair(c.asker, c.adapter); got != c.may {
			t.Errorf("user %d of an adapter of user %d: %v, want %v", c.asker, c.adapter, got, c.may)
		}
	}
	a := startAdapter(t, nil)
	stranger := &program{a: a, uid: uint32(os.Geteuid()) + 1}
	for _, m := range []uapi.ImpairRequest{{Rules: "drop"}, {Mode: uapi.ImpairAdd, Rules: "drop"}, {Mode: uapi.ImpairRemove, ID: 1}} {
		if _, err := stranger.changeImpairments(&m); !errors.Is(err, syscall.EPERM) {
			t.Errorf("mode %d: %v, want EPERM", m.Mode, err)
		}
	}
	dev := openDevice(t, a)
	if err := dev.Impair("drop 1%\ndrop 200%"); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a wrong line: %v", err)
	}
	if err := dev.Impair(strings.Repeat("# so many words\n", 2000)); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("a text longer than any message: %v, want EMSGSIZE", err)
	}
	if ids, err := dev.AddImpair("drop 1% sent\ndelay 1ms"); err != nil || len(ids) != 2 {
		t.Errorf("two rules: %v, %v", ids, err)
	}
	if err := dev.RemoveImpair(3); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a rule that is not there: %v", err)
	}
	if err := dev.RemoveImpair(1); err != nil {
		t.Error(err)
	}
	rules, err := dev.ImpairRules()
	if err != nil || len(rules) != 1 || rules[0].ID != 2 || rules[0].Rule != "delay 1ms" {
		t.Errorf("in place: %+v, %v", rules, err)
	}
}

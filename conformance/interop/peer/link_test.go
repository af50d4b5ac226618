package main

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

// Cases that need a wire: time, a refusal that the fake does not know, or several connections.
var needWire = map[string]bool{
	"srq/rc": true, "uc/loss-send": true, "uc/loss-write": true,
	"rnr": true, "retry-exceeded": true, "receive-too-small": true, "connections": true, "no-write-right": true, "no-read-right": true,
}

func TestCasesPassOnARightAdapter(t *testing.T) {
	for _, c := range slices.Concat(verbsCases, serviceCases) {
		if needWire[c.name] {
			continue
		}
		if reason := judge(c, nil, ""); reason != "" {
			t.Errorf("%s: %s", c.name, reason)
		}
	}
}

// Each fault that an adapter may have must turn a case red.
func TestJudgeSeesFaults(t *testing.T) {
	once := func(f func(w *wireless, wr *sendWR)) func(*wireless, *sendWR) {
		done := false
		return func(w *wireless, wr *sendWR) {
			if !done && total(wr.SGEs) > 100 {
				done = true
				f(w, wr)
			}
		}
	}
	for _, row := range []struct {
		name, inCase, reason string
		fault                func(w *wireless, wr *sendWR)
	}{
		{"wrong byte", "write", "1 of 131072 bytes of the region are wrong", once(func(w *wireless, wr *sendWR) { w.mem[wr.SGEs[0][0]] ^= 1 })},
		{"byte beside the target", "write", "bytes of the region are wrong", once(func(w *wireless, wr *sendWR) { w.peer.mem[len(w.mem)-1]++ })},
		{"write not done", "write", "bytes of the region are wrong", once(func(_ *wireless, wr *sendWR) { wr.SGEs = nil })},
		{"read from elsewhere", "read", "bytes of the region are wrong", once(func(_ *wireless, wr *sendWR) { wr.Addr++ })},
		{"completion lost", "send", "want id", once(func(_ *wireless, wr *sendWR) { wr.Flags &^= flagSignaled })},
		{"last completion lost", "large", "1 of 3 request completions did not come", func(_ *wireless, wr *sendWR) {
			if wr.Op == opRead {
				wr.Flags = 0
			}
		}},
		{"completion twice", "send", "want id", once(func(w *wireless, wr *sendWR) { w.done(completion{ID: wr.ID, Op: wcSend}) })},
		{"completion too many at the end", "large", "one completion too many", func(w *wireless, wr *sendWR) {
			if wr.Op == opRead {
				w.peer.done(completion{ID: 99, Op: wcRecv})
			}
		}},
		{"executed twice", "fetch-add", "bytes of the region are wrong", func(w *wireless, wr *sendWR) {
			if wr.ID == 3 {
				v := w.peer.mem[wr.Addr-fakeAddr:]
				binary.LittleEndian.PutUint64(v, binary.LittleEndian.Uint64(v)+wr.CompareAdd)
			}
		}},
		{"wrong id", "write", "want id", once(func(_ *wireless, wr *sendWR) { wr.ID++ })},
		{"wrong immediate", "send-imm", "want id", once(func(_ *wireless, wr *sendWR) { wr.Imm++ })},
		{"immediate left out", "send-imm", "want id", once(func(_ *wireless, wr *sendWR) { wr.Op = opSend })},
		{"wrong length", "send", "want id", once(func(_ *wireless, wr *sendWR) { wr.SGEs = []span{{wr.SGEs[0][0], wr.SGEs[0][1] - 1}} })},
		{"bad key served", "bad-rkey-write", "want id", func(_ *wireless, wr *sendWR) { wr.RKey = 0x100 }},
		{"not in error afterwards", "bad-rkey-read", "the queue pair is in state 0", func(w *wireless, wr *sendWR) {
			w.done(completion{ID: wr.ID, Status: statusRemAccess})
			_ = w.peer.Break()
			*wr = sendWR{Op: opRead, Addr: fakeAddr, RKey: 0x100}
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, c := range verbsCases {
				if c.name != row.inCase {
					continue
				}
				if reason := judge(c, row.fault, ""); !strings.Contains(reason, row.reason) {
					t.Errorf("case %s with the fault: got %q, want a failure with %q", c.name, reason, row.reason)
				}
				return
			}
			t.Fatalf("no case %s", row.inCase)
		})
	}
}

// Each fault of the other services, of shared receive queues and of windows must, too.
func TestJudgeSeesFaultsOfServices(t *testing.T) {
	for _, row := range []struct{ bad, inCase, reason string }{
		{"no checksum", "ud/send", "checksum is wrong"},
		{"another source", "ud/send", "other addresses"},
		{"another source", "ud/send-ipv6", "other addresses"},
		{"no header flag", "ud/send", "want id"},
		{"a length without the header", "ud/send", "want id"},
		{"another sender", "ud/send", "want id"},
		{"any Q_Key", "ud/qkey", "bytes of the region are wrong"},
		{"any group", "ud/mcast", "one completion too many"},
		{"receives out of order", "srq/ud", "waits although the later"},
		{"an early event", "srq/ud", "before fewer receives than the limit"},
		{"no event", "srq/ud", "did not come"},
		{"another queue pair", "srq/ud", "no message is due"},
		{"the old key stays", "memory/mw1", "before and after the bind"},
		{"a window without bounds", "memory/mw1", "want id"},
		{"a window without bounds", "memory/mw2", "want id"},
		{"the key stays", "memory/local-inv", "want id"},
		{"the key stays", "memory/send-inv", "want id"},
		{"no invalidated key", "memory/send-inv", "want id"},
		{"another invalidated key", "memory/send-inv", "want id"},
		{"rights stay", "memory/rereg", "want id"},
	} {
		t.Run(row.inCase+"/"+row.bad, func(t *testing.T) {
			i := slices.IndexFunc(serviceCases, func(c verbsCase) bool { return c.name == row.inCase })
			if i < 0 {
				t.Fatalf("no case %s", row.inCase)
			}
			if reason := judge(serviceCases[i], nil, row.bad); !strings.Contains(reason, row.reason) {
				t.Errorf("got %q, want a failure with %q", reason, row.reason)
			}
		})
	}
}

// TestLossIsJudged: an unreliable connection may lose messages whole. Nothing else is right, and no loss at all neither.
func TestLossIsJudged(t *testing.T) {
	dropped := func(wr *sendWR) bool { return wr.ID%3 == 0 && wr.imm() }
	drop := func(wr *sendWR) { *wr = sendWR{Op: opLocalInv} }
	for _, row := range []struct {
		name, reason string
		fault        func(w *wireless, wr *sendWR)
	}{
		{"whole messages lost", "", func(*wireless, *sendWR) {}},
		{"nothing lost", "there was no loss", func(_ *wireless, wr *sendWR) { wr.Flags |= keep }},
		{"a wrong byte", "", func(w *wireless, wr *sendWR) {
			if wr.ID == 7 {
				w.mem[wr.SGEs[0][0]+3] ^= 1
			}
		}},
		{"a message twice", "arrived where at least", func(w *wireless, wr *sendWR) {
			if wr.ID == 7 {
				w.execute(sendWR{Op: wr.Op, SGEs: wr.SGEs, Imm: wr.Imm, Addr: wr.Addr, RKey: wr.RKey})
			}
		}},
		{"a byte beside the messages", "bytes of the region are wrong", func(w *wireless, wr *sendWR) {
			if wr.ID == 7 {
				w.peer.mem[len(w.mem)-1]++
			}
		}},
		{"its beginning only", "want id", func(_ *wireless, wr *sendWR) {
			if wr.ID == 7 {
				wr.SGEs = []span{{wr.SGEs[0][0], 10}}
			}
		}},
	} {
		for _, name := range []string{"uc/loss-send", "uc/loss-write"} {
			t.Run(name+"/"+row.name, func(t *testing.T) {
				i := slices.IndexFunc(serviceCases, func(c verbsCase) bool { return c.name == name })
				reason := judge(serviceCases[i], func(w *wireless, wr *sendWR) {
					row.fault(w, wr)
					if dropped(wr) && wr.Flags&keep == 0 {
						w.done(completion{ID: wr.ID, Op: wcOpcode[wr.Op]})
						drop(wr)
					}
					wr.Flags &^= keep
				}, "")
				if row.name == "a wrong byte" {
					if reason == "" {
						t.Error("a wrong byte was not seen")
					}
				} else if reason != row.reason && (row.reason == "" || !strings.Contains(reason, row.reason)) {
					t.Errorf("got %q, want %q", reason, row.reason)
				}
			})
		}
	}
}

// keep marks a request that the test does not drop.
const keep = 1 << 20

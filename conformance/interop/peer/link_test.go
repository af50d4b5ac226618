package main

import (
	"encoding/binary"
	"strings"
	"testing"
)

// wireless is an End that executes at once in its peer's memory: enough of an adapter to try the judge on. fault, when set,
// may bend what it does, as a wrong adapter would.
type wireless struct {
	mem   []byte
	peer  *wireless
	recvs []recvWR
	wcs   []completion
	state int
	fault func(w *wireless, wr *sendWR)
}

const fakeAddr = 0x10000

func (w *wireless) Open(o openRequest) (identity, error) {
	w.mem = make([]byte, o.Size)
	return identity{QPN: 7, GID: "::1", Addr: fakeAddr, RKey: 0x100}, nil
}
func (w *wireless) Connect(connectRequest) error { return nil }
func (w *wireless) State() (int, error)          { return w.state, nil }
func (w *wireless) Close()                       {}

func (w *wireless) Break() error {
	w.state = stateErr
	for _, r := range w.recvs {
		w.done(completion{ID: r.ID, Status: statusFlushed})
	}
	w.recvs = nil
	return nil
}

func (w *wireless) WriteMem(off int, b []byte) error {
	copy(w.mem[off:], b)
	return nil
}
func (w *wireless) ReadMem(off, n int) ([]byte, error) { return w.mem[off : off+n], nil }

func (w *wireless) PostRecv(wrs []recvWR) error {
	w.recvs = append(w.recvs, wrs...)
	return nil
}

func (w *wireless) done(c completion) {
	c.QPN = 7
	w.wcs = append(w.wcs, c)
}

func (w *wireless) Poll(count, _ int) ([]completion, error) {
	n := min(count, len(w.wcs))
	got := w.wcs[:n]
	w.wcs = w.wcs[n:]
	return got, nil
}

func (w *wireless) PostSend(wrs []sendWR) error {
	for _, wr := range wrs {
		if w.state == stateErr {
			w.done(completion{ID: wr.ID, Status: statusFlushed})
			continue
		}
		if w.fault != nil {
			w.fault(w, &wr)
		}
		w.execute(wr)
	}
	return nil
}

func (w *wireless) execute(wr sendWR) {
	if wr.Op > opWriteImm && wr.Op < opRead || wr.Op == opWriteImm {
		if len(w.peer.recvs) == 0 {
			w.done(completion{ID: wr.ID, Status: statusRNRRetryExc})
			w.state = stateErr
			return
		}
	} else if wr.RKey != 0x100 || int(wr.Addr-fakeAddr)+total(wr.SGEs) > len(w.peer.mem) {
		w.done(completion{ID: wr.ID, Status: statusRemAccess})
		w.state = stateErr
		_ = w.peer.Break()
		return
	}
	var data []byte
	for _, g := range wr.SGEs {
		data = append(data, w.mem[g[0]:][:g[1]]...)
	}
	at := int(wr.Addr - fakeAddr)
	var old []byte
	switch wr.Op {
	case opSend, opSendImm:
		spread(w.peer.mem, w.peer.recvs[0].SGEs, data)
	case opWrite, opWriteImm:
		copy(w.peer.mem[at:], data)
	default:
		old = append(old, w.peer.mem[at:][:total(wr.SGEs)]...)
		if v := w.peer.mem[at:]; wr.Op == opFetchAdd {
			binary.LittleEndian.PutUint64(v, binary.LittleEndian.Uint64(v)+wr.CompareAdd)
		} else if wr.Op == opCmpSwap && binary.LittleEndian.Uint64(v) == wr.CompareAdd {
			binary.LittleEndian.PutUint64(v, wr.Swap)
		}
		spread(w.mem, wr.SGEs, old)
	}
	if wr.Op == opSend || wr.imm() {
		c := completion{ID: w.peer.recvs[0].ID, Op: wcRecv, Len: len(data)}
		if wr.imm() {
			c.Flags, c.Imm = wcFlagImm, wr.Imm
		}
		if wr.Op == opWriteImm {
			c.Op = wcRecvImm
		}
		w.peer.recvs = w.peer.recvs[1:]
		w.peer.done(c)
	}
	if wr.Flags&flagSignaled != 0 {
		w.done(completion{ID: wr.ID, Op: wcOpcode[wr.Op]})
	}
}

func spread(mem []byte, sges []span, b []byte) {
	for _, g := range sges {
		b = b[copy(mem[g[0]:][:g[1]], b):]
	}
}

// judge plays a case between two of them and returns the reason why it failed, or "".
func judge(c verbsCase, fault func(w *wireless, wr *sendWR)) (reason string) {
	a, b := &wireless{fault: fault}, &wireless{}
	a.peer, b.peer = b, a
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			reason = r.text
		default:
			panic(r)
		}
	}()
	l := newLink(c.name, c.setup, &side{name: "a", end: a}, &side{name: "b", end: b}, func(string, ...any) {})
	c.run(l)
	return ""
}

// Cases that need a wire: time, a refusal that the fake does not know, or several connections.
var needWire = map[string]bool{
	"rnr": true, "retry-exceeded": true, "receive-too-small": true, "connections": true, "no-write-right": true, "no-read-right": true,
}

func TestCasesPassOnARightAdapter(t *testing.T) {
	for _, c := range verbsCases {
		if needWire[c.name] {
			continue
		}
		if reason := judge(c, nil); reason != "" {
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
				if reason := judge(c, row.fault); !strings.Contains(reason, row.reason) {
					t.Errorf("case %s with the fault: got %q, want a failure with %q", c.name, reason, row.reason)
				}
				return
			}
			t.Fatalf("no case %s", row.inCase)
		})
	}
}

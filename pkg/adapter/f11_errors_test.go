package adapter_test

import (
	"bytes"
	"maps"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

// Field case F11: one good WRITE, then five with a wrong key, with receives
// posted on both sides. Each request completes exactly once, the NAK is sent
// though no receive was consumed, both queues of both sides flush, and polling
// never blocks.
func TestF11WrongKeyFlushesBothSides(t *testing.T) {
	for _, polled := range []bool{true, false} {
		name := "posted at once"
		if polled {
			name = "polled after each"
		}
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, shape{}, verbs.RCConfig{}, nil)
			for i := range uint64(3) {
				a.recv(100+i, 0, 64)
				b.recv(200+i, 0, 64)
			}
			fill(a.mr.Bytes(), 1)
			want := bytes.Clone(a.mr.Bytes()[:512])
			seen := make(map[uint64]verbs.WCStatus)
			for i := range uint64(6) {
				wr := a.write(b, 0, 0, 512)
				wr.WRID, wr.Flags = i, verbs.SendSignaled
				if i > 0 {
					wr.RKey ^= 0x5500
				}
				a.post(wr)
				for polled && !has(seen, i) {
					a.take(seen)
				}
			}
			for len(seen) < 9 {
				a.take(seen)
			}
			for range 3 {
				b.take(seen)
			}
			all := map[uint64]verbs.WCStatus{0: verbs.WCSuccess, 1: verbs.WCRemAccessErr}
			for _, id := range []uint64{2, 3, 4, 5, 100, 101, 102, 200, 201, 202} {
				all[id] = verbs.WCWRFlushErr
			}
			if !maps.Equal(seen, all) {
				t.Errorf("completions %v, want %v", seen, all)
			}
			a.none()
			b.none()
			if !bytes.Equal(b.mr.Bytes()[:512], want) {
				t.Error("the good WRITE's data are not there")
			}
			for _, p := range []*program{a, b} {
				if q, err := p.qp.Query(); err != nil || q.State != verbs.StateErr {
					t.Errorf("state %v, %v; want ERR", q.State, err)
				}
			}
			if n := b.host.workers().Transport.SentNAKs[nakRemoteAccess.NAKCode()]; n != 1 {
				t.Errorf("%d remote access NAKs sent, want 1", n)
			}
			// What is posted in ERR flushes, too, on both sides and queues.
			for _, p := range []*program{a, b} {
				wr := p.write(p, 0, 0, 8)
				wr.WRID = 300 // unsignaled: a flush completes it all the same
				p.post(wr)
				p.status(300, verbs.WCWRFlushErr)
				p.recv(301, 0, 8)
				p.status(301, verbs.WCWRFlushErr)
				p.none()
			}
		})
	}
}

func has(m map[uint64]verbs.WCStatus, id uint64) bool {
	_, ok := m[id]
	return ok
}

// take adds the next completion to seen, where it must not be yet.
func (p *program) take(seen map[uint64]verbs.WCStatus) {
	p.t.Helper()
	wc := p.next()
	if has(seen, wc.WRID) {
		p.t.Fatalf("request %d completed twice", wc.WRID)
	}
	seen[wc.WRID] = wc.Status
}

// Field case F18: two ends with different path MTUs. The request ends as
// REM_INV_REQ_ERR, nothing hangs, and the logs of both sides name the MTUs.
func TestF18DifferentPathMTUs(t *testing.T) {
	for _, c := range []struct {
		name       string
		ours, peer verbs.MTU
	}{
		{"4096 to 1024", bth.MTU4096, bth.MTU1024},
		{"1024 to 4096", bth.MTU1024, bth.MTU4096},
		{"256 to 2048", bth.MTU256, bth.MTU2048},
	} {
		for _, op := range []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRSend} {
			t.Run(c.name+" "+op.String(), func(t *testing.T) {
				a, b := start(t, nil).open(t, shape{}), start(t, nil).open(t, shape{})
				a.connectTo(b.peer(), verbs.RCConfig{MTU: c.ours})
				b.connectTo(a.peer(), verbs.RCConfig{MTU: c.peer})
				b.recv(2, 0, 64<<10)
				wr := a.write(b, 0, 0, 10000)
				wr.WRID, wr.Opcode, wr.Flags = 1, op, verbs.SendSignaled
				a.post(wr)
				a.status(1, verbs.WCRemInvReqErr)
				if wc := b.next(); wc.Status == verbs.WCSuccess {
					t.Errorf("the receive completed as %v", wc.Status)
				}
				ours, peers := c.ours.String(), c.peer.String()
				eventually(t, "the responder names both MTUs: "+b.host.log.String(), func() bool {
					return len(b.host.log.lines("level=WARN", "path MTU", "packets of "+ours, "path MTU "+peers+";")) == 1
				})
				eventually(t, "the requester names its MTU: "+a.host.log.String(), func() bool {
					return len(a.host.log.lines("level=WARN", "path MTU", ours)) == 1
				})
			})
		}
	}
}

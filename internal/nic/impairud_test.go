package nic

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/verbs"
)

// TestImpairedDatagrams delays, doubles and drops datagrams, chosen by the queue
// pair on either side.
func TestImpairedDatagrams(t *testing.T) {
	for _, same := range []bool{false, true} {
		for _, c := range []struct {
			rule string
			want []byte
		}{
			{"delay 1ms sent DATAGRAM", []byte{1, 2}},
			{"delay 1ms received DATAGRAM", []byte{1, 2}},
			{"duplicate sent DATAGRAM", []byte{1, 1, 2, 2}},
			{"duplicate received remote-qp %s", []byte{1, 1, 2, 2}},
			{"drop sent local-qp %s first 1", []byte{2}},
			{"drop received remote-qp %s first 1", []byte{2}},
			{"duplicate sent remote-qp 0x1", []byte{1, 2}},
		} {
			name := "two/" + c.rule
			if same {
				name = "one/" + c.rule
			}
			t.Run(name, func(t *testing.T) {
				a, b := twoAdapters(t, same)
				x, y := newUD(t, openDevice(t, a), 4096, nil), newUD(t, openDevice(t, b), 4096, nil)
				rule := strings.Replace(c.rule, "%s", x.qp.Num().String(), 1)
				for _, ad := range []*Adapter{a, b} {
					if _, err := ad.Impair(rulesOf(t, rule), false); err != nil {
						t.Fatal(err)
					}
				}
				for i := range 4 {
					y.postRecv(t, uint64(i), 1024*i, 1024)
				}
				ah := x.handleTo(t, y.gid(t))
				for i := range 2 {
					x.mr.Bytes()[i] = byte(i + 1)
					x.post(t, x.datagram(ah, y.qp.Num(), i, 1))
					x.next(t, cq.Send, cq.Success)
				}
				var got []byte
				for range c.want {
					wc := y.next(t, cq.Recv, cq.Success)
					got = append(got, y.mr.Bytes()[1024*wc.WRID+40])
				}
				slices.Sort(got) // workers do not keep the order of datagrams
				if !bytes.Equal(got, c.want) {
					t.Errorf("got %v, want %v", got, c.want)
				}
			})
		}
	}
}

// TestDelayedDatagramOutlivesItsWay takes away the address handle of a datagram
// that waits: it may be lost, and nothing else.
func TestDelayedDatagramOutlivesItsWay(t *testing.T) {
	a, b := twoAdapters(t, false)
	x, y := newUD(t, openDevice(t, a), 4096, nil), newUD(t, openDevice(t, b), 4096, nil)
	if _, err := a.Impair(rulesOf(t, "delay 50ms sent nth 1"), false); err != nil {
		t.Fatal(err)
	}
	y.postRecv(t, 0, 0, 1024)
	for range 2 {
		ah := x.handleTo(t, y.gid(t))
		x.post(t, x.datagram(ah, y.qp.Num(), 0, 1))
		x.next(t, cq.Send, cq.Success)
		if err := ah.Destroy(); err != nil {
			t.Fatal(err)
		}
	}
	y.next(t, cq.Recv, cq.Success)
	eventually(t, "the first is let go", func() bool {
		n := 0
		for _, w := range a.workers {
			w.do(func() { n += w.impaired.out.Len() })
		}
		return n == 0
	})
	y.postRecv(t, 1, 0, 1024)
	y.postRecv(t, 2, 0, 1024)
	x.post(t, x.datagram(x.handleTo(t, y.gid(t)), y.qp.Num(), 0, 1))
	x.next(t, cq.Send, cq.Success)
	y.next(t, cq.Recv, cq.Success)
}

// TestImpairedIsCaptured finds what a rule dropped in a capture, in words.
func TestImpairedIsCaptured(t *testing.T) {
	for _, dir := range []string{"sent", "received"} {
		var tape bytes.Buffer
		w, err := capture.NewWriter(io.Writer(&tape), "x", capture.WriterOptions{})
		if err != nil {
			t.Fatal(err)
		}
		a, b := startAdapter(t, func(c *Config) { c.Capture = w }), startAdapter(t, nil)
		x, y := newUD(t, openDevice(t, a), 4096, nil), newUD(t, openDevice(t, b), 4096, nil)
		if _, err := a.Impair(rulesOf(t, "drop first 1 "+dir), false); err != nil {
			t.Fatal(err)
		}
		if dir == "received" {
			x, y = y, x
		}
		x.post(t, x.datagram(x.handleTo(t, y.gid(t)), y.qp.Num(), 0, 1))
		x.next(t, cq.Send, cq.Success)
		eventually(t, "a drop", func() bool { return a.Impairments()[0].Hit == 1 })
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		var notes []string
		if err := capture.Decode(&tape, func(r capture.Record) { notes = append(notes, r.Comment) }); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if len(notes) != 1 || !strings.Contains(notes[0], "dropped: impaired by rule 1") {
			t.Errorf("%s: captured %q", dir, notes)
		}
	}
}

// TestRuleBeginsAndEnds has one rule hold for an hour, and one begin after that.
func TestRuleBeginsAndEnds(t *testing.T) {
	a, b := twoAdapters(t, false)
	x, y := newUD(t, openDevice(t, a), 4096, nil), newUD(t, openDevice(t, b), 4096, nil)
	if _, err := a.Impair(rulesOf(t, "drop for 1h\ndrop in 1h"), false); err != nil {
		t.Fatal(err)
	}
	x.post(t, x.datagram(x.handleTo(t, y.gid(t)), y.qp.Num(), 0, 1))
	x.next(t, cq.Send, cq.Success)
	eventually(t, "a drop", func() bool { return a.Impairments()[0].Hit == 1 })
	if got := a.Impairments(); got[1].Matched != 0 || got[0].Over {
		t.Errorf("%+v", got)
	}
	later := time.Now().Add(2 * time.Hour)
	if st := a.impair.set.Status(later); !st[0].Over || st[1].Over {
		t.Errorf("later: %+v", st)
	}
}

// TestReorder sends four datagrams in one go, the first of which is put behind
// two.
func TestReorder(t *testing.T) {
	for _, dir := range []string{"sent", "received"} {
		t.Run(dir, func(t *testing.T) {
			a, b := twoAdapters(t, false)
			x, y := newUD(t, openDevice(t, a), 4096, nil), newUD(t, openDevice(t, b), 4096, nil)
			at := a
			if dir == "received" {
				at = b
			}
			ah := x.handleTo(t, y.gid(t))
			var got []byte
			for range 5 { // a stall of the machine ends the wait, and is no fault
				if _, err := at.Impair(rulesOf(t, "reorder 2 DATAGRAM nth 1 "+dir), false); err != nil {
					t.Fatal(err)
				}
				var wrs []verbs.SendWR
				for i := range 4 {
					y.postRecv(t, uint64(i), 1024*i, 1024)
					x.mr.Bytes()[i] = byte(i + 1)
					wrs = append(wrs, x.datagram(ah, y.qp.Num(), i, 1))
				}
				if _, err := x.qp.PostSend(wrs...); err != nil {
					t.Fatal(err)
				}
				got = got[:0]
				for range 4 {
					x.next(t, cq.Send, cq.Success)
					wc := y.next(t, cq.Recv, cq.Success)
					got = append(got, y.mr.Bytes()[1024*wc.WRID+40])
				}
				if bytes.Equal(got, []byte{2, 3, 1, 4}) {
					return
				}
			}
			t.Errorf("the order is %v, want 2, 3, 1, 4", got)
		})
	}
}

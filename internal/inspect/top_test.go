package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// moving is an adapter one of whose queue pairs sends: a message of 1000 bytes in two
// packets each millisecond; another resends and failed.
func moving() *fake {
	f := known()
	f.onLook = func(int) {
		q := f.objects[verbs.ResourceQP]
		q[0].SentBytes += 1_000_000
		q[0].SentMsgs += 1000
		q[0].SentPkts += 2000
		q[0].RNRWaitNS += uint64(250 * time.Millisecond)
		q[2].Resent += 5
		q[2].Timeouts++
		q[2].Faults, q[2].LastFault, q[2].State = 1, "no_answer", "ERR"
	}
	return f
}

// looked is a Top after two looks, a second apart.
func looked(t *testing.T, src *fake, top *Top) *Top {
	t.Helper()
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i := range 2 {
		if err := top.Look(src, start.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	return top
}

func TestTopTable(t *testing.T) {
	top := looked(t, moving(), &Top{})
	want := `
LQPN      TYPE  STATE  PEER       RQPN      TX-B/S  RX-B/S  TX-MSG/S  RX-MSG/S  TX-PKT/S  RX-PKT/S  RESENT/S  RNR/S  RNR%  TMO/S  NAK/S  WAIT  ERR  LAST-ERR   PID  COMM
0x000011  RC    RTS    192.0.2.7  0xabcdef    1.0M       0      1.0k         0      2.0k         0         0      0    25      0      0     3    0  -           41  sender
0x000012  UD    RTR    -          -              0       0         0         0         0         0         0      0     0      0      0     0    0  -           41  sender
0x000013  UC    ERR    -          -              0       0         0         0         0         0       5.0      0     0    1.0      0     0    1  no_answer   42  the?[31m receiver
`
	if got := strings.Join(top.View().Lines(), "\n") + "\n"; got != want[1:] {
		t.Errorf("got\n%swant\n%s", got, want[1:])
	}
	j, err := top.View().MarshalJSON()
	var list []map[string]any
	if err != nil || json.Unmarshal(j, &list) != nil || len(list) != 3 || list[0]["sent_msgs_per_second"] != 1000.0 || list[2]["last_error"] != "no_answer" {
		t.Errorf("%v\n%s", err, j)
	}
}

// Before a second look there are no rates, and a new queue pair of the same number
// has none of the old one's.
func TestTopFirstLook(t *testing.T) {
	src, top := moving(), &Top{}
	if err := top.Look(src, time.Now()); err != nil {
		t.Fatal(err)
	}
	if top.rows[0].known || !strings.Contains(top.View().Lines()[1], " - ") {
		t.Errorf("got %s", top.View().Lines()[1])
	}
	src.objects[verbs.ResourceQP][0].Program = 9
	if err := top.Look(src, time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	for _, r := range top.rows {
		if r.known != (r.r.Number != 0x11) {
			t.Errorf("0x%06x: known is %v", r.r.Number, r.known)
		}
	}
}

// Each order brings its queue pair to the top, by name and by key.
func TestTopOrders(t *testing.T) {
	for name, first := range map[string]uint32{
		"bytes": 0x11, "messages": 0x11, "packets": 0x11, "resent": 0x13, "waits": 0x11, "timeouts": 0x13, "errors": 0x13, "state": 0x13, "pid": 0x11, "qpn": 0x11,
	} {
		top := looked(t, moving(), &Top{Sort: name})
		if got := top.rows[0].r.Number; got != first {
			t.Errorf("%s: 0x%06x is first, want 0x%06x", name, got, first)
		}
		byKey := looked(t, moving(), &Top{Sort: "resent"})
		for _, s := range TopSorts {
			if s.Name == name {
				byKey.Key(s.Key)
			}
		}
		if got := byKey.rows[0].r.Number; got != first || byKey.Sort != name {
			t.Errorf("key of %s: 0x%06x is first, by %s", name, got, byKey.Sort)
		}
	}
}

// At any size nothing is wider or longer than the terminal, and what is needed most
// stays.
func TestTopFitsTheTerminal(t *testing.T) {
	for _, size := range [][2]int{{200, 24}, {120, 10}, {80, 24}, {60, 6}, {40, 7}, {10, 3}, {0, 0}} {
		top := looked(t, moving(), &Top{Every: time.Second})
		got := top.screen(size[0], size[1])
		for _, s := range []string{screenHome, "\x1b[K", screenEnd, inverse, bold, plainText} {
			got = strings.ReplaceAll(got, s, "")
		}
		columns, lines := size[0], max(size[1], 6)
		if columns == 0 {
			columns = 80
		}
		all := strings.Split(got, "\r\n")
		if len(all) > lines {
			t.Errorf("%v: %d lines", size, len(all))
		}
		for _, l := range all {
			if n := len([]rune(l)); n > columns {
				t.Errorf("%v: %d columns: %q", size, n, l)
			}
		}
		if columns >= 60 && (!strings.Contains(got, "0x000011") || !strings.Contains(got, "RESENT/S") || !strings.Contains(got, "1.0M")) {
			t.Errorf("%v: got\n%s", size, got)
		}
		if last := all[len(all)-1]; columns >= 80 && (!strings.Contains(all[1], "   timeouts ") || !strings.HasSuffix(all[1], "/s") || !strings.HasSuffix(last, " n") && !strings.HasSuffix(last, " n qpn")) {
			t.Errorf("%v: cut in the middle: %q, %q", size, all[1], last)
		}
		if size[1] == 6 && !strings.Contains(got, "... 1 more") {
			t.Errorf("%v: nothing tells of the row that is cut:\n%s", size, got)
		}
	}
	top := looked(t, moving(), &Top{Every: time.Second, Busy: true})
	if got := top.screen(120, 24); strings.Contains(got, "0x000012") || !strings.Contains(got, "0x000013") {
		t.Errorf("busy ones alone: got\n%s", got)
	}
	top.all = 1
	if got := top.screen(120, 24); !strings.Contains(got, "  1 queue pair, idle") {
		t.Errorf("one alone: got\n%s", got)
	}
	top.Key('i')
	top.Key('j')
	if got := top.screen(120, 6); strings.Contains(got, "0x000011") || !strings.Contains(got, "0x000013") {
		t.Errorf("scrolled by one: got\n%s", got)
	}
}

// The live view looks every interval, obeys keys, and gives the screen back when it
// is quit, when its context ends and when the adapter is gone.
func TestTopRun(t *testing.T) {
	for name, end := range map[string]func(keys chan byte, cancel func(), src *fake){
		"quit":    func(keys chan byte, _ func(), _ *fake) { keys <- 'q' },
		"signal":  func(_ chan byte, cancel func(), _ *fake) { cancel() },
		"adapter": func(_ chan byte, _ func(), src *fake) { src.die(verbs.ErrDeviceDead) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var b bytes.Buffer
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				src, keys, done := moving(), make(chan byte), make(chan error)
				top := &Top{Every: time.Second}
				go func() {
					done <- top.Run(ctx, src, Terminal{W: &b, Size: func() (int, int) { return 100, 20 }, Keys: keys})
				}()
				time.Sleep(3500 * time.Millisecond) // virtual
				synctest.Wait()
				if src.looks != 4 {
					t.Errorf("%d looks in 3.5 s, want 4", src.looks)
				}
				keys <- '-'
				keys <- 'r'
				end(keys, cancel, src)
				err := <-done
				if name == "adapter" != errors.Is(err, verbs.ErrDeviceDead) {
					t.Errorf("got %v", err)
				}
				got := b.String()
				if !strings.HasPrefix(got, screenOpen) || !strings.HasSuffix(got, screenClose) || strings.Count(got, screenClose) != 1 {
					t.Errorf("the screen is not given back:\n%q", got)
				}
				if !strings.Contains(got, "by resent, every 500ms") {
					t.Error("the keys did nothing")
				}
			})
		})
	}
}

func TestScaled(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.25: "0.2", 9.94: "9.9", 12.3: "12", 999: "999", 999.6: "1.0k", 1234: "1.2k", 56_700: "57k", 3.2e9: "3.2G", 4e12: "4.0T",
	} {
		if got := scaled(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
}

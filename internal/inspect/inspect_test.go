package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// fake is an adapter of which everything is known.
type fake struct {
	objects  map[verbs.ResourceKind][]verbs.Resource
	counters []verbs.Counter
	err      error
	looks    int
	onLook   func(look int)
	mu       sync.Mutex // of err, for tests that set it while somebody looks
}

// die makes every look fail from now on.
func (f *fake) die(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fake) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *fake) Name() string { return "softroce7" }

func (f *fake) Resources(k verbs.ResourceKind) ([]verbs.Resource, error) {
	f.look()
	return slices.Clone(f.objects[k]), f.failure()
}

func (f *fake) Counters() ([]verbs.Counter, error) {
	f.look()
	return slices.Clone(f.counters), f.failure()
}

func (f *fake) look() {
	f.looks++
	if f.onLook != nil {
		f.onLook(f.looks)
	}
}

const self = 999

// known is two programs, and the asker, with some of everything.
func known() *fake {
	return &fake{
		objects: map[verbs.ResourceKind][]verbs.Resource{
			verbs.ResourceProgram: {
				{Number: 1, Program: 1, PID: 41, Name: "sender", Users: 2},
				{Number: 2, Program: 2, PID: 42, Name: "the\x1b[31m receiver", Users: 1},
				{Number: 3, Program: 3, PID: self, Name: "softroce"},
			},
			verbs.ResourcePD: {{Number: 1, Program: 1, PID: 41, Name: "sender", Users: 4}},
			verbs.ResourceCQ: {{Number: 2, Program: 1, PID: 41, Name: "sender", CQE: 128, Users: 2, Worker: 1}},
			verbs.ResourceQP: {
				{
					Number: 0x11, Program: 1, PID: 41, Name: "sender", PD: 1, Type: "RC", State: "RTS", PeerQPN: 0xABCDEF,
					Peer: "::ffff:192.0.2.7", PathMTU: 1024, SQPSN: 0x10, RQPSN: 0xFFFFFF, SendCQ: 2, RecvCQ: 2, SRQ: 5, SendQueued: 3,
					SentBytes: 1000, RcvdBytes: 7, Resent: 2, Timeouts: 1, RNRWaits: 4,
				},
				{Number: 0x12, Program: 1, PID: 41, Name: "sender", PD: 1, Type: "UD", State: "RTR", SQPSN: 9, SendCQ: 2, RecvCQ: 2},
				{Number: 0x13, Program: 2, PID: 42, Name: "the\x1b[31m receiver", PD: 1, Type: "UC", State: "RESET", SendCQ: 1, RecvCQ: 1},
			},
			verbs.ResourceMR: {
				{Number: 1, Program: 1, PID: 41, Name: "sender", PD: 1, Length: 8192, IOVA: 0x7F00, LKey: 0x1234, RKey: 0x1234, Access: 1 | 1<<2 | 1<<31},
				{Number: 1, Program: 2, PID: 42, PD: 1, Length: 1, Access: 0},
			},
			verbs.ResourceMW:  {{Number: 6, Program: 1, PID: 41, Name: "sender", PD: 1, Type: "2B", RKey: 0xFF, Length: 16, Access: 2}},
			verbs.ResourceSRQ: {{Number: 5, Program: 1, PID: 41, Name: "sender", PD: 1, MaxWR: 64, MaxSGE: 2, Users: 1}},
			verbs.ResourceAH:  {{Number: 8, Program: 1, PID: 41, Name: "sender", PD: 1, Peer: "fd77::1"}},
			verbs.ResourceCMID: {
				{Number: 3, Program: 2, PID: 42, Name: "receiver", Type: "TCP", State: "LISTEN", From: "[::]:7471"},
				{Number: 4, Program: 2, PID: 42, Name: "receiver", Type: "TCP", State: "ESTABLISHED", QPN: 0x13, From: "192.0.2.7:7471", To: "192.0.2.8:40000"},
			},
		},
		counters: []verbs.Counter{
			{Name: "sent_pkts", Help: "packets sent", Value: 100},
			{Name: "drop_icrc", Help: "packets dropped", Value: 0},
			{Name: "drop_no_qp", Help: "packets dropped", Value: 3},
		},
	}
}

// once shows a look once.
func once(t *testing.T, src Source, look Look, asJSON bool) string {
	t.Helper()
	var b bytes.Buffer
	if err := (Output{W: &b, JSON: asJSON}).Show(t.Context(), src, look); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Each kind's table, to the letter: scripts read them.
func TestTables(t *testing.T) {
	for _, c := range []struct{ kind, want string }{
		{"ctx", `
CTX  QPS  PID  COMM
1    2    41   sender
2    1    42   the?[31m receiver
`},
		{"pd", `
PDN  USERS  CTX  PID  COMM
1    4      1    41   sender
`},
		{"cq", `
CQN  CQE  USERS  WORKER  CTX  PID  COMM
2    128  2      1       1    41   sender
`},
		{"qp", `
LQPN      TYPE  STATE  RQPN      PEER       MTU   SQ-PSN    RQ-PSN    WAIT  PDN  SCQ  RCQ  SRQ  CTX  PID  COMM
0x000011  RC    RTS    0xabcdef  192.0.2.7  1024  0x000010  0xffffff  3     1    2    2    5    1    41   sender
0x000012  UD    RTR    -         -          -     -         -         0     1    2    2    -    1    41   sender
0x000013  UC    RESET  -         -          -     -         -         0     1    1    1    -    2    42   the?[31m receiver
`},
		{"mr", `
MRN  PDN  LENGTH  IOVA    LKEY        RKEY        ACCESS                              CTX  PID  COMM
1    1    8192    0x7f00  0x00001234  0x00001234  local_write,remote_read,0x80000000  1    41   sender
1    1    1       0x0     -           -           -                                   2    42   -
`},
		{"mw", `
MWN  TYPE  PDN  LENGTH  IOVA  RKEY        ACCESS        CTX  PID  COMM
6    2B    1    16      0x0   0x000000ff  remote_write  1    41   sender
`},
		{"srq", `
SRQN  PDN  MAX-WR  MAX-SGE  LIMIT  USERS  WORKER  CTX  PID  COMM
5     1    64      2        -      1      0       1    41   sender
`},
		{"ah", `
AHN  PDN  PEER     CTX  PID  COMM
8    1    fd77::1  1    41   sender
`},
		{"cm_id", `
CM-IDN  PS   STATE        LQPN      SRC-ADDR        DST-ADDR         CTX  PID  COMM
3       TCP  LISTEN       -         [::]:7471       -                2    42   receiver
4       TCP  ESTABLISHED  0x000013  192.0.2.7:7471  192.0.2.8:40000  2    42   receiver
`},
	} {
		k, ok := KindOf(c.kind)
		if !ok {
			t.Fatalf("no kind %s", c.kind)
		}
		if got := once(t, known(), Resources(k, Filter{Self: self}), false); got != c.want[1:] {
			t.Errorf("%s:\n%swant\n%s", c.kind, got, c.want[1:])
		}
	}
	if _, ok := KindOf("qps"); ok {
		t.Error("qps is a kind")
	}
}

// JSON of a kind is a list of objects that all have every key, in order.
func TestJSON(t *testing.T) {
	qp, _ := KindOf("qp")
	mr, _ := KindOf("mr")
	for _, c := range []struct {
		name, want string
		look       Look
	}{
		{"queue pairs", `[{"lqpn":17,"type":"RC","state":"RTS","rqpn":11259375,"peer_gid":"::ffff:192.0.2.7","path_mtu":1024,"sq_psn":16,` +
			`"rq_psn":16777215,"sends_waiting":3,"pdn":1,"send_cqn":2,"recv_cqn":2,"srqn":5,"ctxn":1,"pid":41,"comm":"sender"},` +
			`{"lqpn":18,"type":"UD","state":"RTR","rqpn":null,"peer_gid":null,"path_mtu":null,"sq_psn":null,"rq_psn":null,` +
			`"sends_waiting":0,"pdn":1,"send_cqn":2,"recv_cqn":2,"srqn":null,"ctxn":1,"pid":41,"comm":"sender"}]`, Resources(qp, Filter{PIDs: []int{41}})},
		{"a region", `[{"mrn":1,"pdn":1,"length":1,"iova":0,"lkey":null,"rkey":null,"access":[],"ctxn":2,"pid":42,"comm":null}]`, Resources(mr, Filter{PIDs: []int{42}})},
		{"nothing", `[]`, Resources(mr, Filter{PIDs: []int{1}})},
		{"summary", `{"adapter":"softroce7","ctx":2,"pd":1,"cq":1,"qp":3,"mr":2,"mw":1,"srq":1,"ah":1,"cm_id":2}`, Summary(Filter{Self: self})},
		{"counters", `{"adapter":"softroce7","counters":{"sent_pkts":100,"drop_icrc":0,"drop_no_qp":3}}`, Stat(StatOptions{})},
		{"a name's escapes", `[{"ctxn":2,"qps":1,"pid":42,"comm":"the\u001b[31m receiver"}]`, Resources(Kinds[0], Filter{PIDs: []int{42}})},
	} {
		got := once(t, known(), c.look, true)
		if got != c.want+"\n" || !json.Valid([]byte(got)) {
			t.Errorf("%s:\n%swant\n%s", c.name, got, c.want)
		}
	}
}

func TestFilter(t *testing.T) {
	qp, _ := KindOf("qp")
	for _, c := range []struct {
		pids                []int
		qpns, states, types []string
		want                []string // QPNs
		fails               string
	}{
		{want: []string{"0x000011", "0x000012", "0x000013"}},
		{pids: []int{42}, want: []string{"0x000013"}},
		{pids: []int{41, 42}, states: []string{"rts", "Reset"}, want: []string{"0x000011", "0x000013"}},
		{qpns: []string{"0x12", "19"}, want: []string{"0x000012", "0x000013"}},
		{types: []string{"ud", "rc"}, states: []string{"RTS"}, want: []string{"0x000011"}},
		{pids: []int{7}},
		{qpns: []string{"16777216"}, fails: `"16777216" is no queue pair number`},
		{qpns: []string{"-1"}, fails: "no queue pair number"},
		{qpns: []string{"12a"}, fails: "no queue pair number"},
		{states: []string{"UP"}, fails: `"UP" is no state of a queue pair: want RESET, INIT`},
		{types: []string{"XRC"}, fails: `"XRC" is no type`},
	} {
		f, err := NewFilter(c.pids, c.qpns, c.states, c.types)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%+v: got %v, want %q", c, err, c.fails)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		var got []string
		for _, l := range strings.Split(once(t, known(), Resources(qp, f), false), "\n")[1:] {
			if f := strings.Fields(l); len(f) > 0 {
				got = append(got, f[0])
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: got %v", c, got)
		}
	}
}

func TestSummary(t *testing.T) {
	for _, c := range []struct {
		f    Filter
		want string
	}{
		{Filter{Self: self}, "softroce7: ctx 2 pd 1 cq 1 qp 3 mr 2 mw 1 srq 1 ah 1 cm_id 2\n"},
		{Filter{PIDs: []int{42}}, "softroce7: ctx 1 pd 0 cq 0 qp 1 mr 1 mw 0 srq 0 ah 0 cm_id 2\n"},
		{Filter{States: []string{"RTR"}}, "softroce7: qp 1\n"},
	} {
		if got := once(t, known(), Summary(c.f), false); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.f, got, c.want)
		}
	}
}

func TestStat(t *testing.T) {
	for _, c := range []struct {
		look Look
		want string
	}{
		{Stat(StatOptions{}), `
COUNTER     VALUE  COUNTS
sent_pkts     100  packets sent
drop_icrc       0  packets dropped
drop_no_qp      3  packets dropped
`},
		{Stat(StatOptions{NonZero: true, Names: []string{"drop_*"}}), `
COUNTER     VALUE  COUNTS
drop_no_qp      3  packets dropped
`},
		{StatQPs(Filter{}, StatOptions{}), `
LQPN      TYPE  STATE  SENT-BYTES  RCVD-BYTES  RESENT  TIMEOUTS  RNR-WAITS  PID  COMM
0x000011  RC    RTS          1000           7       2         1          4  41   sender
0x000012  UD    RTR             0           0       0         0          0  41   sender
0x000013  UC    RESET           0           0       0         0          0  42   the?[31m receiver
`},
		{StatQPs(Filter{}, StatOptions{NonZero: true}), `
LQPN      TYPE  STATE  SENT-BYTES  RCVD-BYTES  RESENT  TIMEOUTS  RNR-WAITS  PID  COMM
0x000011  RC    RTS          1000           7       2         1          4  41   sender
`},
	} {
		if got := once(t, known(), c.look, false); got != c.want[1:] {
			t.Errorf("got\n%swant\n%s", got, c.want[1:])
		}
	}
	for _, names := range [][]string{{"sent_pkts", "nope"}, {"nope*"}, {"[", "sent_pkts"}} {
		if _, err := Stat(StatOptions{Names: names})(known(), time.Time{}); !errors.Is(err, ErrNoCounter) {
			t.Errorf("%v: got %v, want ErrNoCounter", names, err)
		}
	}
}

// watch shows some looks, a second apart, on virtual time.
func watch(t *testing.T, src *fake, look Look, o Output, looks int) string {
	t.Helper()
	var b bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		grow := src.onLook
		src.onLook = func(n int) {
			if grow != nil {
				grow(n)
			}
			if n == looks {
				cancel()
			}
		}
		o.W, o.Every = &b, time.Second
		if err := o.Show(ctx, src, look); err != nil {
			t.Error(err)
		}
	})
	return b.String()
}

// growing counts 50 packets and 2048 bytes a second; the third look finds the
// counter begun anew.
func growing() *fake {
	f := known()
	f.onLook = func(n int) {
		if n == 2 {
			f.counters[0].Value += 50
			f.objects[verbs.ResourceQP][0].SentBytes += 2048
			f.objects[verbs.ResourceQP][0].Resent++
		}
		if n == 3 {
			f.counters[0].Value = 7
			f.objects[verbs.ResourceQP][0].Program = 9 // another one of the same number
		}
	}
	return f
}

func TestWatchLines(t *testing.T) {
	zone := time.Local
	time.Local = time.UTC
	t.Cleanup(func() { time.Local = zone })
	got := watch(t, growing(), Stat(StatOptions{Names: []string{"sent_pkts"}, Rates: true}), Output{}, 3)
	want := `
TIME          COUNTER    VALUE  PER-SEC  COUNTS
00:00:00.000  sent_pkts    100        -  packets sent
00:00:01.000  sent_pkts    150       50  packets sent
00:00:02.000  sent_pkts      7        -  packets sent
`
	if got != want[1:] {
		t.Errorf("counters: got\n%swant\n%s", got, want[1:])
	}
	got = watch(t, growing(), StatQPs(Filter{QPNs: []uint32{0x11}}, StatOptions{Rates: true}), Output{}, 3)
	for i, want := range []string{
		"TIME LQPN TYPE STATE SENT-BYTES SENT/S RCVD-BYTES RCVD/S RESENT RESENT/S TIMEOUTS TIMEOUTS/S RNR-WAITS RNR/S PID COMM",
		"00:00:00.000 0x000011 RC RTS 1000 - 7 - 2 - 1 - 4 - 41 sender",
		"00:00:01.000 0x000011 RC RTS 3048 2048 7 0 3 1.0 1 0 4 0 41 sender",
		"00:00:02.000 0x000011 RC RTS 3048 - 7 - 3 - 1 - 4 - 41 sender",
	} {
		lines := strings.Split(got, "\n")
		if len(lines) != 5 || strings.Join(strings.Fields(lines[i]), " ") != want {
			t.Fatalf("queue pairs: line %d of\n%swant\n%s", i, got, want)
		}
	}
	got = watch(t, known(), Summary(Filter{States: []string{"RTS"}}), Output{}, 2)
	if want := "00:00:00.000  softroce7: qp 1\n00:00:01.000  softroce7: qp 1\n"; got != want {
		t.Errorf("summary: got\n%swant\n%s", got, want)
	}
}

// A series in JSON is an object a line.
func TestWatchJSON(t *testing.T) {
	got := watch(t, growing(), Stat(StatOptions{Names: []string{"sent_pkts"}, Rates: true}), Output{JSON: true, Size: func() (int, int) { return 1, 1 }}, 2)
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if len(lines) != 2 {
		t.Fatalf("got %d lines:\n%s", len(lines), got)
	}
	for i, want := range []string{
		`"stat":{"adapter":"softroce7","counters":{"sent_pkts":100},"per_second":{"sent_pkts":null}}}`,
		`"stat":{"adapter":"softroce7","counters":{"sent_pkts":150},"per_second":{"sent_pkts":50}}}`,
	} {
		if !strings.HasPrefix(lines[i], `{"time":"2000-01-01T`) || !strings.HasSuffix(lines[i], want) || !json.Valid([]byte(lines[i])) {
			t.Errorf("got %s, want ... %s", lines[i], want)
		}
	}
	ctx, _ := KindOf("ctx")
	if got := watch(t, known(), Resources(ctx, Filter{PIDs: []int{41}}), Output{JSON: true}, 1); !strings.HasSuffix(got, `"ctx":[{"ctxn":1,"qps":2,"pid":41,"comm":"sender"}]}`+"\n") {
		t.Errorf("got %s", got)
	}
}

// On a terminal a view takes the place of the one before and never more than the
// terminal's lines and columns.
func TestWatchTerminal(t *testing.T) {
	qp, _ := KindOf("qp")
	size := func() (int, int) { return 14, 4 }
	got := watch(t, known(), Resources(qp, Filter{}), Output{Size: size}, 2)
	view := "\r\x1b[JLQPN      TYPE\n0x000011  RC  \n... 2 more lin\n"
	if want := view + "\x1b[3A" + view; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	wide := func() (int, int) { return 0, 24 }
	if got := watch(t, known(), Summary(Filter{}), Output{Size: wide}, 1); got != "\r\x1b[J"+once(t, known(), Summary(Filter{}), false) {
		t.Errorf("got %q", got)
	}
}

// An error ends a series, and what cannot be written too.
func TestErrors(t *testing.T) {
	broken := known()
	broken.err = fmt.Errorf("the adapter is gone")
	qp, _ := KindOf("qp")
	for _, look := range []Look{Resources(qp, Filter{}), Summary(Filter{}), Stat(StatOptions{}), StatQPs(Filter{}, StatOptions{})} {
		for _, every := range []time.Duration{0, time.Second} {
			if err := (Output{W: &bytes.Buffer{}, Every: every}).Show(t.Context(), broken, look); !errors.Is(err, broken.err) {
				t.Errorf("got %v", err)
			}
			for _, o := range []Output{{}, {JSON: true}, {Size: func() (int, int) { return 80, 24 }}} {
				o.W, o.Every = full{}, every
				if err := o.Show(t.Context(), known(), look); !errors.Is(err, errFull) {
					t.Errorf("%+v: got %v, want errFull", o, err)
				}
			}
		}
	}
}

var errFull = errors.New("full")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

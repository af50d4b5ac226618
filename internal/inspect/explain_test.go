package inspect

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/verbs"
)

// Every word of the engine's has a text.
func TestEveryWordIsExplained(t *testing.T) {
	for k := transport.TroubleNoAnswer; k < transport.TroubleKindsCount; k++ {
		if troubles[k.String()] == nil {
			t.Errorf("no text for a trouble of kind %q", k)
		}
	}
	for v := transport.OutOfSequence; v < transport.VerdictCount; v++ {
		if verdictTexts[v.String()] == "" {
			t.Errorf("no text for packets of verdict %q", v)
		}
	}
	kindOf := func(w transport.Why) string {
		switch {
		case w <= transport.WhyImplied:
			return "no_answer"
		case w >= transport.WhySuccession:
			return "request"
		}
		return "local"
	}
	for w := transport.WhyTimeout; w < transport.WhyCount; w++ {
		s := &verbs.Story{QP: verbs.Resource{Number: 0x11, Type: "RC", State: "ERR"}, PeerMTU: 1024}
		s.First = verbs.Trouble{Kind: kindOf(w), Why: w.String(), Key: 0x55, Addr: 0x1000, Length: 8, Size: 4, Op: "RDMA_WRITE", Opcode: "RC SEND First"}
		e := tell(s)
		if len(e.Cause) == 0 || e.Meaning == "" {
			t.Errorf("no cause for %q: %+v", w, e)
		}
	}
}

// What a queue pair of another user's shows: no key, no address.
func TestHiddenKeys(t *testing.T) {
	s := &verbs.Story{First: verbs.Trouble{Kind: "request", Why: "key", Syndrome: 0x62, Length: 8}}
	e := tell(s)
	if got := strings.Join(e.lines(), "\n"); !strings.Contains(got, "rkey (shown to its own user alone)") {
		t.Errorf("got\n%s", got)
	}
}

func TestParseAsked(t *testing.T) {
	status := func(s cq.Status) Asked { return Asked{Status: &s} }
	for _, c := range []struct {
		arg  string
		want Asked
	}{
		{"12", status(cq.RetryExcErr)},
		{"0", status(cq.Success)},
		{"IBV_WC_RETRY_EXC_ERR", status(cq.RetryExcErr)},
		{"wc_wr_flush_err", status(cq.WRFlushErr)},
		{"rnr_retry_exc_err", status(cq.RNRRetryExcErr)},
		{"0x12", Asked{QPN: 0x12}},
		{"24", Asked{QPN: 24}},
		{"0x00a1b2", Asked{QPN: 0xA1B2}},
		{"einval", Asked{Errno: "EINVAL"}},
	} {
		got, err := ParseAsked(c.arg)
		same := got.QPN == c.want.QPN && got.Errno == c.want.Errno && (got.Status == nil) == (c.want.Status == nil) &&
			(got.Status == nil || *got.Status == *c.want.Status)
		if err != nil || !same {
			t.Errorf("%s: got %+v, %v, want %+v", c.arg, got, err, c.want)
		}
	}
	for _, bad := range []string{"", "-1", "0x1000000", "RETRY", "EFOO", "0x0"} {
		if got, err := ParseAsked(bad); err == nil {
			t.Errorf("%q: got %+v", bad, got)
		}
	}
}

// All statuses have a text and, where softroce gives them, attributes and advice;
// docs/troubleshooting.md has them, as they are here.
func TestStatusTexts(t *testing.T) {
	for s := cq.LocLenErr; int(s) < Statuses; s++ {
		e := ExplainStatus(s)
		foreign := strings.Contains(e.Meaning, "does not have") || s == cq.RemAbortErr || s == cq.RespTimeoutErr
		if e.Meaning == "" || !foreign && len(e.Change) == 0 {
			t.Errorf("%v: %+v", s, e)
		}
	}
	const path, begin, end = "../../docs/troubleshooting.md", "<!-- statuses -->\n", "<!-- /statuses -->\n"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	table, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no table between %q and %q", path, begin, end)
	}
	want := strings.Join(StatusTable(), "\n") + "\n"
	if table == want {
		return
	}
	if os.Getenv("SOFTROCE_UPDATE") == "" {
		t.Fatalf("the table of statuses in %s is not what explain says (SOFTROCE_UPDATE=1 go test ./internal/inspect writes it)", path)
	}
	if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// stories is an adapter that remembers these.
type stories []verbs.Story

func (s stories) Explain(verbs.QPN) ([]verbs.Story, error) { return s, nil }

// What a living queue pair tells is not told a second time by its failure; JSON has
// every key.
func TestExplanations(t *testing.T) {
	failed := verbs.Story{QP: verbs.Resource{Number: 0x11, Program: 1, PID: 7, Type: "RC", State: "ERR"}}
	failed.First = verbs.Trouble{Kind: "not_ready", Status: 13, Retries: 2, RNRTimer: 1, PSN: 5}
	then := failed
	then.Past = true
	list, err := ExplainQP(stories{failed, then}, 0x11)
	if err != nil || len(list) != 1 {
		t.Fatalf("got %d explanations, %v", len(list), err)
	}
	var b bytes.Buffer
	if err := WriteExplanations(&b, list, true); err != nil {
		t.Fatal(err)
	}
	var got []map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil || len(got) != 1 {
		t.Fatalf("%v in %s", err, b.String())
	}
	for _, key := range []string{"subject", "status", "name", "meaning", "seen", "cause", "change", "story"} {
		if got[0][key] == nil {
			t.Errorf("no %q in %s", key, b.String())
		}
	}
	if _, err := ExplainQP(stories{}, 1); !errors.Is(err, ErrNothing) {
		t.Errorf("got %v, want ErrNothing", err)
	}
	if _, err := ExplainLast(stories{then}, 1, 7); !errors.Is(err, ErrNothing) {
		t.Errorf("the asker's own: got %v, want ErrNothing", err)
	}
	if got := strings.Join(list[0].lines(), "\n"); strings.Contains(got, "last NAK") {
		t.Errorf("a NAK that there was not:\n%s", got)
	}
	if i := slices.IndexFunc(list[0].lines(), func(l string) bool { return len(l) > textWidth+8 }); i >= 0 {
		t.Errorf("a long line: %q", list[0].lines()[i])
	}
}

// A failure says that its program is gone, and when; one whose program lives does not.
func TestOfAProgramThatIsGone(t *testing.T) {
	old := verbs.Story{Past: true, GoneNS: 60e9, QP: verbs.Resource{Number: 0x11, Program: 1, PID: 7, Type: "RC", State: "ERR"}}
	old.First = verbs.Trouble{Kind: "no_answer", Status: 12, Retries: 1, Heard: 1, AgoNS: 61e9}
	now := old
	now.GoneNS = 0
	list, err := ExplainLast(stories{now, old}, 2, 0)
	if err != nil || len(list) != 2 {
		t.Fatalf("got %d explanations, %v", len(list), err)
	}
	if got := list[0].lines()[0]; !strings.HasPrefix(got, "queue pair 0x000011") {
		t.Errorf("a program that is there: got %q", got)
	}
	if got := list[1].lines()[0]; got != "A program that is gone (it ended 1m0s ago, its queue pair failed 1m1s ago):" {
		t.Errorf("a program that is gone: got %q", got)
	}
}

// What was received twice or behind a gap is seen, and one of a thing is no plural.
func TestSeenCounts(t *testing.T) {
	s := &verbs.Story{QP: verbs.Resource{Number: 0x11, Type: "RC", State: "RTS", SentPkts: 1, SentMsgs: 1, RcvdPkts: 9, Duplicates: 7, OutOfSequence: 1, Timeouts: 1, SeqNAKs: 1, SentRNRs: 1, RNRWaits: 1}}
	s.First = verbs.Trouble{Kind: "no_answer", Retries: 1, Heard: 1, Op: "SEND", Size: 1}
	s.Odd = []verbs.OddPacket{{Verdict: "drop_stale", Opcode: "RC Acknowledge", Count: 1, Size: 1}}
	e := tell(s)
	got := strings.Join(e.lines(), "\n")
	for _, want := range []string{
		"1 packet sent (0 of them again) and 9 received; 1 message done, 0 taken", "7 duplicates received: this end had taken",
		"1 packet received out of sequence", "expired 1 time:", "a lost packet 1 time (", "posted 1 time (RNR NAK), and", "posted here 1 time (",
		"(SEND of 1 byte) after 1 retry;", "1 packet had come from the peer", "1 x RC Acknowledge of 1 byte,",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if plural := regexp.MustCompile(`\b1 (packets|messages|times|bytes|duplicates|retries|requests)\b`).FindString(got); plural != "" {
		t.Errorf("%q in\n%s", plural, got)
	}
}

type gidList []verbs.GIDStatus

func (g gidList) GIDStatus() ([]verbs.GIDStatus, error) { return g, nil }

func TestGIDsTable(t *testing.T) {
	look := GIDs(gidList{
		{Index: 0, Address: "192.0.2.1", GID: "::ffff:192.0.2.1", Type: "RoCE v2", Interface: "eth0", LinkMTU: 1500, Usable: true},
		{Index: -1, Address: "192.0.2.2", GID: "::ffff:192.0.2.2", Type: "RoCE v2", Why: "the address is on no interface"},
	})
	want := `
INDEX  ADDRESS    GID               TYPE     INTERFACE  MTU   USABLE  WHY
0      192.0.2.1  ::ffff:192.0.2.1  RoCE v2  eth0       1500  yes     -
-      192.0.2.2  ::ffff:192.0.2.2  RoCE v2  -          -     no      the address is on no interface
`
	if got := once(t, known(), look, false); got != want[1:] {
		t.Errorf("got\n%swant\n%s", got, want[1:])
	}
	const asJSON = `{"index":null,"address":"192.0.2.2","gid":"::ffff:192.0.2.2","type":"RoCE v2","interface":null,"link_mtu":null,"usable":false,"why":"the address is on no interface"}`
	if got := once(t, known(), look, true); !strings.Contains(got, asJSON) {
		t.Errorf("got %s", got)
	}
}

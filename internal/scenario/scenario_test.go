package scenario_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/softroce/softroce/internal/scenario"
)

const send = `# SND-01: a SEND that fits.
recv id=1 len=16
in RC SEND Only psn=0x200 A data=4
  accepted
  > RC Acknowledge psn=0x200 ACK msn=1
  recv wc 1 SUCCESS RECV len=4
`

func TestCheck(t *testing.T) {
	if err := scenario.Check("send.txt", send); err != nil {
		t.Error(err)
	}
}

// TestDifference: the first line that differs is named, with its place, the
// command that led to it, and both versions.
func TestDifference(t *testing.T) {
	for _, c := range []struct{ name, from, to, want string }{
		{"another line", "psn=0x200 ACK", "psn=0x201 ACK", `s.txt:5: after "in RC SEND Only psn=0x200 A data=4" (line 3)
	expected > RC Acknowledge psn=0x201 ACK msn=1
	got      > RC Acknowledge psn=0x200 ACK msn=1`},
		{"one too few", "  recv wc 1 SUCCESS RECV len=4\n", "", `s.txt:6: after "in RC SEND Only psn=0x200 A data=4" (line 3)
	expected (nothing)
	got      recv wc 1 SUCCESS RECV len=4`},
		{"one too many", "  accepted\n", "  accepted\n  state ERR\n", `s.txt:5: after "in RC SEND Only psn=0x200 A data=4" (line 3)
	expected state ERR
	got      > RC Acknowledge psn=0x200 ACK msn=1`},
		{"too many at the end", "len=4\n", "len=4\n  state ERR\n", `s.txt:7: after "in RC SEND Only psn=0x200 A data=4" (line 3)
	expected state ERR
	got      (nothing)`},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := scenario.Check("s.txt", strings.Replace(send, c.from, c.to, 1))
			var e *scenario.Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v", err)
			}
			if err.Error() != c.want {
				t.Errorf("got\n%v\nwant\n%s", err, c.want)
			}
			if e.All != send {
				t.Errorf("all of it:\n%s", e.All)
			}
		})
	}
}

// TestBadLines: what is no command is refused, and never taken for something
// else.
func TestBadLines(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"jump", `x.txt:2: "jump": no command "jump"`},
		{"post", "no operation"},
		{"post fly id=1", `no operation "fly"`},
		{"post send id=1 colour=3", `word "colour" is not known here`},
		{"post send id=red", "id: strconv.ParseUint"},
		{"post send id=1 id=2", `"id" twice`},
		{"recv len=4 se", `word "se" is not known here`},
		{"in RC SEND Sideways psn=1", `no opcode "RC SEND Sideways"`},
		{"in RC SEND Only psn=0x200 ack=MAYBE", `no syndrome "MAYBE"`},
		{"in RC SEND Only psn=0x200 ack=rnr32", `no timer code "32"`},
		{"in RC SEND Only psn=0x200 key=bad", `no key "bad"`},
		{"connect mtu=1000", "not a path MTU"},
		{"connect type=xrc", "want rc, uc or ud"},
		{"connect state=up", "no such state"},
		{"connect retry=8", "retry_cnt is 8"},
		{"@b post send", "no queue pair @b"},
		{"@b", "no command behind @b"},
		{"modify", "no state"},
		{"modify away", `no state "away"`},
		{"wait", "want a time"},
		{"wait long", "invalid duration"},
		{"mem 0", "want 2 numbers"},
		{"mem 0x100000 1", "beyond the memory"},
		{"set64 0xffffc 1", "beyond the memory"},
	} {
		t.Run(c.line, func(t *testing.T) {
			_, err := scenario.Run("x.txt", "# a comment\n"+c.line+"\n")
			var e *scenario.SyntaxError
			if !errors.As(err, &e) || e.Line != 2 {
				t.Fatalf("got %v", err)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

// TestSeveralQueuePairs: those with a name share the adapter, and begin their
// lines with it.
func TestSeveralQueuePairs(t *testing.T) {
	err := scenario.Check("s.txt", `connect
@b connect sqpsn=0x300
@b post send id=1 len=4
  @b > RC SEND Only psn=0x300 A data=4
post send id=2 len=4
  > RC SEND Only psn=0x100 A data=4
@b in RC Acknowledge psn=0x300 ack=ACK
  @b accepted
  @b wc 1 SUCCESS SEND len=4
in RC Acknowledge psn=0x100 ack=ACK
  accepted
  wc 2 SUCCESS SEND len=4
`)
	if err != nil {
		t.Error(err)
	}
}

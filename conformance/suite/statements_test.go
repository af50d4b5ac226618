package suite

import (
	"regexp"
	"strings"
	"testing"
)

// sections are the list's sections in order: prefix of the ids, heading, statements.
var sections = []struct {
	prefix, heading string
	count           int
}{
	{"FRM", "Framing, IP and UDP", 20},
	{"BTH", "BTH and key checks", 16},
	{"CRC", "ICRC", 10},
	{"SND", "RC responder: SEND", 20},
	{"WRT", "RC responder: WRITE", 28},
	{"RDR", "RC responder: READ", 20},
	{"ATM", "RC responder: atomics, FLUSH, ATOMIC WRITE", 18},
	{"PSN", "RC responder: PSN handling", 21},
	{"OPS", "RC responder: opcode sequence and support", 15},
	{"REQ", "RC requester: generation", 16},
	{"RSP", "RC requester: responses", 30},
	{"TMO", "RC requester: timeout", 10},
	{"UC", "UC", 13},
	{"UD", "UD and multicast", 18},
	{"QPS", "QP states, flush, events", 18},
	{"SRQ", "SRQ", 7},
	{"MEM", "Memory registration and windows", 15},
	{"ROB", "Robustness", 14},
}

// The list is whole: 309 statements, numbered on in each section, no cell empty.
func TestStatements(t *testing.T) {
	all := Statements()
	if len(all) != 309 {
		t.Errorf("statements: got %d, want 309", len(all))
	}
	at := 0
	for _, sec := range sections {
		for k := range sec.count {
			if at == len(all) {
				t.Fatalf("the list ends in section %s, at %d", sec.prefix, k)
			}
			s := all[at]
			at++
			prefix, number, _ := strings.Cut(s.ID, "-")
			if prefix != sec.prefix || s.Section != sec.heading || number != twoDigits(k+1) || s.Number != at {
				t.Fatalf("statement %d: got %d %s in %q, want %s-%s in %q", at, s.Number, s.ID, s.Section, sec.prefix, twoDigits(k+1), sec.heading)
			}
			if s.Stimulus == "" || s.Expected == "" || s.Clause == "" {
				t.Errorf("%s: an empty cell: %+v", s.ID, s)
			}
			if found, ok := Lookup(s.ID); !ok || found != s {
				t.Errorf("Lookup(%s): got %+v, %v", s.ID, found, ok)
			}
		}
	}
	if _, ok := Lookup("FRM-00"); ok {
		t.Error("Lookup(FRM-00) found something")
	}
}

func twoDigits(n int) string { return string([]byte{byte('0' + n/10), byte('0' + n%10)}) }

var (
	mark = regexp.MustCompile(`\[[S?]\]`)
	// musts are the ids that weigh that much unless a mark forbids it, optional those that nobody needs.
	musts    = regexp.MustCompile(`^(FRM-(0\d|10)|CRC-..|PSN-..|SND-0[1-5]|WRT-0[12]|RDR-0[1-7]|ATM-0[1-3]|RSP-(0\d|1[0-5])|TMO-0[12]|UC-0[1-4]|UD-0[1-3])$`)
	optional = regexp.MustCompile(`^(FRM-17|BTH-14|BTH-16|ATM-1[4-8]|RSP-30|SRQ-03)$`)
)

// Each statement has the level that its id asks for, and one with a mark is no must.
func TestLevels(t *testing.T) {
	counts := map[Level]int{}
	for _, s := range Statements() {
		want := Should
		switch {
		case optional.MatchString(s.ID):
			want = May
		case musts.MatchString(s.ID) && !mark.MatchString(s.Clause):
			want = Must
		}
		if s.Level != want {
			t.Errorf("%s (%s): got level %v, want %v", s.ID, s.Clause, s.Level, want)
		}
		counts[s.Level]++
	}
	if counts[Must] != 78 || counts[Should] != 221 || counts[May] != 10 {
		t.Errorf("levels: got %v", counts)
	}
}

// What is not settled says so.
func TestMarks(t *testing.T) {
	var marked []string
	for _, s := range Statements() {
		if mark.MatchString(s.Clause) {
			marked = append(marked, s.ID)
		}
	}
	want := "FRM-06 BTH-09 SND-15 RDR-16 RDR-17 REQ-10 REQ-11 RSP-11 RSP-12 RSP-20 RSP-30 TMO-01 UC-07 UD-08 UD-11 UD-12 QPS-02 SRQ-03"
	if got := strings.Join(marked, " "); got != want {
		t.Errorf("marked:\n got %s\nwant %s", got, want)
	}
}

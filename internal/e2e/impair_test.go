package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/pkg/verbs"
)

// TestImpair puts rules in place by every way there is, runs a ping-pong under
// them and takes them away.
func TestImpair(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(file, []byte("# two\ndelay 1ms sent\ndrop to 192.0.2.1 # nobody\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, testaddr.Take(t, 1)[0], socketIn(t), "--impair", file)
	run := func(stdin string, args ...string) string {
		t.Helper()
		r := softroce(t, []byte(stdin), append(append([]string{"impair"}, args...), "--socket", d.socket)...)
		if r.code != 0 || r.stderr != "" {
			t.Fatalf("impair %q: status %d\n%s", args, r.code, r.stderr)
		}
		return r.stdout
	}
	rules := func() (list []verbs.ImpairRule) {
		t.Helper()
		if err := json.Unmarshal([]byte(run("", "show", "--json")), &list); err != nil {
			t.Fatal(err)
		}
		return list
	}
	texts := func() string {
		var s []string
		for _, r := range rules() {
			s = append(s, r.Rule)
		}
		return strings.Join(s, "; ")
	}
	want := func(what, want string) {
		t.Helper()
		if got := texts(); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	want("of the daemon's file", "delay 1ms sent; drop to 192.0.2.1")
	if !strings.Contains(d.log.String(), "packets are impaired on purpose") {
		t.Errorf("the log says nothing of it:\n%s", d.log)
	}
	srv, cl := pingpongOnce(t, d)
	if srv != 0 || cl != 0 {
		t.Errorf("pingpong under rules: status %d and %d", srv, cl)
	}
	if r := rules(); r[0].Hit < 10 || r[1].Hit != 0 {
		t.Errorf("harmed: %+v", r)
	}
	r := softroce(t, nil, "stat", "impaired_delay", "--socket", d.socket)
	if r.code != 0 || !strings.Contains(r.stdout, "impaired_delay") {
		t.Errorf("stat: %+v", r)
	}
	run("", "drop 5%", "duplicate every 7")
	want("as arguments", "drop 5%; duplicate every 7")
	run("", "--add", "reorder")
	want("added", "drop 5%; duplicate every 7; reorder")
	if s := run("", "show"); !strings.Contains(s, "duplicate every 7") || !strings.Contains(s, "harmed") {
		t.Errorf("show:\n%s", s)
	}
	run("", "clear", "2")
	want("without the second", "drop 5%; reorder")
	run("drop nth 1\n", "-")
	want("from standard input", "drop nth 1")
	run("", file)
	want("from a file", "delay 1ms sent; drop to 192.0.2.1")
	run("", "clear")
	want("cleared", "")
	if s := run("", "show"); s != "no rules: packets pass as they are\n" {
		t.Errorf("show of none: %q", s)
	}
}

// pingpongOnce runs ten rounds of rc between two programs of a daemon.
func pingpongOnce(t *testing.T, d *daemon) (server, client int) {
	t.Helper()
	port := freePort(t)
	args := []string{"pingpong", "rc", "-n", "10", "-p", strconv.Itoa(port), "--socket", d.socket}
	srv := tool(t, args...)
	eventually(t, "the server listens", func() bool { return listening(t, port) || srv.ended() })
	cl := tool(t, append(args, "127.0.0.1")...)
	cl.finish(t)
	srv.finish(t)
	return srv.cmd.ProcessState.ExitCode(), cl.cmd.ProcessState.ExitCode()
}

// TestImpairRefuses says of every mistake what is wrong and where, and leaves the
// rules as they are.
func TestImpairRefuses(t *testing.T) {
	addr, socket := testaddr.Take(t, 1)[0], socketIn(t)
	file := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(file, []byte("drop 1%\n\ndrop 101%\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if last := refused(t, "--addr", addr.String(), "--socket", socket, "--impair", file); !strings.Contains(last, file+`: line 3: "101%" is no percentage`) {
		t.Errorf("a daemon with a wrong file: %s", last)
	}
	if last := refused(t, "--addr", addr.String(), "--socket", socket, "--impair", file+"2"); !strings.Contains(last, "neither a file nor a rule") {
		t.Errorf("a daemon without its file: %s", last)
	}
	if last := refused(t, "--addr", addr.String(), "--socket", socket, "--impair", "drop 1%"); !strings.Contains(last, "is a rule, and no file: put it into one") {
		t.Errorf("a daemon with a rule for a file: %s", last)
	}
	d := startDaemon(t, addr, socket)
	many := make([]string, 250) // within the number of rules, not within their size
	for i := range many {
		many[i] = "drop to 192.0.2.0/24 SEND,WRITE,READ,ATOMIC,REQUEST,RESPONSE,FIRST,LAST,MIDDLE,ONLY"
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{many, 2, "bytes, at most"},
		{[]string{"/dev/null"}, 2, "there is no rule"},
		{[]string{"-"}, 2, "there is no rule"},
		{[]string{file}, 2, file + ": line 3:"},
		{[]string{"drop 1%", "dorp"}, 2, `impair: rule "dorp": unknown rule "dorp"`},
		{[]string{"drop 1%\ndorp"}, 2, `impair: line 2: unknown rule "dorp"`},
		{[]string{"drop", "sent", "SEND"}, 2, "are 3 arguments, and each is a rule of its own: quote one that has blanks, as softroce impair 'drop sent SEND'"},
		{[]string{"drop 101%"}, 2, "at most 100%"},
		{[]string{"delay -1ms"}, 2, "must not be negative"},
		{[]string{"nosuchfile"}, 2, "neither a file nor a rule"},
		{[]string{}, 2, "impair: give rules, or a file of them, or \"show\" or \"clear\", as\n  softroce impair 'drop 1%'"},
		{[]string{"clear", "x"}, 2, "no number of a rule"},
		{[]string{"clear", "7"}, 1, "there is no rule 7"},
	} {
		r := softroce(t, nil, append(append([]string{"impair"}, c.args...), "--socket", d.socket)...)
		if r.code != c.code || !strings.Contains(r.stderr, c.says) || len(c.args) > 0 && strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("impair %q: status %d, want %d with %q:\n%s", c.args, r.code, c.code, c.says, r.stderr)
		}
	}
	if r := softroce(t, nil, "impair", "show", "--json", "--socket", d.socket); r.stdout != "[]\n" {
		t.Errorf("in place after all that: %s", r.stdout)
	}
}

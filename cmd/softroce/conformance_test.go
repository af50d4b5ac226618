package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/cases"
	"github.com/softroce/softroce/conformance/report"
	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/wire"
)

// conformanceCommand runs "softroce conformance" with arguments and gives what it printed, and its status.
func conformanceCommand(t *testing.T, args ...string) (string, int) {
	t.Helper()
	root := newRoot()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs(append([]string{"conformance"}, args...))
	err := root.ExecuteContext(t.Context())
	if err == nil {
		return out.String(), 0
	}
	var e *exitError
	if !errors.As(err, &e) {
		return err.Error(), exitUsage
	}
	return err.Error(), e.code
}

// Every statement is either in the list or, with its reason, in the other one.
func TestConformanceList(t *testing.T) {
	line := regexp.MustCompile(`^[A-Z]+-\d\d +(must|should|may) +\S.*$`)
	seen := map[string]bool{}
	for _, args := range [][]string{{"list"}, {"list", "--untested"}} {
		out, code := conformanceCommand(t, args...)
		if code != 0 {
			t.Fatal(out)
		}
		for l := range strings.Lines(out) {
			if !line.MatchString(strings.TrimSuffix(l, "\n")) {
				t.Errorf("%v: line %q", args, l)
			}
			id := strings.Fields(l)[0]
			if seen[id] {
				t.Errorf("%s is listed twice", id)
			}
			seen[id] = true
		}
		if len(args) == 1 && len(seen) != len(cases.All()) {
			t.Errorf("%d lines, %d cases", len(seen), len(cases.All()))
		}
	}
	if len(seen) != len(suite.Statements()) {
		t.Errorf("%d statements are listed, want %d", len(seen), len(suite.Statements()))
	}
	for _, flag := range []string{"--section", "--only"} {
		out, _ := conformanceCommand(t, "list", flag, "rdr", "--level", "must")
		if n := strings.Count(out, "\n"); n != 7 || strings.Contains(out, "should") {
			t.Errorf("the musts of RDR by %s: %d lines:\n%s", flag, n, out)
		}
	}
}

func TestConformanceShow(t *testing.T) {
	out, code := conformanceCommand(t, "show", "rdr-14", "TMO-01")
	for _, want := range []string{"RDR-14 (should), statement 108 of 309", "stimulus  max_dest_rd_atomic=0", "tested    yes, where the target has rd_atomic_0", "[S]", "[?]"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("status %d, no %q in:\n%s", code, want, out)
		}
	}
}

// What cannot be carried out has status 2 and says why.
func TestConformanceRefuses(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "exceptions")
	if err := os.WriteFile(bad, []byte("FRM-04\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"show XYZ-01", `no statement "XYZ-01"`},
		{"list --level most", "want must, should or may"},
		{"list --section NOT", `"NOT" is no statement`},
		{"list --only NOT", `list: --only: "NOT" is no statement`},
		{"run --target 192.0.2.1 --section NOT", `--only: "NOT" is no statement`},
		{"run --target 192.0.2.1 --golden " + fifo, "not a regular file"},
		{"run --target 192.0.2.1 --exceptions " + fifo, "not a regular file"},
		{"report --out " + dir + "/x " + fifo, "not a regular file"},
		{"report --out " + bad + " " + bad, "would overwrite the results"},
		{"run", "target"},
		{"run --target 192.0.2.1 --only RDR,XX-*", `"XX-*" is no statement`},
		{"run --target 192.0.2.1 --level x", "--level"},
		{"run --target 192.0.2.1 --only ROB-01 --level must", "leave no statement"},
		{"run --target 192.0.2.1 --quiet 0s", "--quiet"},
		{"run --target 192.0.2.1 --wait 61s", "at most 1m0s"},
		{"run --target 192.0.2.1 --local x", "--local"},
		{"run --target 192.0.2.1 --cm 0", "0 is no port"},
		{"run --target 192.0.2.1 --json - --junit -", "one of them"},
		{"run --target 192.0.2.1 --json " + dir + "/x --html " + dir + "/x", "named twice"},
		{"run --target 192.0.2.1 --json " + dir + "/no/x", "no such file"},
		{"run --target 192.0.2.1 --html " + bad + "/x", "not a directory"},
		{"run --target 192.0.2.1 --pcap " + bad, "not a directory"},
		{"run --target 0.0.0.0 --pcap " + dir + "/a/b", "not one of a host"}, // and makes the directory
		{"run --target 192.0.2.1 --exceptions " + dir + "/no", "no such file"},
		{"run --target 192.0.2.1 --exceptions " + bad, "FRM-04 has no reason"},
		{"report --out " + dir + "/x " + bad, "read results"},
		{"report " + bad, "out"},
		{"agent --tester 192.0.2.1 --addr x", "--addr"},
	} {
		out, code := conformanceCommand(t, strings.Fields(c.args)...)
		if code != exitUsage || !strings.Contains(out, c.want) {
			t.Errorf("%s: status %d, %q; want 2 and %q", c.args, code, out, c.want)
		}
	}
	if _, err := os.Stat(dir + "/a/b"); err != nil {
		t.Errorf("the directory for packets is not made: %v", err)
	}
}

// fakeAgent answers everything with nothing.
type fakeAgent struct{}

func (fakeAgent) Do(agent.Request) (*agent.Answer, error) { return &agent.Answer{}, nil }

// fakeConfig is a run against nobody: the cases say by themselves what comes of them.
func fakeConfig(t *testing.T, only ...string) suite.Config {
	t.Helper()
	link, peer := wire.Pair()
	t.Cleanup(func() { _, _ = link.Close(), peer.Close() })
	hello := &agent.Hello{Version: 1, Agent: "fake 1", Device: "fake0", GIDs: []agent.GID{{Addr: link.Remote().String()}}}
	return suite.Config{
		Link: link, Seed: 7, Only: only, Quiet: time.Millisecond,
		Dial: func() (suite.Agent, *agent.Hello, error) { return fakeAgent{}, hello, nil },
		Cases: []suite.Case{
			{ID: "RDR-01", Run: func(t *suite.T) { t.Notef("a note") }},
			{ID: "RDR-02", Run: func(t *suite.T) { t.Failed("an answer", "nothing") }},
			{ID: "RDR-08", Run: func(t *suite.T) { t.Failed("an answer", "nothing") }},
			{ID: "RDR-14", Needs: []string{agent.FeatureEmptyRD}, Run: func(*suite.T) {}},
			{ID: "RDR-19", Run: func(*suite.T) { panic("a bug") }},
		},
	}
}

// fakeRun runs it and gives the status.
func fakeRun(t *testing.T, ctx context.Context, f conformanceFlags, cfg suite.Config, exceptions string) (out, log string, code int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	s := &conformanceRun{flags: &f, target: netip.MustParseAddr("192.0.2.1"), stdout: &stdout, stderr: &stderr}
	if exceptions != "" {
		var err error
		if s.exceptions, err = report.ParseExceptions(strings.NewReader(exceptions)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.run(ctx, cfg); err != nil {
		var e *exitError
		if !errors.As(err, &e) {
			t.Fatal(err)
		}
		code = e.code
	}
	return stdout.String(), stderr.String(), code
}

func TestConformanceRun(t *testing.T) {
	dir := t.TempDir()
	f := conformanceFlags{json: dir + "/json", junit: dir + "/junit", html: dir + "/html", pcap: dir}
	out, log, code := fakeRun(t, t.Context(), f, fakeConfig(t, "RDR"), "")
	if code != exitFailed {
		t.Errorf("a must failed: status %d", code)
	}
	for _, want := range []string{
		"Conformance of fake0 at 192.0.2.1\n", "✓ RDR-01", "note      a note", "✗ RDR-02", "expected  an answer", "got       nothing",
		"- RDR-14", "the target does not have rd_atomic_0", "the case panicked: a bug", "RDR-02: a must failed",
		"20 cases: 1 passed, 3 failed, 16 skipped",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	if want := "RC responder: READ: 20 cases: 1 passed, 3 failed, 16 skipped\n"; log != want {
		t.Errorf("progress: got %q, want %q", log, want)
	}
	text, err := os.ReadFile(dir + "/json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Seed  uint64
		Cases []struct{ ID, Level, Result, Reason string }
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if c := got.Cases; len(c) != 20 || got.Seed != 7 || c[1].ID != "RDR-02" || c[1].Level != "must" || c[1].Result != "fail" || c[1].Reason != "expected an answer, got nothing" {
		t.Errorf("JSON: %+v", got)
	}
	for _, name := range []string{"junit", "html"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(string(text), "RDR-02") {
			t.Errorf("%s: %v, %d bytes", name, err, len(text))
		}
	}
	page, code := conformanceCommand(t, "report", "--out", dir+"/page", dir+"/json")
	if code != 0 {
		t.Errorf("report: %s", page)
	}
}

// The exit status is about musts, exceptions, and whether there was a run at all.
func TestConformanceStatus(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	deaf := fakeConfig(t)
	deaf.Dial = func() (suite.Agent, *agent.Hello, error) { return nil, nil, errors.New("nobody there") }
	for _, c := range []struct {
		name       string
		ctx        context.Context
		cfg        suite.Config
		exceptions string
		want       int
	}{
		{"a must fails", t.Context(), fakeConfig(t, "RDR-02"), "", exitFailed},
		{"a should fails", t.Context(), fakeConfig(t, "RDR-08"), "", 0},
		{"an exception fails", t.Context(), fakeConfig(t, "RDR"), "RDR-02 the socket hides it", 0},
		{"an exception passes", t.Context(), fakeConfig(t, "RDR-01"), "RDR-01 the socket hides it", exitFailed},
		{"an exception was not run", t.Context(), fakeConfig(t, "RDR-01"), "RDR-02 the socket hides it", 0},
		{"no agent", t.Context(), deaf, "", exitUsage},
		{"stopped", gone, fakeConfig(t, "RDR-01"), "", exitUsage},
	} {
		if _, _, code := fakeRun(t, c.ctx, conformanceFlags{}, c.cfg, c.exceptions); code != c.want {
			t.Errorf("%s: status %d, want %d", c.name, code, c.want)
		}
	}
	out, log, _ := fakeRun(t, t.Context(), conformanceFlags{json: "-"}, fakeConfig(t, "RDR-02"), "")
	if !json.Valid([]byte(out)) || !strings.Contains(log, "RDR-02: a must failed") {
		t.Errorf("--json -: standard output\n%s\nand the complaint in\n%s", out, log)
	}
}

package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/gopacket/pcapgo"

	"github.com/softroce/softroce/conformance/suite"
)

func statement(t *testing.T, id string) suite.Statement {
	t.Helper()
	s, ok := suite.Lookup(id)
	if !ok {
		t.Fatalf("no statement %s", id)
	}
	return s
}

func result(t *testing.T, id string, o suite.Outcome, reason string) *suite.Result {
	t.Helper()
	return &suite.Result{Statement: statement(t, id), Outcome: o, Reason: reason, Began: began, Frames: fakeFrames(1)}
}

func exceptions(t *testing.T, text string) *Exceptions {
	t.Helper()
	e, err := ParseExceptions(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestJSONRoundTrip(t *testing.T) {
	run := fakeRun("other", nil)
	var b bytes.Buffer
	if err := run.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, want := range []string{`"id": "FRM-01"`, `"level": "must"`, `"result": "fail"`, `"reason": "expected a NAK`, `"seed": 1`} {
		if !strings.Contains(text, want) {
			t.Errorf("the JSON has no %s", want)
		}
	}
	back, err := ReadJSON(&b)
	if err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer
	if err := back.WriteJSON(&again); err != nil {
		t.Fatal(err)
	}
	if again.String() != text {
		t.Error("read and written again, it is another text")
	}
	if n := back.Counts; n.Cases != 309 || n.Passed+n.Failed+n.Skipped != 309 || n.MustFailed == 0 || n.MustFailed >= n.Failed {
		t.Errorf("counts: %+v", n)
	}
}

func TestReadJSONRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":        "x",
		"no format":      `{"cases":[]}`,
		"another format": `{"format":2}`,
		"no result":      `{"format":1,"cases":[{"id":"FRM-01"}]}`,
		"and more":       `{"format":1,"cases":[]}x`,
		"twice":          `{"format":1,"cases":[{"id":"FRM-01","result":"pass"},{"id":"FRM-01","result":"pass"}]}`,
	} {
		if _, err := ReadJSON(strings.NewReader(text)); err == nil {
			t.Errorf("%s: read", name)
		}
	}
}

func TestComplaints(t *testing.T) {
	ex := exceptions(t, "# of a plain socket\nFRM-04 the socket hides it\n\nCRC-04\tthe identification\nFRM-13 fragments # kernel\nRDR-01 no case\n")
	run := &Run{}
	for _, r := range []*suite.Result{
		result(t, "FRM-04", suite.Fail, "x"), // an exception
		result(t, "CRC-04", suite.Pass, ""),  // passes all the same
		result(t, "FRM-13", suite.Skip, "x"), // did not show
		result(t, "PSN-01", suite.Fail, "x"), // a must
		result(t, "SND-09", suite.Fail, "x"), // a should
		result(t, "PSN-02", suite.Pass, ""),
	} {
		run.Add(NewCase(r, suite.Ladder, ex))
	}
	got := run.Complaints(ex, func(id string) bool { return id != "RDR-01" })
	want := []string{
		"PSN-01: a must failed",
		"CRC-04: is in the exceptions file, and passes",
		"RDR-01: is in the exceptions file, and has no case",
	}
	if !slices.Equal(got, want) {
		t.Errorf("complaints:\n got %q\nwant %q", got, want)
	}
	if n := run.Counts; n != (Counts{Cases: 6, Passed: 2, Failed: 2, Excepted: 1, Skipped: 1, MustFailed: 1}) {
		t.Errorf("counts: %+v", n)
	}
	if got := run.Complaints(nil, nil); !slices.Equal(got, want[:1]) {
		t.Errorf("without exceptions: %q", got)
	}
	if got := fakeRun("softroce", nil).Complaints(nil, nil); len(got) > 0 {
		t.Errorf("a good run: %q", got)
	}
}

func TestParseExceptionsRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"XYZ-01 why":               "line 1: \"XYZ-01\" is no statement",
		"\nFRM-04":                 "line 2: FRM-04 has no reason",
		"FRM-04 # why":             "has no reason",
		"FRM-04 a\nFRM-04 b":       "line 2: FRM-04 is there twice",
		strings.Repeat("x", 1<<17): "exceptions",
	} {
		_, err := ParseExceptions(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.30q: got %v, want %q", text, err, want)
		}
	}
}

func TestTree(t *testing.T) {
	ex := exceptions(t, "PSN-03 the socket hides it")
	run := &Run{Target: Target{Name: "a target"}, MS: 1234}
	var b bytes.Buffer
	tree := NewTree(&b, false)
	tree.Head(run)
	failed := result(t, "PSN-01", suite.Fail, "expected a NAK\x1b[2J, got nothing for 30 ms")
	passed := result(t, "PSN-02", suite.Pass, "")
	passed.Notes = []string{"the second answer"}
	other := result(t, "UC-01", suite.Fail, "the agent is gone")
	other.Frames = nil
	for _, r := range []*suite.Result{failed, passed, result(t, "PSN-03", suite.Fail, "x"), result(t, "PSN-04", suite.Skip, "no UC"), other} {
		c := NewCase(r, suite.Ladder, ex)
		run.Add(c)
		tree.Case(c)
	}
	tree.Summary(run, run.Complaints(ex, func(string) bool { return true }))
	got := b.String()
	at := 0
	for _, want := range []string{
		"Conformance of a target\n",
		"\nRC responder: PSN handling\n",
		"  ✗ PSN-01 must   Packet PSN = ePSN+1 (gap of 1) → ",
		"      expected  a NAK.[2J\n",
		"      got       nothing for 30 ms\n",
		"      clause    C9-7x\n",
		"---> ", "READ Request", "<--- ",
		"  ✓ PSN-02 must   ", "      note      the second answer\n",
		"  ! PSN-03 ", "      exception the socket hides it\n",
		"  - PSN-04 ", " (no UC)\n",
		"\nUC\n  ✗ UC-01 ", "      failed    the agent is gone\n", "packets   none\n",
		"\n5 cases: 1 passed, 2 failed, 1 excepted, 1 skipped in 1.23s\n",
		"  must    5 cases: 1 passed", "  should  0 cases: ",
		"failed: PSN-01 UC-01\n", "PSN-01: a must failed\n",
	} {
		n := strings.Index(got[at:], want)
		if n < 0 {
			t.Fatalf("no %q after byte %d of:\n%s", want, at, got)
		}
		at += n
	}
	if strings.Contains(got, "\x1b") {
		t.Error("an escape sequence without colour")
	}
	b.Reset()
	NewTree(&b, true).Case(run.Cases[0])
	if !strings.Contains(b.String(), "\x1b[31m✗\x1b[0m PSN-01") {
		t.Errorf("no red cross: %q", b.String())
	}
}

type full struct{ left int }

func (f *full) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, errors.New("full")
	}
	return len(p), nil
}

func TestWriteErrors(t *testing.T) {
	run := fakeRun("other", nil)
	tree := NewTree(&full{100}, false)
	tree.Case(run.Cases[0])
	tree.Case(run.Cases[1])
	for name, err := range map[string]error{
		"tree":  tree.Err(),
		"JSON":  run.WriteJSON(&full{100}),
		"JUnit": run.WriteJUnit(&full{100}),
		"page":  WritePage(&full{100}, []*Run{run}),
		"empty": WritePage(io.Discard, nil),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestJUnit(t *testing.T) {
	run := fakeRun("other", exceptions(t, "PSN-03 x"))
	ladder := run.Cases[0].Ladder
	run.Cases[0] = NewCase(result(t, "FRM-01", suite.Fail, "expected \x01<b>, got \"nothing\""), suite.Ladder, nil)
	var b bytes.Buffer
	if err := run.WriteJUnit(&b); err != nil {
		t.Fatal(err)
	}
	var got junitSuites
	if err := xml.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	var failures, skipped int
	for _, c := range run.Cases {
		switch {
		case c.Result == "fail" && c.Exception == "":
			failures++
		case c.Result != "pass":
			skipped++
		}
	}
	if got.Tests != 309 || got.Failures != failures || got.Skipped != skipped || len(got.Suites) != 18 || got.Time != "4.322" {
		t.Errorf("got %d tests, %d failures, %d skipped in %d suites, %s s; want 309, %d, %d in 18, 4.322 s",
			got.Tests, got.Failures, got.Skipped, len(got.Suites), got.Time, failures, skipped)
	}
	first := got.Suites[0].Cases[0]
	if first.Class != "conformance.FRM" || !strings.HasPrefix(first.Name, "FRM-01 Send any valid") || first.Failure == nil {
		t.Fatalf("first case: %+v", first)
	}
	if f := first.Failure; f.Type != "must" || f.Message != "expected \ufffd<b>, got \"nothing\"" || ladder == "" || !strings.Contains(f.Text, "READ Request") {
		t.Errorf("first failure: %+v", f)
	}
}

// A recorder passes each result on to where it belongs.
func TestRecorder(t *testing.T) {
	var tree bytes.Buffer
	var sections []string
	rec := &Recorder{
		Run: &Run{}, Tree: NewTree(&tree, false), Pcap: t.TempDir(), Exceptions: exceptions(t, "PSN-02 x"),
		Section: func(name string, n Counts) { sections = append(sections, name+": "+n.String()) },
	}
	quiet := result(t, "PSN-04", suite.Skip, "y")
	quiet.Frames = nil
	first := result(t, "PSN-01", suite.Pass, "")
	for _, r := range []*suite.Result{first, result(t, "PSN-02", suite.Fail, "y"), quiet, result(t, "UC-01", suite.Fail, "y")} {
		rec.Take(r)
	}
	if err := rec.End(); err != nil {
		t.Fatal(err)
	}
	want := []string{"RC responder: PSN handling: 3 cases: 1 passed, 0 failed, 1 excepted, 1 skipped", "UC: 1 case: 0 passed, 1 failed, 0 skipped"}
	if !slices.Equal(sections, want) {
		t.Errorf("sections:\n got %q\nwant %q", sections, want)
	}
	if rec.Run.Counts.Cases != 4 || strings.Count(tree.String(), "PSN-0") != 3 {
		t.Errorf("counts %+v, tree:\n%s", rec.Run.Counts, tree.String())
	}
	files, err := filepath.Glob(filepath.Join(rec.Pcap, "*"))
	if err != nil || len(files) != 3 {
		t.Fatalf("files: %q, %v", files, err)
	}
	in, err := os.Open(files[0])
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	ng, err := pcapgo.NewNgReader(in, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range first.Frames {
		data, _, err := ng.ReadPacketData()
		if err != nil || !bytes.Equal(data, f.IP) {
			t.Errorf("packet %d: %v: % x", i, err, data)
		}
	}
	rec.Pcap = filepath.Join(rec.Pcap, "nowhere")
	rec.Take(first)
	if rec.End() == nil {
		t.Error("packets are kept in a directory that is not there")
	}
}

func TestLadderIsCut(t *testing.T) {
	r := result(t, "PSN-01", suite.Pass, "")
	for range 100 {
		r.Frames = append(r.Frames, fakeFrames(1)...)
	}
	lines := strings.Split(NewCase(r, suite.Ladder, nil).Ladder, "\n")
	if len(lines) != maxLadder+1 || !strings.Contains(lines[maxLadder/2], "... 244 lines are left out") {
		t.Errorf("%d lines, in the middle %q", len(lines), lines[maxLadder/2])
	}
}

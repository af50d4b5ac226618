package main

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// read feeds events to a new report and gives back what it printed and its line of counts.
func read(t *testing.T, events ...string) (printed, counts string) {
	t.Helper()
	var out strings.Builder
	r := newReport(&out)
	if err := r.read(strings.NewReader(strings.Join(events, "\n"))); err != nil {
		t.Fatal(err)
	}
	counts = r.finish("test")
	return out.String(), counts
}

const pass = `{"Action":"pass","Package":"p"}`

func TestReportCounts(t *testing.T) {
	for _, c := range []struct {
		name   string
		events []string
		counts string
		prints []string
	}{
		{
			"one passes",
			[]string{`{"Action":"run","Package":"p","Test":"TestA"}`, `{"Action":"pass","Package":"p","Test":"TestA"}`, pass},
			"test: 1 passed, 0 failed, 0 skipped",
			[]string{"ok   p"},
		},
		{
			"subtests count, their parent does not",
			[]string{
				`{"Action":"run","Package":"p","Test":"TestA"}`, `{"Action":"run","Package":"p","Test":"TestA/x"}`,
				`{"Action":"run","Package":"p","Test":"TestA/y"}`, `{"Action":"pass","Package":"p","Test":"TestA/x"}`,
				`{"Action":"pass","Package":"p","Test":"TestA/y"}`, `{"Action":"pass","Package":"p","Test":"TestA"}`, pass,
			},
			"test: 2 passed, 0 failed, 0 skipped",
			nil,
		},
		{
			"a failed subtest is one failure, not three",
			[]string{
				`{"Action":"run","Package":"p","Test":"TestA"}`, `{"Action":"run","Package":"p","Test":"TestA/x"}`,
				`{"Action":"output","Package":"p","Test":"TestA/x","Output":"    a_test.go:1: got 1, want 2\n"}`,
				`{"Action":"fail","Package":"p","Test":"TestA/x"}`, `{"Action":"fail","Package":"p","Test":"TestA"}`,
				`{"Action":"fail","Package":"p"}`,
			},
			"test: 0 passed, 1 failed, 0 skipped",
			[]string{"got 1, want 2", "--- FAIL: p TestA/x", "FAIL p"},
		},
		{
			"a package that does not build",
			[]string{
				`{"ImportPath":"p [p.test]","Action":"build-output","Output":"a.go:1:1: undefined: x\n"}`,
				`{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}`,
				`{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}`,
			},
			"test: 0 passed, 1 failed, 0 skipped",
			[]string{"undefined: x"},
		},
		{
			"a package that dies after its tests",
			[]string{
				`{"Action":"run","Package":"p","Test":"TestA"}`, `{"Action":"pass","Package":"p","Test":"TestA"}`,
				`{"Action":"output","Package":"p","Output":"exit status 3\n"}`, `{"Action":"fail","Package":"p"}`,
			},
			"test: 1 passed, 1 failed, 0 skipped",
			[]string{"exit status 3"},
		},
		{
			"a skip says why",
			[]string{
				`{"Action":"run","Package":"p","Test":"TestA"}`,
				`{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: needs root: network namespaces\n"}`,
				`{"Action":"output","Package":"p","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}`,
				`{"Action":"skip","Package":"p","Test":"TestA"}`, pass,
			},
			"test: 0 passed, 0 failed, 1 skipped",
			[]string{"skipped 1: needs root: network namespaces", "p TestA"},
		},
		{
			"skips that differ in a path are one reason",
			[]string{
				`{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: needs root: open /run/netns/a-1: denied\n"}`,
				`{"Action":"skip","Package":"p","Test":"TestA"}`,
				`{"Action":"output","Package":"p","Test":"TestB","Output":"    a_test.go:9: needs root: open /run/netns/a-2: denied\n"}`,
				`{"Action":"skip","Package":"p","Test":"TestB"}`, pass,
			},
			"test: 0 passed, 0 failed, 2 skipped",
			[]string{"skipped 2: needs root: open …: denied"},
		},
		{
			"what is no event passes through",
			[]string{"go: downloading something"},
			"test: 0 passed, 0 failed, 0 skipped",
			[]string{"go: downloading something"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			printed, counts := read(t, c.events...)
			if counts != c.counts {
				t.Errorf("counts\n got: %s\nwant: %s", counts, c.counts)
			}
			for _, want := range c.prints {
				if !strings.Contains(printed, want) {
					t.Errorf("does not print %q:\n%s", want, printed)
				}
			}
		})
	}
}

func TestReportNamesAtMostFiveSkips(t *testing.T) {
	var events []string
	for _, n := range []string{"A", "B", "C", "D", "E", "F", "G"} {
		events = append(events, `{"Action":"skip","Package":"p","Test":"Test`+n+`"}`)
	}
	printed, _ := read(t, events...)
	if !strings.Contains(printed, "skipped 7: (no reason given)") || !strings.Contains(printed, "and 2 more") {
		t.Errorf("got\n%s", printed)
	}
}

func TestStatus(t *testing.T) {
	died := exec.Command("go", "no-such-command").Run() // exit status 2
	broken := errors.New("broken pipe")
	for _, c := range []struct {
		name          string
		failed        int
		read, wait    error
		want          int
		wantComplaint bool
	}{
		{"all well", 0, nil, nil, 0, false},
		{"go test failed", 1, nil, died, 2, false},
		{"go test hides a failure", 1, nil, nil, 1, true},
		{"its output broke off", 0, broken, nil, 1, true},
		{"it could not be waited for", 0, nil, broken, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := status(&report{failed: c.failed}, c.read, c.wait)
			if got != c.want || (err != nil) != c.wantComplaint {
				t.Errorf("got %d, %v; want %d, complaint %v", got, err, c.want, c.wantComplaint)
			}
		})
	}
}

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// event is one line of `go test -json` (see `go doc test2json` and `go help buildjson`).
type event struct {
	Action      string
	Package     string
	ImportPath  string // of a build event
	Test        string
	Elapsed     float64 // seconds
	Output      string
	FailedBuild string
}

// testKey names a test; Test is empty for the package itself.
type testKey struct{ Package, Test string }

// report gathers a test run.
type report struct {
	out     io.Writer
	output  map[testKey][]string // of what has not ended yet
	build   map[string][]string  // compiler output by import path
	parents map[testKey]bool     // tests that have subtests
	blamed  map[testKey]bool     // tests and packages below which something failed
	reasons map[string][]string  // skip reason to the tests it skipped

	passed, failed, skipped int
}

func newReport(out io.Writer) *report {
	return &report{
		out: out, output: map[testKey][]string{}, build: map[string][]string{},
		parents: map[testKey]bool{}, blamed: map[testKey]bool{}, reasons: map[string][]string{},
	}
}

// read takes events until the stream ends. A line that is no event is passed on as it is.
func (r *report) read(in io.Reader) error {
	br := bufio.NewReader(in)
	for {
		line, err := br.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil || e.Action == "" {
				fmt.Fprintf(r.out, "%s", line)
			} else {
				r.take(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) take(e event) {
	k := testKey{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		r.build[e.ImportPath] = append(r.build[e.ImportPath], e.Output)
	case "run":
		if p, ok := parent(k); ok {
			r.parents[p] = true
		}
	case "output":
		r.output[k] = append(r.output[k], e.Output)
	case "pass", "fail", "skip":
		r.end(k, e)
		delete(r.output, k)
	}
}

// end counts a test's or a package's result.
func (r *report) end(k testKey, e event) {
	if k.Test == "" {
		r.endPackage(k, e)
		return
	}
	switch {
	case e.Action == "fail":
		r.fail(k, "--- FAIL: "+k.Package+" "+k.Test)
	case r.parents[k]: // its subtests were counted
	case e.Action == "skip":
		r.skipped++
		why := pathInReason.ReplaceAllString(reason(r.output[k]), "…")
		r.reasons[why] = append(r.reasons[why], strings.TrimPrefix(k.Package+" ", modulePrefix)+k.Test)
	default:
		r.passed++
	}
}

func (r *report) endPackage(k testKey, e event) {
	switch e.Action {
	case "fail":
		if e.FailedBuild != "" {
			r.output[k] = append(r.build[e.FailedBuild], r.output[k]...)
		}
		r.fail(k, fmt.Sprintf("FAIL %s (%.1f s)", k.Package, e.Elapsed))
	case "skip":
		fmt.Fprintf(r.out, "--   %s: no test\n", k.Package)
	default:
		fmt.Fprintf(r.out, "ok   %s (%.1f s)\n", k.Package, e.Elapsed)
	}
}

// fail prints a failure with its output, counts it unless something below it was blamed already, and blames
// everything above it.
func (r *report) fail(k testKey, title string) {
	fmt.Fprintln(r.out, title)
	for _, line := range r.output[k] {
		if t := strings.TrimSpace(line); strings.HasPrefix(t, "=== ") || strings.HasPrefix(t, "--- ") {
			continue
		}
		fmt.Fprint(r.out, "     ", line)
	}
	if !r.blamed[k] {
		r.failed++
	}
	for p, ok := parent(k); ok; p, ok = parent(p) {
		r.blamed[p] = true
	}
}

// finish prints what was skipped, by reason, and the line of counts, which it returns.
func (r *report) finish(name string) string {
	for _, why := range slices.Sorted(maps.Keys(r.reasons)) {
		tests := r.reasons[why]
		fmt.Fprintf(r.out, "skipped %d: %s\n", len(tests), why)
		for _, t := range tests[:min(len(tests), 5)] {
			fmt.Fprintln(r.out, "     ", t)
		}
		if more := len(tests) - 5; more > 0 {
			fmt.Fprintf(r.out, "      and %d more\n", more)
		}
	}
	line := fmt.Sprintf("%s: %d passed, %d failed, %d skipped", name, r.passed, r.failed, r.skipped)
	fmt.Fprintln(r.out, line)
	return line
}

// pathInReason is what makes two skips for one reason differ; the test's own output has it.
var pathInReason = regexp.MustCompile(`/[^\s:]+`)

// modulePrefix is left out of the names of skipped tests.
const modulePrefix = "github.com/softroce/softroce/"

// parent is the test above a subtest, or the package above a test.
func parent(k testKey) (testKey, bool) {
	if k.Test == "" {
		return testKey{}, false
	}
	i := strings.LastIndexByte(k.Test, '/')
	return testKey{k.Package, k.Test[:max(i, 0)]}, true
}

// reason is what a skipped test said: the last line of its output that is not the framework's, without the
// file and line before it.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		t := strings.TrimSpace(line)
		if t == "" || strings.HasPrefix(t, "=== ") || strings.HasPrefix(t, "--- ") {
			continue
		}
		if _, text, ok := strings.Cut(t, ".go:"); ok {
			if _, after, ok := strings.Cut(text, ": "); ok {
				return after
			}
		}
		return t
	}
	return "(no reason given)"
}

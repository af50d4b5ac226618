// Command fuzzsmoke finds every fuzz target of the packages it is given and runs each for a while, one after
// the other.
//
//	fuzzsmoke [-time 5s] packages
//
// It exits 1 when one fails, and prints how many ran.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	per := flag.String("time", "5s", "how long each target runs, as for go test -fuzztime")
	flag.Parse()
	patterns := flag.Args()
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	targets, err := find(patterns)
	if err != nil {
		fmt.Fprintln(os.Stderr, "fuzzsmoke:", err)
		os.Exit(1)
	}
	failed := 0
	for _, t := range targets {
		if !t.run(*per, os.Stdout) {
			failed++
		}
	}
	fmt.Printf("fuzz: %d targets ran for %s each, %d failed\n", len(targets), *per, failed)
	if failed > 0 {
		os.Exit(1)
	}
}

// target is one fuzz function.
type target struct{ Package, Name string }

// run fuzzes the target, says how it went and prints its output when it failed. A
// run that only met its deadline is made again, aloud.
func (t target) run(per string, out io.Writer) bool {
	begin := time.Now()
	text, err := t.fuzz(per)
	for try := 1; err != nil && onlyLate(text) && try < 3; try++ {
		fmt.Fprintf(out, "again %s %s: go test took the end of its time for a failure\n", t.Package, t.Name)
		text, err = t.fuzz(per)
	}
	verdict := "ok  "
	if err != nil {
		verdict = "FAIL"
	}
	fmt.Fprintf(out, "%s %s %s (%.1f s)\n", verdict, t.Package, t.Name, time.Since(begin).Seconds())
	if err != nil {
		_, _ = out.Write(text)
	}
	return err == nil
}

func (t target) fuzz(per string) (text []byte, err error) {
	return exec.Command("go", "test", "-run", "^$", "-fuzz", "^"+t.Name+"$", "-fuzztime", per, "-fuzzminimizetime", "10x", t.Package).CombinedOutput()
}

// onlyLate says whether a failure is none of the target's: go test reports
// "context deadline exceeded", and no input, when a worker is still busy at the
// end of the time, which happens on a loaded machine (golang/go issue 75804).
func onlyLate(text []byte) bool {
	return bytes.Contains(text, []byte("\n    context deadline exceeded\n")) && !bytes.Contains(text, []byte("Failing input"))
}

// find lists the fuzz targets of the packages that the patterns name, in go list's order.
func find(patterns []string) ([]target, error) {
	cmd := exec.Command("go", append([]string{"list", "-json=Dir,ImportPath,TestGoFiles,XTestGoFiles"}, patterns...)...)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var targets []target
	for dec := json.NewDecoder(bytes.NewReader(text)); ; {
		var p struct {
			Dir, ImportPath           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return targets, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			names, err := fuzzFuncs(filepath.Join(p.Dir, file))
			if err != nil {
				return nil, err
			}
			for _, name := range names {
				targets = append(targets, target{p.ImportPath, name})
			}
		}
	}
}

// fuzzFuncs names the fuzz functions of one test file.
func fuzzFuncs(path string) ([]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Fuzz") && f.Type.Params.NumFields() == 1 {
			names = append(names, f.Name.Name)
		}
	}
	return names, nil
}

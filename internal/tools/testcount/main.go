// Command testcount runs `go test -json` with the arguments after --, prints what a reader needs (one line a
// package, the output of what failed, every skipped test with its reason) and ends on a line that counts.
//
//	testcount [-name WORD] [-counts FILE] [-goarch ARCH] -- go-test-arguments
//
// Its exit status is 0 when go test's is. Tests are counted at the leaves: a test with subtests counts only when
// it failed by itself. A package that does not build, or dies outside a test, counts as one failure.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
)

func main() {
	name := flag.String("name", "test", "word before the line of counts")
	counts := flag.String("counts", "", "append the line of counts to this file")
	goarch := flag.String("goarch", "", "build the tests for this architecture, without cgo (go test's -exec runs them)")
	flag.Parse()
	env := os.Environ()
	if *goarch != "" {
		env = append(env, "GOARCH="+*goarch, "CGO_ENABLED=0")
	}
	code, err := run(*name, *counts, env, flag.Args(), os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testcount:", err)
	}
	os.Exit(code)
}

// run starts go test and reports on it; the result is the exit status.
func run(name, counts string, env, args []string, out io.Writer) (int, error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Env = env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	r := newReport(out)
	readErr := r.read(pipe)
	waitErr := cmd.Wait()
	_, _ = out.Write(stderr.Bytes()) // go test's own complaints: bad flags, packages that do not load
	line := r.finish(name)
	if counts != "" {
		if err := appendLine(counts, line); err != nil {
			return 1, err
		}
	}
	return status(r, readErr, waitErr)
}

// status turns go test's end into an exit status; a failure that go test does not admit is one all the same.
func status(r *report, readErr, waitErr error) (int, error) {
	if readErr != nil {
		return 1, fmt.Errorf("read go test's output: %w", readErr)
	}
	var exit *exec.ExitError
	switch {
	case errors.As(waitErr, &exit):
		return max(exit.ExitCode(), 1), nil
	case waitErr != nil:
		return 1, waitErr
	case r.failed > 0:
		return 1, errors.New("tests failed although go test ended with 0")
	}
	return 0, nil
}

func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, line)
	return errors.Join(err, f.Close())
}

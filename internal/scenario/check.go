package scenario

import (
	"fmt"
	"strings"
)

// An Error is where a scenario and what happened part. Want and Got are lines,
// "(nothing)" where there is none.
type Error struct {
	File      string
	Line      int    // of the expectation, from 1
	Command   string // that led to it
	At        int    // the command's line
	Want, Got string
	All       string // the scenario with the outputs that were found
}

// Error names the place, the command, and both lines.
func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d: after %q (line %d)\n\texpected %s\n\tgot      %s", e.File, e.Line, e.Command, e.At, e.Want, e.Got)
}

// A SyntaxError is a line that is no command.
type SyntaxError struct {
	File string
	Line int
	Text string
	Err  error
}

// Error names the place, the line and what is wrong with it.
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s:%d: %q: %v", e.File, e.Line, e.Text, e.Err)
}

// Unwrap is what is wrong with the line.
func (e *SyntaxError) Unwrap() error { return e.Err }

// Check runs a scenario and compares. Errors: [*Error], [*SyntaxError].
func Check(file, text string) error {
	got, err := Run(file, text)
	if err != nil {
		return err
	}
	return compare(file, text, got)
}

// compare finds the first line in which two versions of a scenario differ.
func compare(file, want, got string) error {
	if want == got {
		return nil
	}
	w, g := lines(want), lines(got)
	e := &Error{File: file, Command: "(the file's begin)", All: got}
	for i := range max(len(w), len(g)) {
		e.Want, e.Got = "(nothing)", "(nothing)"
		if i < len(w) && isOutput(w[i]) {
			e.Want = strings.TrimSpace(w[i])
		}
		if i < len(g) && isOutput(g[i]) {
			e.Got = strings.TrimSpace(g[i])
		}
		if i >= len(w) || i >= len(g) || w[i] != g[i] {
			e.Line = i + 1
			return e
		}
		if !isOutput(w[i]) && isCommand(w[i]) {
			e.Command, e.At = w[i], i+1
		}
	}
	e.Line, e.Want, e.Got = len(w), "one line end at the file's end", "another"
	return e
}

func lines(text string) []string { return strings.Split(strings.TrimRight(text, "\n"), "\n") }

// isOutput says whether a line tells what happened: it is indented.
func isOutput(line string) bool {
	return strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t")
}

// isCommand says whether a line that is no output is a command.
func isCommand(line string) bool { return line != "" && line[0] != '#' }

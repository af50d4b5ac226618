package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// progress is one line on a terminal that says what goes on; on anything else
// it is silent.
type progress struct {
	w     io.Writer
	shown int
}

func newProgress(w io.Writer) *progress {
	f, ok := w.(*os.File)
	if !ok || !isTerminal(f) {
		return &progress{}
	}
	return &progress{w: f}
}

// isTerminal says whether a person reads f.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// show replaces the line.
func (p *progress) show(text string) {
	if p.w == nil {
		return
	}
	fmt.Fprintf(p.w, "\r%s%s", text, strings.Repeat(" ", max(p.shown-len(text), 0)))
	p.shown = len(text)
}

// clear removes the line.
func (p *progress) clear() {
	if p.w != nil && p.shown > 0 {
		fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", p.shown))
		p.shown = 0
	}
}

package inspect

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

// Our own tuning of the live view.
const (
	// TopEvery is how long after a look the next one comes, TopLeast the shortest.
	TopEvery = time.Second
	TopLeast = 100 * time.Millisecond
	topMost  = time.Minute
)

// Sequences of a terminal (ECMA-48, and xterm's second screen).
const (
	screenOpen  = "\x1b[?1049h\x1b[?25l"
	screenClose = "\x1b[?25h\x1b[?1049l"
	screenHome  = "\x1b[H"
	lineEnd     = "\x1b[K\r\n"
	screenEnd   = "\x1b[J"
	inverse     = "\x1b[7m"
	bold        = "\x1b[1m"
	plainText   = "\x1b[m"
)

// Terminal is what a live view is shown on.
type Terminal struct {
	W       io.Writer
	Size    func() (columns, lines int)
	Keys    <-chan byte     // what is typed; nil: nothing
	Resized <-chan struct{} // the size changed; nil: it never does
}

// Run shows the view until it is quit or ctx ends, which is no error, and gives
// the terminal's first screen back, whatever happens.
func (t *Top) Run(ctx context.Context, src Source, term Terminal) (err error) {
	if t.Every == 0 {
		t.Every = TopEvery
	}
	if _, err := io.WriteString(term.W, screenOpen); err != nil {
		return err
	}
	defer func() {
		if _, e := io.WriteString(term.W, screenClose); err == nil {
			err = e
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			if err := t.Look(src, time.Now()); err != nil {
				return err
			}
			timer.Reset(t.Every)
		case key, ok := <-term.Keys:
			if !ok {
				term.Keys = nil
				continue
			}
			every := t.Every
			if t.Key(key) {
				return nil
			}
			if t.Every != every {
				timer.Reset(t.Every)
			}
		case <-term.Resized:
		}
		if _, err := io.WriteString(term.W, t.screen(term.Size())); err != nil {
			return err
		}
	}
}

// Key does what a key stands for, and says whether it is to quit.
func (t *Top) Key(key byte) (quit bool) {
	switch key {
	case 'q', 'Q', 3: // 3: ctrl-C where it is no signal
		return true
	case '+':
		t.Every = min(2*t.Every, topMost)
	case '-':
		t.Every = max(t.Every/2, TopLeast)
	case 'i':
		t.Busy, t.skip = !t.Busy, 0
	case 'j':
		t.skip++
	case 'k':
		t.skip = max(t.skip-1, 0)
	}
	for _, s := range TopSorts {
		if s.Key == key {
			t.Sort, t.skip = s.Name, 0
			t.arrange()
		}
	}
	return false
}

// screen draws over all of a terminal of that size. What does not fit is cut.
func (t *Top) screen(columns, lines int) string {
	if columns <= 0 {
		columns = 80
	}
	lines = max(lines, 6)
	rows := t.shown()
	room := lines - 4 // two of the header, the titles, the keys
	t.skip = max(0, min(t.skip, len(rows)-room))
	more := len(rows) - t.skip - room
	rows = rows[t.skip:min(len(rows), t.skip+room)]
	var b strings.Builder
	b.WriteString(screenHome)
	put := func(style, line string, pad bool) {
		line = cut(line, columns)
		if pad {
			line += strings.Repeat(" ", max(0, columns-len([]rune(line))))
		}
		if style != "" {
			line = style + line + plainText
		}
		b.WriteString(line + lineEnd)
	}
	for _, l := range t.header(columns) {
		put("", l, false)
	}
	for i, l := range t.table(rows, columns).Lines() {
		switch {
		case i == 0:
			put(inverse, l, true)
		case rows[i-1].r.Faults > 0 || rows[i-1].r.State == "ERR" || rows[i-1].r.State == "SQE":
			put(bold, l, false)
		default:
			put("", l, false)
		}
	}
	hidden := ""
	if more > 0 {
		hidden = fmt.Sprintf("... %d more  ", more)
	}
	b.WriteString(screenEnd)
	if below := room - len(rows); below > 0 {
		b.WriteString(strings.Repeat("\r\n", below))
	}
	b.WriteString(cut(keysLine(hidden, columns), columns))
	return b.String()
}

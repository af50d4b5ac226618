package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// Output says how views are shown.
type Output struct {
	W    io.Writer
	JSON bool
	// Every is how long after a view the next one comes; 0: there is one.
	Every time.Duration
	// Size gives the terminal's size in columns and lines, for a view that
	// replaces the one before; nil: no terminal, each view follows the one before,
	// every line with the time in front.
	Size func() (columns, lines int)
}

// Show shows what look sees, once or, with Every, until ctx ends, which is no
// error then.
func (o Output) Show(ctx context.Context, src Source, look Look) error {
	if o.Every == 0 {
		v, err := look(src, time.Now())
		if err != nil {
			return err
		}
		if o.JSON {
			return json.NewEncoder(o.W).Encode(v)
		}
		return writeLines(o.W, "", v.Lines())
	}
	t := time.NewTicker(o.Every)
	defer t.Stop()
	s := series{Output: o}
	for {
		now := time.Now()
		v, err := look(src, now)
		if err != nil {
			return err
		}
		if err := s.next(v, now); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// series is views that come one after another.
type series struct {
	Output
	headed bool
	drawn  int // lines of the view on the terminal
}

func (s *series) next(v View, now time.Time) error {
	switch {
	case s.JSON:
		j, err := json.Marshal(v)
		if err == nil {
			_, err = fmt.Fprintf(s.W, "{\"time\":%q,%q:%s}\n", now.Format(time.RFC3339Nano), v.Key(), j)
		}
		return err
	case s.Size != nil:
		return s.draw(v.Lines())
	}
	return s.follow(v, now)
}

// timeFormat is as wide at any time.
const timeFormat = "15:04:05.000"

// follow writes a view below the one before, with the header once.
func (s *series) follow(v View, now time.Time) error {
	lines := v.Lines()
	stamp := now.Format(timeFormat) + "  "
	if !v.Headless() {
		head := lines[0]
		lines = lines[1:]
		if !s.headed {
			s.headed = true
			if err := writeLines(s.W, fmt.Sprintf("%-*s", len(stamp), "TIME"), []string{head}); err != nil {
				return err
			}
		}
	}
	return writeLines(s.W, stamp, lines)
}

// draw replaces the view on the terminal: up to its first line, and everything
// from there on anew. What does not fit is cut, since a terminal that scrolls
// or wraps would keep it.
func (s *series) draw(lines []string) error {
	columns, height := s.Size()
	if room := max(height-1, 2); len(lines) > room {
		more := len(lines) - room + 1
		lines = append(lines[:room-1:room-1], fmt.Sprintf("... %d more lines", more))
	}
	var b strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.drawn)
	}
	b.WriteString("\r\x1b[J")
	for _, l := range lines {
		b.WriteString(cut(l, columns))
		b.WriteByte('\n')
	}
	s.drawn = len(lines)
	_, err := io.WriteString(s.W, b.String())
	return err
}

// cut shortens a line to a number of characters; 0: as it is.
func cut(s string, n int) string {
	if n <= 0 || utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n])
}

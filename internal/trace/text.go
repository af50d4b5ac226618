package trace

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/softroce/softroce/pkg/bth"
)

// TextOptions say how a trace is written as text.
type TextOptions struct {
	Width  int  // columns; 0: 100
	Colour bool // for a terminal
	All    bool // every packet in the ladder, not only the first ones and those of events
}

// Our own choice of what a ladder shows unless it shows all.
const (
	ladderFirst  = 24  // packets at the beginning
	ladderAround = 2   // packets before and behind one that matters
	ladderMost   = 300 // packets
	textConns    = 20  // connections
)

// Text writes a summary of each connection and its ladder.
func (t *Trace) Text(w io.Writer, o TextOptions) error {
	if o.Width <= 0 {
		o.Width = 100
	}
	o.Width = max(o.Width, 40)
	x := &texter{t: t, o: o, w: bufio.NewWriter(w)}
	x.head()
	for n, c := range t.Conns {
		if n == textConns {
			x.line("", fmt.Sprintf("%s more: choose with --qp or --peer, or look at --html.", plural(len(t.Conns)-n, "connection", "connections")))
			break
		}
		x.conn(c)
	}
	return x.w.Flush()
}

// texter writes the text.
type texter struct {
	t *Trace
	o TextOptions
	w *bufio.Writer
}

// Colours of a terminal.
const (
	red    = "31"
	yellow = "33"
	green  = "32"
	dim    = "2"
	bold   = "1"
)

func (x *texter) paint(colour, s string) string {
	if !x.o.Colour || colour == "" || s == "" {
		return s
	}
	return "\x1b[" + colour + "m" + s + "\x1b[0m"
}

func (x *texter) line(colour, s string) { fmt.Fprintln(x.w, x.paint(colour, s)) }

// para writes a paragraph: its lines begin under one another behind the mark.
func (x *texter) para(mark, colour, s string) {
	room := x.o.Width - utf8.RuneCountInString(mark)
	lead := mark
	for _, l := range wrap(s, room) {
		fmt.Fprintf(x.w, "%s%s\n", x.paint(colour, lead), l)
		lead = strings.Repeat(" ", utf8.RuneCountInString(mark))
	}
}

// wrap cuts s between words into lines of at most n runes, where it can.
func wrap(s string, n int) (lines []string) {
	line, used := "", 0
	for _, word := range strings.Fields(s) {
		k := utf8.RuneCountInString(word)
		if used > 0 && used+1+k > n {
			lines = append(lines, line)
			line, used = "", 0
		}
		if used > 0 {
			line += " "
			used++
		}
		line += word
		used += k
	}
	return append(lines, line)
}

func (x *texter) head() {
	t := x.t
	s := fmt.Sprintf("%s of %s in %s", plural(len(t.Packets), "packet", "packets"), plural(len(t.Conns), "connection", "connections"), short(t.Length))
	if !t.Start.IsZero() {
		s += ", from " + t.Start.UTC().Format("2006-01-02 15:04:05.000000 MST")
	}
	x.line(bold, s)
	for _, warning := range t.Warnings {
		x.para("! ", yellow, warning)
	}
}

func (x *texter) conn(c *Conn) {
	x.line("", "")
	x.para("", "", x.paint(bold, fmt.Sprintf("%v  A = %v  B = %v", c.Service, c.Ends[0], c.Ends[1])))
	s := fmt.Sprintf("%s in %s", plural(len(c.packets), "packet", "packets"), short(c.Last-c.First))
	if c.MTU > 0 {
		s += fmt.Sprintf(", path MTU %d", c.MTU)
	}
	x.line("", s)
	for k := range c.Dirs {
		if d := &c.Dirs[k]; d.Sent > 0 {
			x.para([]string{"  A asks: ", "  B asks: "}[k], "", d.summary())
		}
	}
	for _, f := range c.Findings() {
		x.para([]string{"  ok  ", "  !   ", "  !!! "}[f.Weight], []string{green, yellow, red}[f.Weight], f.Text)
	}
	x.ladder(c)
}

// summary is a direction in a line.
func (d *Dir) summary() string {
	s := []string{
		plural(d.Messages, "message", "messages") + ", " + plural(d.Sent, "packet", "packets") + ", " + bytesText(d.Bytes),
	}
	for _, n := range []struct {
		n         int
		one, more string
	}{
		{d.Resent, "sent again", "sent again"},
		{d.Lost, "lost", "lost"},
		{d.Missing, "not in the capture", "not in the capture"},
		{d.SeqNAKs, "sequence NAK", "sequence NAKs"},
		{d.RNRs, "RNR NAK", "RNR NAKs"},
		{d.Timeouts, "timeout", "timeouts"},
		{d.ReAnswers, "answer given again", "answers given again"},
		{d.LostAns, "answer missing", "answers missing"},
		{d.Open, "not answered at the end", "not answered at the end"},
	} {
		if n.n > 0 {
			s = append(s, plural(n.n, n.one, n.more))
		}
	}
	if rtt, ok := d.RTT(); ok {
		s = append(s, fmt.Sprintf("round trip %s / %s / %s (least, middle, most)", short(d.RTTs[0]), short(rtt), short(d.RTTs[len(d.RTTs)-1])))
	}
	return strings.Join(s, "; ")
}

// matters are the flags of packets that a ladder always shows.
const matters = Resent | Lost | AfterGap | Late | RNR | SequenceNAK | FatalNAK | Dropped | Bad | AfterStall | Last

// shown says which of a connection's packets its ladder has.
func (x *texter) shown(c *Conn) []bool {
	show := make([]bool, len(c.packets))
	left := ladderMost
	mark := func(from, to int) {
		for n := max(0, from); n < min(to, len(show)) && left > 0; n++ {
			if !show[n] {
				show[n] = true
				left--
			}
		}
	}
	if x.o.All {
		left = len(show)
		mark(0, len(show))
		return show
	}
	mark(0, ladderFirst)
	for n, i := range c.packets {
		if x.t.Packets[i].Flags&matters != 0 {
			mark(n-ladderAround, n+ladderAround+1)
		}
	}
	return show
}

const timeWidth = 13

// ladder draws the packets between the two ends.
func (x *texter) ladder(c *Conn) {
	lane := min(max(x.o.Width-timeWidth-34, 30), 56, x.o.Width-timeWidth-3)
	x.line(dim, fmt.Sprintf("%*s  A%*s", timeWidth-2, "", lane, "B"))
	show := x.shown(c)
	hidden := 0
	for n, i := range c.packets {
		if !show[n] {
			hidden++
			continue
		}
		x.hidden(hidden)
		hidden = 0
		p := &x.t.Packets[i]
		if p.Flags&AfterStall != 0 && n > 0 {
			x.line(yellow, fmt.Sprintf("%*s  : %s nothing on the way", timeWidth-2, "", short(p.At-x.t.Packets[c.packets[n-1]].At)))
		}
		x.rung(p, c.First, lane)
	}
	x.hidden(hidden)
}

func (x *texter) hidden(n int) {
	if n > 0 {
		x.line(dim, fmt.Sprintf("%*s  : %s (--all shows them)", timeWidth-2, "", plural(n, "packet more", "packets more")))
	}
}

// rung draws one packet.
func (x *texter) rung(p *Packet, first time.Duration, lane int) {
	text := p.label()
	if n := lane - 6; utf8.RuneCountInString(text) > n {
		text = string([]rune(text)[:n])
	}
	fill := strings.Repeat("-", lane-5-utf8.RuneCountInString(text))
	head := ">"
	if p.Flags&(Lost|Dropped) != 0 {
		head = "x"
	}
	arrow := "|- " + text + " " + fill + head + "|"
	if p.Flags&FromB != 0 {
		if head == ">" {
			head = "<"
		}
		arrow = "|" + head + fill + " " + text + " -|"
	}
	lead := fmt.Sprintf("%*s  ", timeWidth-2, short(p.At-first))
	remark := p.remark()
	room := x.o.Width - timeWidth - lane - 3
	lines := []string{""}
	if remark != "" && room >= 18 {
		lines = wrap(remark, room)
	}
	for n, l := range lines {
		switch {
		case n == 0 && l == "":
			fmt.Fprintf(x.w, "%s%s\n", lead, x.paint(p.colour(), arrow))
		case n == 0:
			fmt.Fprintf(x.w, "%s%s  %s\n", lead, x.paint(p.colour(), arrow), l)
		default:
			fmt.Fprintf(x.w, "%*s  |%*s  %s\n", timeWidth-2, "", lane-1, "|", l)
		}
	}
	if remark != "" && room < 18 && p.Flags&matters != 0 {
		x.para(strings.Repeat(" ", timeWidth+2), "", remark)
	}
}

// label is a packet in a few words: operation, PSN, size.
func (p *Packet) label() string {
	name := strings.TrimPrefix(p.Info().Name, p.Info().Class.String()+" ")
	if p.HasAETH && p.Info().Op == bth.OpAck {
		name = strings.Split(p.Syndrome.String(), ",")[0]
	}
	s := name + " " + p.PSN.String()
	switch {
	case p.ReadLen > 0:
		s += fmt.Sprintf(" %d B", p.ReadLen)
	case p.Len > 0:
		s += fmt.Sprintf(" %d B", p.Len)
	}
	return s
}

// remark is what is to be said of a packet: always where it matters, else only
// what an adapter's comment has.
func (p *Packet) remark() string {
	var s []string
	if p.Flags&(matters|Duplicate) != 0 && p.What != "" {
		s = append(s, p.What)
	} else if p.Flags&AfterGap != 0 {
		s = append(s, "PSNs before it are missing")
	}
	if p.Bad != "" {
		s = append(s, p.Bad)
	}
	if v := p.Note.Verdict; v != "" && v != "accepted" && p.Flags&Dropped == 0 {
		s = append(s, v)
	}
	if p.Got != nil && p.Got.Verdict != "accepted" && p.Flags&Dropped == 0 {
		s = append(s, "there: "+p.Got.Verdict)
	}
	return strings.Join(s, "; ")
}

func (p *Packet) colour() string {
	switch {
	case p.Flags&(Lost|Dropped|FatalNAK|Bad|Last) != 0:
		return red
	case p.Flags&(Resent|RNR|SequenceNAK|AfterGap|Late|Duplicate) != 0:
		return yellow
	case p.Flags&Request == 0:
		return dim
	}
	return ""
}

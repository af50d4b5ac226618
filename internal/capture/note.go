package capture

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/softroce/softroce/pkg/bth"
)

// A Note is what an adapter knows of a packet beyond its bytes. It stands in the
// packet's comment, as words that ParseNote reads again.
type Note struct {
	Verdict string  // what became of a received packet; empty for one that was sent
	QPN     bth.QPN // of the adapter's own queue pair, when HasQP
	HasQP   bool
	WR      uint64 // the work request's WRID, when Op is not empty
	Op      string // its operation; RECV for a receive
	Resend  bool   // sent before
	Lost    uint64 // packets before this one that the reader was too slow for
}

// Words of a note.
const (
	noteResent  = "re-sent"
	noteLost    = "packets lost before this one (its reader was too slow)"
	noteDropped = "dropped: "
)

// DroppedBecause is the verdict on a packet that had no effect and no answer.
func DroppedBecause(why string) string { return noteDropped + why }

// Dropped says whether the packet had no effect and no answer, and why.
func (n *Note) Dropped() (why string, ok bool) { return strings.CutPrefix(n.Verdict, noteDropped) }

// Append appends the note to b.
func (n *Note) Append(b []byte) []byte {
	sep := func() {
		if len(b) > 0 {
			b = append(b, ", "...)
		}
	}
	b = append(b, n.Verdict...)
	if n.HasQP {
		sep()
		b = fmt.Appendf(b, "qp 0x%06x", uint32(n.QPN))
	}
	if n.Op != "" {
		sep()
		b = fmt.Appendf(b, "wr %d %s", n.WR, n.Op)
	}
	if n.Resend {
		sep()
		b = append(b, noteResent...)
	}
	if n.Lost > 0 {
		sep()
		b = fmt.Appendf(b, "%d %s", n.Lost, noteLost)
	}
	return b
}

// maxNote bounds what is read of a comment, in bytes: anybody's file may have one of
// 64 KiB on each packet. Ours are shorter.
const maxNote = 512

// ParseNote reads the comment of a packet, the part before what the writer did
// not know. What it does not understand it leaves out, and what is not printable
// becomes a question mark: a file must not say to a terminal what to do.
func ParseNote(comment string) (n Note) {
	comment, _, _ = strings.Cut(comment[:min(len(comment), maxNote)], ";")
	comment = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, strings.Clone(comment)) // the rest is not kept
	for i, part := range strings.Split(comment, ", ") {
		word, rest, _ := strings.Cut(part, " ")
		switch {
		case word == "qp":
			if v, err := strconv.ParseUint(rest, 0, 24); err == nil {
				n.QPN, n.HasQP = bth.QPN(v), true
			}
		case word == "wr":
			id, op, _ := strings.Cut(rest, " ")
			if v, err := strconv.ParseUint(id, 10, 64); err == nil && op != "" {
				n.WR, n.Op = v, op
			}
		case part == noteResent:
			n.Resend = true
		case rest == noteLost:
			n.Lost, _ = strconv.ParseUint(word, 10, 64)
		case i == 0 && !strings.HasPrefix(part, "not known"):
			n.Verdict = part
		}
	}
	return n
}

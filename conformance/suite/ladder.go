package suite

import (
	"fmt"
	"strings"

	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

// Describe says in a line what a frame is.
func Describe(f *wire.Frame) string {
	switch {
	case f.NotUDP:
		return fmt.Sprintf("an IP packet of %d bytes that is not UDP to port %d", len(f.IP), wire.Port)
	case f.RoCE.BTH() == nil:
		return fmt.Sprintf("a datagram of %d bytes, too short for a BTH", len(f.Roce))
	}
	b := f.RoCE.BTH()
	s := []string{opcodeName(f.RoCE.Opcode), "PSN " + b.PSN().String()}
	if b.AckReq() {
		s = append(s, "A")
	}
	if b.Solicited() {
		s = append(s, "SE")
	}
	if f.Err != nil {
		return strings.Join(append(s, "("+f.Err.Error()+")"), " ")
	}
	s = append(s, headers(&f.RoCE)...)
	if n := len(f.RoCE.Payload); n > 0 {
		s = append(s, fmt.Sprintf("%d bytes", n))
	}
	if !f.ICRCOK {
		s = append(s, "WRONG ICRC")
	}
	return strings.Join(s, " ")
}

func opcodeName(op bth.Opcode) string { return op.String() }

func headers(p *bth.Packet) []string {
	var s []string
	if h := p.AETH(); h != nil {
		s = append(s, fmt.Sprintf("[%v, MSN %d]", h.Syndrome(), h.MSN()))
	}
	if h := p.RETH(); h != nil {
		s = append(s, fmt.Sprintf("[VA %#x, key %#x, length %d]", h.VA(), h.RKey(), h.Length()))
	}
	if h := p.AtomicETH(); h != nil {
		f := h.Fields()
		s = append(s, fmt.Sprintf("[VA %#x, key %#x, swap or add %#x, compare %#x]", f.VA, f.RKey, f.Swap, f.Compare))
	}
	if h := p.AtomicAckETH(); h != nil {
		s = append(s, fmt.Sprintf("[original %#x]", h.Fields().Original))
	}
	if h := p.DETH(); h != nil {
		s = append(s, fmt.Sprintf("[Q_Key %#x, from QP %v]", uint32(h.QKey()), h.SrcQP()))
	}
	if p.Has(bth.HasImmDt) {
		s = append(s, fmt.Sprintf("[immediate % x]", p.ImmDt()))
	}
	if h := p.IETH(); h != nil {
		s = append(s, fmt.Sprintf("[invalidate %#x]", h.Fields().RKey))
	}
	return s
}

// Ladder shows a result's packets, one a line, with the time since the case began; the tester is on the left.
func Ladder(r *Result) string {
	var b strings.Builder
	for _, f := range r.Frames {
		arrow := "--->"
		if f.Dir == wire.Received {
			arrow = "<---"
		}
		to := ""
		if h := f.RoCE.BTH(); !f.NotUDP && h != nil {
			to = " QP " + h.DestQP().String()
		}
		fmt.Fprintf(&b, "%9.3f ms  %s %s%s\n", float64(f.Time.Sub(r.Began).Microseconds())/1000, arrow, Describe(f), to)
	}
	return b.String()
}

package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

// ICRCState says what is known of a packet's invariant CRC.
type ICRCState uint8

// States of the invariant CRC.
const (
	ICRCUnchecked ICRCState = iota // malformed, or cut by the capture
	ICRCRight
	ICRCWrong
)

// Direction says which way a packet went at the one who captured it, as a
// pcapng's flags say it.
type Direction uint8

// Directions.
const (
	Unknown  Direction = 0 // the file does not say
	Inbound  Direction = flagInbound
	Outbound Direction = flagOutbound
)

// Record describes one packet to UDP port 4791.
type Record struct {
	Number    int       // of the frame in the file, from 1
	Time      time.Time // zero when the file does not say
	Src, Dst  netip.AddrPort
	Length    int // bytes from BTH to ICRC, as captured
	Opcode    bth.Opcode
	Name      string // the opcode's name, empty when the BTH is not there
	QPN       bth.QPN
	PSN       bth.PSN
	Fields    string // the other fields of BTH and extended headers, name=value
	Payload   int    // bytes of message data
	Pad       int
	ICRC      ICRCState
	WantICRC  uint32 // what the packet should carry, unless ICRCUnchecked
	GotICRC   uint32 // what it carries
	Cut       bool   // the capture does not hold the whole frame
	Malformed string // why the packet is malformed; empty when it is not
	Comment   string // the file's comment on the packet, as it stands there
	Way       Direction
	TOS, TTL  uint8
	Wire      int    // bytes from BTH to ICRC on the wire; more than Length when the packet is cut
	Raw       []byte // the Length bytes, valid until the next packet
}

// Bad reports whether the packet is malformed or its ICRC is wrong.
func (r *Record) Bad() bool { return r.Malformed != "" || r.ICRC == ICRCWrong }

// String describes the packet in one line. Bytes from the file are quoted.
func (r Record) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%5d ", r.Number)
	if !r.Time.IsZero() {
		b.WriteString(r.Time.UTC().Format("2006-01-02T15:04:05.000000000Z "))
	}
	fmt.Fprintf(&b, "%v > %v", r.Src, r.Dst)
	if r.Name != "" {
		fmt.Fprintf(&b, " %s qp=%v psn=%v %s payload=%d pad=%d", r.Name, r.QPN, r.PSN, r.Fields, r.Payload, r.Pad)
	}
	switch r.ICRC {
	case ICRCRight:
		fmt.Fprintf(&b, " icrc=%08x right", r.GotICRC)
	case ICRCWrong:
		fmt.Fprintf(&b, " icrc=%08x WRONG want=%08x", r.GotICRC, r.WantICRC)
	case ICRCUnchecked:
		b.WriteString(" icrc=unchecked")
	}
	if r.Cut {
		b.WriteString(" cut by the capture")
	}
	if r.Malformed != "" {
		b.WriteString(" MALFORMED: " + r.Malformed)
	}
	if r.Comment != "" {
		b.WriteString(" comment=" + strconv.Quote(r.Comment))
	}
	return b.String()
}

// describe fills in what the UDP payload says.
func (r *Record) describe(roce []byte) {
	var p bth.Packet
	err := p.Parse(roce)
	if h := p.BTH(); h != nil {
		r.Opcode, r.Name, r.QPN, r.PSN = h.Opcode(), h.Opcode().String(), h.DestQP(), h.PSN()
		r.Fields = bthText(h)
	}
	switch {
	case err != nil:
		// A cut packet is short by the capture's fault, not by its own.
		if r.Malformed == "" && !(r.Cut && (errors.Is(err, bth.ErrShort) || errors.Is(err, bth.ErrPad))) {
			r.Malformed = err.Error()
		}
	case r.ICRC == ICRCUnchecked && r.Cut:
		// Where the payload ends is not known, but the headers are whole.
		r.Fields += headersText(&p)
		r.Payload, r.Pad = len(roce)-p.Info.HeaderLen, p.BTH().Pad()
	default:
		r.Fields += headersText(&p)
		r.Payload, r.Pad = len(p.Payload), p.Pad
		if !p.Aligned() && r.Malformed == "" {
			r.Malformed = "payload and pad are not a multiple of 4 bytes"
		}
	}
}

// bthText lists the fields of a BTH that Record does not hold.
func bthText(h bth.BTH) string {
	var b strings.Builder
	fmt.Fprintf(&b, "pkey=0x%04x", uint16(h.PKey()))
	for _, f := range []struct {
		on   bool
		name string
	}{
		{h.Solicited(), "SE"}, {h.MigReq(), "M"}, {h.FECN(), "FECN"}, {h.BECN(), "BECN"}, {h.AckReq(), "A"},
	} {
		if f.on {
			b.WriteString(" " + f.name)
		}
	}
	for _, f := range []struct {
		v    uint8
		name string
	}{
		{h.TVer(), "tver"}, {h.Resv6(), "resv6"}, {h.Resv7(), "resv7"},
	} {
		if f.v != 0 {
			fmt.Fprintf(&b, " %s=0x%x", f.name, f.v)
		}
	}
	return b.String()
}

// headersText lists the fields of every extended header, each with a blank before
// it.
func headersText(p *bth.Packet) string {
	var b strings.Builder
	add := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	if h := p.RDETH(); h != nil {
		add(" rdeth.eec=0x%06x", h.EEContext())
	}
	if h := p.DETH(); h != nil {
		add(" deth.qkey=0x%08x deth.srcqp=%v", uint32(h.QKey()), h.SrcQP())
	}
	if h := p.XRCETH(); h != nil {
		add(" xrceth.srq=0x%06x", h.SRQ())
	}
	if h := p.FETH(); h != nil {
		add(" feth.sel=%d feth.plt=%d", h.Sel(), h.PLT())
	}
	if h := p.RETH(); h != nil {
		add(" reth.va=0x%016x reth.rkey=0x%08x reth.len=%d", h.VA(), h.RKey(), h.Length())
	}
	if h := p.AtomicETH(); h != nil {
		add(" atomiceth.va=0x%016x atomiceth.rkey=0x%08x", h.VA(), h.RKey())
		if p.Info.Op == bth.OpFetchAdd {
			add(" atomiceth.add=0x%016x", h.Swap())
		} else {
			add(" atomiceth.swap=0x%016x atomiceth.compare=0x%016x", h.Swap(), h.Compare())
		}
	}
	if h := p.AETH(); h != nil {
		add(" aeth.syndrome=0x%02x(%v) aeth.msn=%d", uint8(h.Syndrome()), h.Syndrome(), h.MSN())
	}
	if h := p.AtomicAckETH(); h != nil {
		add(" atomicacketh.original=0x%016x", h.Original())
	}
	if p.Has(bth.HasImmDt) {
		add(" immdt=0x%x", p.ImmDt())
	}
	if h := p.IETH(); h != nil {
		add(" ieth.rkey=0x%08x", h.RKey())
	}
	if p.Has(bth.HasCNPReserved) && p.CNPReserved() != (bth.CNPReserved{}) {
		add(" cnp.reserved=0x%x", p.CNPReserved())
	}
	return b.String()
}

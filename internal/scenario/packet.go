package scenario

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
)

// opcodes finds an opcode by the name that its table gives it.
var opcodes = func() map[string]bth.Opcode {
	m := make(map[string]bth.Opcode)
	for i := range 256 {
		m[bth.Opcode(i).String()] = bth.Opcode(i)
	}
	return m
}()

// syndromes finds a syndrome by the word that a scenario has for it.
var syndromes = map[string]bth.Syndrome{
	"ACK": bth.AckNoCredit, "NAK60": bth.NAKSequence, "NAK61": bth.NAKInvalidRequest,
	"NAK62": bth.NAKRemoteAccess, "NAK63": bth.NAKRemoteOperational, "NAK65": 0x65, "RES40": 0x40,
	"CREDIT0": 0x00,
}

// A Peer is what Craft needs to know beside the line: where the packet goes, and
// what key a name stands for. Key may be nil.
type Peer struct {
	DestQP bth.QPN
	Key    func(name string) (uint32, bool)
}

// Craft builds a packet from a line, "RC SEND Only psn=0x200 A SE data=10": the
// opcode's name, then words, as docs/scenarios.md lists them. The payload's bytes
// count up from the PSN's low byte. The ICRC is left 0: it is verified by the
// engine's caller.
func (p Peer) Craft(line string) ([]byte, error) {
	var h bth.Headers
	name, fields := splitOpcode(line)
	op, known := opcodes[name]
	if !known {
		return nil, fmt.Errorf("no opcode %q", name)
	}
	w := parseWords(fields)
	h.BTH = bth.BTHFields{
		Opcode: op, MigReq: !w.flag("M0"), PKey: bth.PKey(w.num("pkey", uint64(bth.DefaultPKey))),
		DestQP: bth.QPN(w.num("qpn", uint64(p.DestQP))), PSN: bth.PSN(w.num("psn", 0)), AckReq: w.flag("A"), Solicited: w.flag("SE"),
	}
	if w.flag("resv") {
		h.BTH.Resv6, h.BTH.Resv7, h.BTH.FECN, h.BTH.BECN = 0x3F, 0x7F, true, true
	}
	key := p.key(w, "key", "good")
	h.RETH = bth.RETHFields{VA: w.num("va", 0), RKey: key, Length: uint32(w.num("len", 0))}
	h.AtomicETH = bth.AtomicETHFields{VA: h.RETH.VA, RKey: key, Swap: w.num("swap", 0), Compare: w.num("cmp", 0)}
	h.IETH.RKey = p.key(w, "inv", "0")
	imm := w.num("imm", 0)
	h.ImmDt = bth.ImmDt{byte(imm >> 24), byte(imm >> 16), byte(imm >> 8), byte(imm)}
	h.AETH.Syndrome, h.AETH.MSN = syndrome(w), uint32(w.num("msn", 0))
	h.AtomicAckETH.Original = w.num("orig", 0)
	h.DETH = bth.DETHFields{QKey: bth.QKey(w.num("qkey", 0)), SrcQP: bth.QPN(w.num("src", 0x22))}
	data := int(w.num("data", 0))
	h.BTH.Pad = w.small("pad", bth.PadLen(data))
	if err := w.done(); err != nil {
		return nil, err
	}
	b := h.Append(nil)
	for i := range data {
		b = append(b, byte(int(h.BTH.PSN)+i))
	}
	b = append(b, make([]byte, h.BTH.Pad)...)
	return bth.AppendICRC(b, 0), nil
}

// splitOpcode parts an opcode's name, which has blanks in it, from the words
// behind it: the first has a "=", and may be "psn" alone.
func splitOpcode(line string) (name string, fields []string) {
	fields = strings.Fields(line)
	for i := range fields {
		if strings.Contains(fields[i], "=") {
			return strings.Join(fields[:i], " "), fields[i:]
		}
	}
	return strings.Join(fields, " "), nil
}

// key is a word's key: a number, or a name that Key knows.
func (p Peer) key(w *words, word, without string) uint32 {
	s := w.text(word, without)
	if p.Key != nil {
		if k, ok := p.Key(s); ok {
			return k
		}
	}
	k, err := strconv.ParseUint(s, 0, 32)
	if err != nil && w.value[word] != "" {
		w.fail(fmt.Errorf("%s: no key %q", word, s))
	}
	return uint32(k)
}

// syndrome is the word ack: a syndrome's name, or rnrN with a timer code.
func syndrome(w *words) bth.Syndrome {
	s := w.text("ack", "ACK")
	if n, isRNR := strings.CutPrefix(s, "rnr"); isRNR {
		code, err := strconv.ParseUint(n, 10, 5)
		if err != nil {
			w.fail(fmt.Errorf("ack: no timer code %q", n))
		}
		return bth.RNRSyndrome(uint8(code))
	}
	v, ok := syndromes[s]
	if !ok {
		w.fail(fmt.Errorf("ack: no syndrome %q", s))
	}
	return v
}

// PacketText writes a packet in one line, with the words of Craft where it has
// them.
func PacketText(b []byte) string {
	var p bth.Packet
	if err := p.Parse(b); err != nil {
		return err.Error()
	}
	h := p.BTH()
	var s strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&s, format, args...) }
	say("%s psn=%#x", p.Opcode, uint32(h.PSN()))
	if h.AckReq() {
		say(" A")
	}
	if h.Solicited() {
		say(" SE")
	}
	if d := p.DETH(); d != nil {
		say(" qpn=%#x qkey=%#x src=%#x", uint32(h.DestQP()), uint32(d.QKey()), uint32(d.SrcQP()))
	}
	if r := p.RETH(); r != nil {
		say(" va=%#x len=%d", r.VA(), r.Length())
	}
	if r := p.AtomicETH(); r != nil {
		say(" va=%#x swap=%#x cmp=%#x", r.VA(), r.Swap(), r.Compare())
	}
	if p.Has(bth.HasImmDt) {
		say(" imm=%x", p.ImmDt())
	}
	if r := p.IETH(); r != nil {
		say(" inv=%#x", r.RKey())
	}
	if r := p.AETH(); r != nil {
		say(" %v msn=%d", r.Syndrome(), r.MSN())
	}
	if r := p.AtomicAckETH(); r != nil {
		say(" orig=%#x", r.Original())
	}
	if len(p.Payload) > 0 {
		say(" data=%d", len(p.Payload))
	}
	return s.String()
}

// WCText writes a completion without its prefix: "1 SUCCESS SEND len=4".
func WCText(wc *cq.WC) string {
	s := fmt.Sprintf("%d %s", wc.WRID, strings.TrimPrefix(wc.Status.String(), "IBV_WC_"))
	if wc.Status != cq.Success {
		return s
	}
	s += fmt.Sprintf(" %s len=%d", strings.TrimPrefix(wc.Opcode.String(), "IBV_WC_"), wc.ByteLen)
	if wc.Flags&cq.WithImm != 0 {
		s += fmt.Sprintf(" imm=%#x", wc.ImmData)
	}
	if wc.Flags&cq.WithInv != 0 {
		s += fmt.Sprintf(" inv=%#x", wc.InvalidatedRKey)
	}
	if wc.SrcQP != 0 {
		s += fmt.Sprintf(" src=%#x", uint32(wc.SrcQP))
	}
	if wc.Flags&cq.GRH != 0 {
		s += " grh"
	}
	return s
}

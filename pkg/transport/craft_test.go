package transport_test

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/softroce/softroce/pkg/bth"
)

// opcodeByName finds an opcode by the name that the table gives it.
var opcodeByName = func() map[string]bth.Opcode {
	m := make(map[string]bth.Opcode)
	for i := 0; i < 256; i++ {
		m[bth.Opcode(i).String()] = bth.Opcode(i)
	}
	return m
}()

// syndromeByName finds a syndrome by its text.
var syndromeByName = map[string]bth.Syndrome{
	"ACK": bth.AckNoCredit, "NAK60": bth.NAKSequence, "NAK61": bth.NAKInvalidRequest,
	"NAK62": bth.NAKRemoteAccess, "NAK63": bth.NAKRemoteOperational, "NAK65": 0x65, "RES40": 0x40,
	"CREDIT0": 0x00,
}

// craft builds a packet from a line, "RC SEND Only psn=0x200 A SE data=10", as a
// peer would send it to QP 0x11. Words: psn, A, SE, M0, va, key, len, swap, cmp,
// imm, inv, data (payload bytes of value psn+i), pad (PadCnt in place of the
// right one), ack (a syndrome's name, or rnrN), msn, orig, pkey, resv. key=good
// is the key given.
func craft(line string, key uint32) ([]byte, error) {
	name, rest, ok := strings.Cut(line, " psn=")
	op, known := opcodeByName[strings.TrimSpace(name)]
	if !ok || !known {
		return nil, fmt.Errorf("no opcode in %q", line)
	}
	var h bth.Headers
	h.BTH = bth.BTHFields{Opcode: op, MigReq: true, PKey: bth.DefaultPKey, DestQP: 0x11}
	h.RETH.RKey, h.AtomicETH.RKey = key, key
	data, pad := 0, -1
	for i, w := range strings.Fields("psn=" + rest) {
		k, s, _ := strings.Cut(w, "=")
		v, err := strconv.ParseUint(s, 0, 64)
		if err != nil && s != "" && k != "ack" && s != "good" {
			return nil, fmt.Errorf("word %d, %q: %w", i, w, err)
		}
		switch k {
		case "psn":
			h.BTH.PSN = bth.PSN(v)
		case "A":
			h.BTH.AckReq = true
		case "SE":
			h.BTH.Solicited = true
		case "M0":
			h.BTH.MigReq = false
		case "resv":
			h.BTH.Resv6, h.BTH.Resv7, h.BTH.FECN, h.BTH.BECN = 0x3F, 0x7F, true, true
		case "pkey":
			h.BTH.PKey = bth.PKey(v)
		case "qpn":
			h.BTH.DestQP = bth.QPN(v)
		case "va":
			h.RETH.VA, h.AtomicETH.VA = v, v
		case "key":
			if s != "good" {
				h.RETH.RKey, h.AtomicETH.RKey = uint32(v), uint32(v)
			}
		case "len":
			h.RETH.Length = uint32(v)
		case "swap":
			h.AtomicETH.Swap = v
		case "cmp":
			h.AtomicETH.Compare = v
		case "imm":
			h.ImmDt = bth.ImmDt{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}
		case "inv":
			h.IETH.RKey = uint32(v)
		case "data":
			data = int(v)
		case "pad":
			pad = int(v)
		case "ack":
			if n, isRNR := strings.CutPrefix(s, "rnr"); isRNR {
				code, _ := strconv.Atoi(n)
				h.AETH.Syndrome = bth.RNRSyndrome(uint8(code))
			} else if h.AETH.Syndrome, ok = syndromeByName[s]; !ok {
				return nil, fmt.Errorf("no syndrome %q", s)
			}
		case "msn":
			h.AETH.MSN = uint32(v)
		case "orig":
			h.AtomicAckETH.Original = v
		default:
			return nil, fmt.Errorf("word %q", w)
		}
	}
	h.BTH.Pad = bth.PadLen(data)
	if pad >= 0 {
		h.BTH.Pad = uint8(pad)
	}
	b := h.Append(nil)
	for i := 0; i < data; i++ {
		b = append(b, byte(int(h.BTH.PSN)+i))
	}
	b = append(b, make([]byte, h.BTH.Pad)...)
	return bth.AppendICRC(b, 0), nil // verified by the caller of the engine
}

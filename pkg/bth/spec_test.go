package bth

import (
	"math"
	"testing"
	"time"
)

// specRow is a row of the opcode tables of IBTA Vol 1 §9.4 and Annexes A14, A17
// and A19, written from the specification and not from opcodetable.go: total is
// the length of all headers and the ICRC.
type specRow struct {
	first, last Opcode // a run of opcodes with these facts
	total       int
	headers     HeaderSet
	payload     PayloadRule
}

var specTable = []specRow{
	// RC
	{0x00, 0x01, 16, 0, PayloadFull},
	{0x02, 0x02, 16, 0, PayloadSome},
	{0x03, 0x03, 20, HasImmDt, PayloadSome},
	{0x04, 0x04, 16, 0, PayloadAny},
	{0x05, 0x05, 20, HasImmDt, PayloadAny},
	{0x06, 0x06, 32, HasRETH, PayloadFull},
	{0x07, 0x07, 16, 0, PayloadFull},
	{0x08, 0x08, 16, 0, PayloadSome},
	{0x09, 0x09, 20, HasImmDt, PayloadSome},
	{0x0A, 0x0A, 32, HasRETH, PayloadAny},
	{0x0B, 0x0B, 36, HasRETH | HasImmDt, PayloadAny},
	{0x0C, 0x0C, 32, HasRETH, PayloadNone},
	{0x0D, 0x0D, 20, HasAETH, PayloadFull},
	{0x0E, 0x0E, 16, 0, PayloadFull},
	{0x0F, 0x0F, 20, HasAETH, PayloadSome},
	{0x10, 0x10, 20, HasAETH, PayloadAny},
	{0x11, 0x11, 20, HasAETH, PayloadNone},
	{0x12, 0x12, 28, HasAETH | HasAtomicAckETH, PayloadNone},
	{0x13, 0x14, 44, HasAtomicETH, PayloadNone},
	{0x16, 0x16, 20, HasIETH, PayloadSome},
	{0x17, 0x17, 20, HasIETH, PayloadAny},
	{0x1C, 0x1C, 36, HasFETH | HasRETH, PayloadNone},
	{0x1D, 0x1D, 32, HasRETH, PayloadEight},
	// UC
	{0x20, 0x21, 16, 0, PayloadFull},
	{0x22, 0x22, 16, 0, PayloadSome},
	{0x23, 0x23, 20, HasImmDt, PayloadSome},
	{0x24, 0x24, 16, 0, PayloadAny},
	{0x25, 0x25, 20, HasImmDt, PayloadAny},
	{0x26, 0x26, 32, HasRETH, PayloadFull},
	{0x27, 0x27, 16, 0, PayloadFull},
	{0x28, 0x28, 16, 0, PayloadSome},
	{0x29, 0x29, 20, HasImmDt, PayloadSome},
	{0x2A, 0x2A, 32, HasRETH, PayloadAny},
	{0x2B, 0x2B, 36, HasRETH | HasImmDt, PayloadAny},
	// RD: requests have RDETH and DETH, responses RDETH
	{0x40, 0x41, 28, HasRDETH | HasDETH, PayloadFull},
	{0x42, 0x42, 28, HasRDETH | HasDETH, PayloadSome},
	{0x43, 0x43, 32, HasRDETH | HasDETH | HasImmDt, PayloadSome},
	{0x44, 0x44, 28, HasRDETH | HasDETH, PayloadAny},
	{0x45, 0x45, 32, HasRDETH | HasDETH | HasImmDt, PayloadAny},
	{0x46, 0x46, 44, HasRDETH | HasDETH | HasRETH, PayloadFull},
	{0x47, 0x47, 28, HasRDETH | HasDETH, PayloadFull},
	{0x48, 0x48, 28, HasRDETH | HasDETH, PayloadSome},
	{0x49, 0x49, 32, HasRDETH | HasDETH | HasImmDt, PayloadSome},
	{0x4A, 0x4A, 44, HasRDETH | HasDETH | HasRETH, PayloadAny},
	{0x4B, 0x4B, 48, HasRDETH | HasDETH | HasRETH | HasImmDt, PayloadAny},
	{0x4C, 0x4C, 44, HasRDETH | HasDETH | HasRETH, PayloadNone},
	{0x4D, 0x4D, 24, HasRDETH | HasAETH, PayloadFull},
	{0x4E, 0x4E, 20, HasRDETH, PayloadFull},
	{0x4F, 0x4F, 24, HasRDETH | HasAETH, PayloadSome},
	{0x50, 0x50, 24, HasRDETH | HasAETH, PayloadAny},
	{0x51, 0x51, 24, HasRDETH | HasAETH, PayloadNone},
	{0x52, 0x52, 32, HasRDETH | HasAETH | HasAtomicAckETH, PayloadNone},
	{0x53, 0x54, 56, HasRDETH | HasDETH | HasAtomicETH, PayloadNone},
	{0x55, 0x55, 28, HasRDETH | HasDETH, PayloadNone},
	{0x5C, 0x5C, 48, HasRDETH | HasDETH | HasFETH | HasRETH, PayloadNone},
	{0x5D, 0x5D, 44, HasRDETH | HasDETH | HasRETH, PayloadEight},
	// UD
	{0x64, 0x64, 24, HasDETH, PayloadAny},
	{0x65, 0x65, 28, HasDETH | HasImmDt, PayloadAny},
	// CNP of RoCEv2
	{0x81, 0x81, 32, HasCNPReserved, PayloadNone},
	// XRC: requests have XRCETH
	{0xA0, 0xA1, 20, HasXRCETH, PayloadFull},
	{0xA2, 0xA2, 20, HasXRCETH, PayloadSome},
	{0xA3, 0xA3, 24, HasXRCETH | HasImmDt, PayloadSome},
	{0xA4, 0xA4, 20, HasXRCETH, PayloadAny},
	{0xA5, 0xA5, 24, HasXRCETH | HasImmDt, PayloadAny},
	{0xA6, 0xA6, 36, HasXRCETH | HasRETH, PayloadFull},
	{0xA7, 0xA7, 20, HasXRCETH, PayloadFull},
	{0xA8, 0xA8, 20, HasXRCETH, PayloadSome},
	{0xA9, 0xA9, 24, HasXRCETH | HasImmDt, PayloadSome},
	{0xAA, 0xAA, 36, HasXRCETH | HasRETH, PayloadAny},
	{0xAB, 0xAB, 40, HasXRCETH | HasRETH | HasImmDt, PayloadAny},
	{0xAC, 0xAC, 36, HasXRCETH | HasRETH, PayloadNone},
	{0xAD, 0xAD, 20, HasAETH, PayloadFull},
	{0xAE, 0xAE, 16, 0, PayloadFull},
	{0xAF, 0xAF, 20, HasAETH, PayloadSome},
	{0xB0, 0xB0, 20, HasAETH, PayloadAny},
	{0xB1, 0xB1, 20, HasAETH, PayloadNone},
	{0xB2, 0xB2, 28, HasAETH | HasAtomicAckETH, PayloadNone},
	{0xB3, 0xB4, 48, HasXRCETH | HasAtomicETH, PayloadNone},
	{0xB6, 0xB6, 24, HasXRCETH | HasIETH, PayloadSome},
	{0xB7, 0xB7, 24, HasXRCETH | HasIETH, PayloadAny},
	{0xBC, 0xBC, 40, HasXRCETH | HasFETH | HasRETH, PayloadNone},
	{0xBD, 0xBD, 36, HasXRCETH | HasRETH, PayloadEight},
}

// TestSpec_9_4_Opcodes: every one of the 256 values, reserved ones included.
func TestSpec_9_4_Opcodes(t *testing.T) {
	var want [256]*specRow
	for i := range specTable {
		for o := int(specTable[i].first); o <= int(specTable[i].last); o++ {
			want[o] = &specTable[i]
		}
	}
	for o := range want {
		info := Opcode(o).Info()
		w := want[o]
		if info.Defined != (w != nil) {
			t.Errorf("opcode %#02x %s: defined %v, want %v", o, info.Name, info.Defined, w != nil)
			continue
		}
		if info.Class != Class(o>>5) || info.Name == "" {
			t.Errorf("opcode %#02x: class %v, name %q", o, info.Class, info.Name)
		}
		if w == nil {
			if info.Request || info.Response || info.Op != OpReserved {
				t.Errorf("opcode %#02x is reserved, but has facts: %+v", o, info)
			}
			continue
		}
		if info.HeaderLen+ICRCLen != w.total || info.Headers != w.headers || info.Payload != w.payload {
			t.Errorf("opcode %#02x %s: total %d, headers %#x, payload rule %d, want %+v",
				o, info.Name, info.HeaderLen+ICRCLen, info.Headers, info.Payload, *w)
		}
		if info.HeaderLen > MaxHeaderLen {
			t.Errorf("opcode %#02x: headers of %d bytes exceed MaxHeaderLen", o, info.HeaderLen)
		}
	}
}

// TestSpec_9_4_Direction: which opcodes are requests, which responses, which use
// up a receive request (C9-8 and the tables of §9.4), with their places.
func TestSpec_9_4_Direction(t *testing.T) {
	for _, c := range []struct {
		o                 Opcode
		op                Op
		pos               Position
		request, response bool
		takes, completes  bool
	}{
		{RCSendFirst, OpSend, First, true, false, true, false},
		{RCSendMiddle, OpSend, Middle, true, false, false, false},
		{RCSendLast, OpSend, Last, true, false, false, true},
		{RCSendLastImmediate, OpSend, Last, true, false, false, true},
		{RCSendLastInvalidate, OpSend, Last, true, false, false, true},
		{RCSendOnly, OpSend, Only, true, false, true, true},
		{RCSendOnlyImmediate, OpSend, Only, true, false, true, true},
		{RCSendOnlyInvalidate, OpSend, Only, true, false, true, true},
		{RCWriteFirst, OpWrite, First, true, false, false, false},
		{RCWriteMiddle, OpWrite, Middle, true, false, false, false},
		{RCWriteLast, OpWrite, Last, true, false, false, false},
		{RCWriteLastImmediate, OpWrite, Last, true, false, true, true},
		{RCWriteOnly, OpWrite, Only, true, false, false, false},
		{RCWriteOnlyImmediate, OpWrite, Only, true, false, true, true},
		{RCReadRequest, OpReadRequest, Only, true, false, false, false},
		{RCReadResponseFirst, OpReadResponse, First, false, true, false, false},
		{RCReadResponseMiddle, OpReadResponse, Middle, false, true, false, false},
		{RCReadResponseLast, OpReadResponse, Last, false, true, false, false},
		{RCReadResponseOnly, OpReadResponse, Only, false, true, false, false},
		{RCAcknowledge, OpAck, None, false, true, false, false},
		{RCAtomicAcknowledge, OpAtomicAck, None, false, true, false, false},
		{RCCmpSwap, OpCmpSwap, Only, true, false, false, false},
		{RCFetchAdd, OpFetchAdd, Only, true, false, false, false},
		{RCFlush, OpFlush, Only, true, false, false, false},
		{RCAtomicWrite, OpAtomicWrite, Only, true, false, false, false},
		{UCSendOnly, OpSend, Only, true, false, true, true},
		{UCWriteLastImmediate, OpWrite, Last, true, false, true, true},
		{UDSendOnly, OpSend, Only, true, false, true, true},
		{UDSendOnlyImmediate, OpSend, Only, true, false, true, true},
		{CNP, OpCNP, None, false, false, false, false},
	} {
		i := c.o.Info()
		if i.Op != c.op || i.Position != c.pos || i.Request != c.request || i.Response != c.response ||
			i.ConsumesRecv != c.takes || i.CompletesRecv != c.completes {
			t.Errorf("%v: got %+v, want %+v", c.o, *i, c)
		}
	}
	if RCSendFirst.String() != "RC SEND First" || Opcode(0x1F).String() != "reserved 0x1f" {
		t.Errorf("names: %q, %q", RCSendFirst, Opcode(0x1F))
	}
}

// TestSpec_9_4_PayloadRules: C9-92 and its neighbours.
func TestSpec_9_4_PayloadRules(t *testing.T) {
	const pmtu = 1024
	for _, c := range []struct {
		rule    PayloadRule
		allowed []int
		refused []int
	}{
		{PayloadNone, []int{0}, []int{1, 8, pmtu}},
		{PayloadFull, []int{pmtu}, []int{0, 1, pmtu - 1, pmtu + 1}},
		{PayloadSome, []int{1, 4, pmtu}, []int{0, pmtu + 1}},
		{PayloadAny, []int{0, 1, pmtu}, []int{pmtu + 1}},
		{PayloadEight, []int{8}, []int{0, 4, 7, 9, pmtu}},
	} {
		for _, n := range c.allowed {
			if !c.rule.Allows(n, pmtu) {
				t.Errorf("rule %d refuses %d bytes", c.rule, n)
			}
		}
		for _, n := range c.refused {
			if c.rule.Allows(n, pmtu) {
				t.Errorf("rule %d allows %d bytes", c.rule, n)
			}
		}
	}
}

// TestSpec_9_7_1_PSN: 24 bits, circular.
func TestSpec_9_7_1_PSN(t *testing.T) {
	for _, c := range []struct {
		p, b PSN
		sub  int32
	}{
		{0, 0, 0},
		{1, 0, 1},
		{0, 1, -1},
		{0, 0xFFFFFF, 1},
		{0xFFFFFF, 0, -1},
		{5, 0xFFFFFD, 8},
		{0x7FFFFF, 0, 0x7FFFFF},
		{0x800000, 0, -0x800000},
		{0x800001, 0, -0x7FFFFF},
		{0x123456, 0x923457, 0x7FFFFF},
	} {
		if got := c.p.Sub(c.b); got != c.sub {
			t.Errorf("%v.Sub(%v) = %d, want %d", c.p, c.b, got, c.sub)
		}
		if got := c.b.Add(uint32(c.sub)); got != c.p {
			t.Errorf("%v.Add(%d) = %v, want %v", c.b, c.sub, got, c.p)
		}
		if c.p.Before(c.b) != (c.sub < 0) || c.p.After(c.b) != (c.sub > 0) {
			t.Errorf("%v and %v: Before %v, After %v, distance %d", c.p, c.b, c.p.Before(c.b), c.p.After(c.b), c.sub)
		}
	}
	if got := PSN(1).Add(math.MaxUint32); got != 0 {
		t.Errorf("1 + 2^32-1 = %v, want 0", got)
	}
	if got := PSN(0x00AB).String(); got != "0x0000ab" {
		t.Errorf("String: %s", got)
	}
}

// TestSpec_10_9_3_PKey: equal partitions that are not 0, one full member.
func TestSpec_10_9_3_PKey(t *testing.T) {
	for _, c := range []struct {
		own, packet PKey
		want        bool
	}{
		{0xFFFF, 0xFFFF, true},
		{0xFFFF, 0x7FFF, true},
		{0x7FFF, 0xFFFF, true},
		{0x7FFF, 0x7FFF, false},
		{0xFFFF, 0x8001, false},
		{0xFFFF, 0x1234, false},
		{0xFFFF, 0x0000, false},
		{0x8000, 0x8000, false},
		{0x8000, 0x0000, false},
		{0x9234, 0x1234, true},
	} {
		if got := c.own.Match(c.packet); got != c.want {
			t.Errorf("%#04x.Match(%#04x) = %v, want %v", c.own, c.packet, got, c.want)
		}
	}
}

// TestSpec_9_7_5_2_1_Syndrome: types, codes and reserved values.
func TestSpec_9_7_5_2_1_Syndrome(t *testing.T) {
	for s := range 256 {
		y := Syndrome(s)
		ack, rnr, nak := s < 0x20, s >= 0x20 && s < 0x40, s >= 0x60 && s < 0x80
		reserved := s >= 0x80 || s >= 0x40 && s < 0x60 || s > 0x64 && s < 0x80
		if y.IsACK() != ack || y.IsRNR() != rnr || y.IsNAK() != nak || y.IsReserved() != reserved {
			t.Errorf("%#02x: ACK %v, RNR %v, NAK %v, reserved %v", s, y.IsACK(), y.IsRNR(), y.IsNAK(), y.IsReserved())
		}
		if y.String() == "" {
			t.Errorf("%#02x has no name", s)
		}
	}
	for code := range uint8(32) {
		if s := RNRSyndrome(code); !s.IsRNR() || s.RNRTimer() != code {
			t.Errorf("RNRSyndrome(%d) = %#02x", code, uint8(s))
		}
		if s := AckSyndrome(code); !s.IsACK() {
			t.Errorf("AckSyndrome(%d) = %#02x", code, uint8(s))
		}
	}
	if NAKSequence != 0x60 || NAKInvalidRequest != 0x61 || NAKRemoteAccess != 0x62 ||
		NAKRemoteOperational != 0x63 || NAKInvalidRDRequest != 0x64 || AckNoCredit != 0x1F {
		t.Error("a NAK constant has moved")
	}
	if NAKRemoteAccess.NAKCode() != 2 {
		t.Errorf("NAK code of a remote access error is %d, want 2", NAKRemoteAccess.NAKCode())
	}
}

// TestSpec_9_7_7_2_1_Credits: the table of credit codes, rounded down.
func TestSpec_9_7_7_2_1_Credits(t *testing.T) {
	for _, c := range []struct {
		posted  int
		code    uint8
		credits int
	}{
		{-1, 0, 0},
		{0, 0, 0},
		{1, 1, 1},
		{4, 4, 4},
		{5, 4, 4},
		{6, 5, 6},
		{7, 5, 6},
		{11, 6, 8},
		{12, 7, 12},
		{255, 15, 192},
		{256, 16, 256},
		{32767, 29, 24576},
		{32768, 30, 32768},
		{1 << 30, 30, 32768},
	} {
		code := CreditCode(c.posted)
		n, ok := AckSyndrome(code).Credits()
		if code != c.code || !ok || n != c.credits {
			t.Errorf("%d posted: code %d, credits %d, %v, want code %d, credits %d", c.posted, code, n, ok, c.code, c.credits)
		}
	}
	for _, s := range []Syndrome{AckNoCredit, RNRSyndrome(5), NAKSequence, 0xFF} {
		if _, ok := s.Credits(); ok {
			t.Errorf("%#02x announces credits", uint8(s))
		}
	}
	// Codes alternate between powers of two and one and a half times those.
	for code := uint8(4); code < 30; code += 2 {
		low, _ := AckSyndrome(code).Credits()
		high, _ := AckSyndrome(code + 1).Credits()
		if low != 4<<((code-4)/2) || high != low*3/2 {
			t.Errorf("codes %d, %d stand for %d, %d", code, code+1, low, high)
		}
	}
}

// TestSpec_9_7_5_2_8_RNRTimer: the table of timer codes in milliseconds.
func TestSpec_9_7_5_2_8_RNRTimer(t *testing.T) {
	ms := [32]float64{
		655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
		2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
	}
	for code, want := range ms {
		if got := RNRTimerDuration(uint8(code)); got != time.Duration(math.Round(want*1e6)) {
			t.Errorf("code %d: %v, want %v ms", code, got, want)
		}
	}
}

// TestSpec_9_7_6_1_3_AckTimeout: 4.096 µs × 2^n, and 0 for none.
func TestSpec_9_7_6_1_3_AckTimeout(t *testing.T) {
	for n, want := range map[uint8]time.Duration{
		0: 0, 1: 8192, 12: 16777216, 14: 67108864, 18: 1073741824, 31: 8796093022208,
	} {
		if got := AckTimeout(n); got != want {
			t.Errorf("code %d: %v, want %v", n, got, want)
		}
	}
}

// TestSpec_9_2_MTU: the five path MTUs.
func TestSpec_9_2_MTU(t *testing.T) {
	for i, bytes := range []int{256, 512, 1024, 2048, 4096} {
		m, ok := MTUFromBytes(bytes)
		if !ok || m != MTU(i+1) || m.Bytes() != bytes || !m.Valid() {
			t.Errorf("%d bytes: MTU %d, %v", bytes, m, ok)
		}
	}
	for _, n := range []int{0, 128, 1500, 8192, -256} {
		if m, ok := MTUFromBytes(n); ok {
			t.Errorf("%d bytes gave MTU %v", n, m)
		}
	}
	for _, m := range []MTU{0, 6, 255} {
		if m.Valid() || m.Bytes() != 0 {
			t.Errorf("%v is valid with %d bytes", m, m.Bytes())
		}
	}
}

// TestSpec_A17_GID: addresses and GIDs.
func TestSpec_A17_GID(t *testing.T) {
	for _, c := range []struct {
		addr, str      string
		is4, multicast bool
	}{
		{"10.77.0.11", "::ffff:10.77.0.11", true, false},
		{"239.77.0.1", "::ffff:239.77.0.1", true, true},
		{"0.0.0.0", "::ffff:0.0.0.0", true, false},
		{"fd77::11", "fd77::11", false, false},
		{"ff0e::ffff:e0a8:1", "ff0e::ffff:e0a8:1", false, true},
		{"::1", "::1", false, false},
		{"fe80::1%lo", "fe80::1", false, false},
	} {
		a := mustAddr(c.addr)
		g := GIDFromAddr(a)
		if g.String() != c.str || g.Is4() != c.is4 || g.IsMulticast() != c.multicast || g.IsZero() {
			t.Errorf("%s: GID %v, IPv4 %v, multicast %v", c.addr, g, g.Is4(), g.IsMulticast())
		}
		if g.Addr() != a.WithZone("") {
			t.Errorf("%s: GID %v gives back %v", c.addr, g, g.Addr())
		}
	}
	if g := (GID{}); !g.IsZero() || g.Is4() {
		t.Error("the zero GID")
	}
}

package cases

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

var bthCases = []suite.Case{
	{ID: "BTH-01", Run: dropsWith(func(w *wire.Packet) { w.BTH.TVer = 1 })},
	{ID: "BTH-02", Run: noSuchQP},
	{ID: "BTH-03", Run: dropsWith(func(w *wire.Packet) { w.BTH.DestQP = 0 })},
	{ID: "BTH-04", Needs: []string{agent.FeatureUC, agent.FeatureUD}, Run: otherService},
	{ID: "BTH-05", Run: acceptsWith(func(w *wire.Packet) { w.BTH.PKey = 0xFFFF })},
	{ID: "BTH-06", Run: acceptsWith(func(w *wire.Packet) { w.BTH.PKey = 0x7FFF })},
	{ID: "BTH-07", Run: wrongPKeys},
	{ID: "BTH-09", Run: acceptsWith(func(*wire.Packet) {}, func(w *wire.Packet) { w.BTH.MigReq = true })},
	{ID: "BTH-10", Run: acceptsWith(
		func(w *wire.Packet) { w.BTH.FECN = true }, func(w *wire.Packet) { w.BTH.BECN = true },
		func(w *wire.Packet) { w.BTH.Resv6 = 0x3F })},
	{ID: "BTH-11", Run: acceptsWith(func(w *wire.Packet) { w.BTH.Resv7 = 0x7F }, func(w *wire.Packet) { w.BTH.Resv7 = 0x55 })},
	{ID: "BTH-12", Run: emittedBTH},
	{ID: "BTH-13", Run: answeredBTH},
	{ID: "BTH-14", Run: cnp},
	{ID: "BTH-15", Run: undefinedOpcodes},
	{ID: "BTH-16", Run: oddCNP},
}

var bthNotTestable = []suite.Untestable{
	{ID: "BTH-08", Reason: "the verbs do not set the port's P_Key table; it belongs to the subnet manager"},
}

// dropsWith tests that a WRITE with each change is dropped without a word, and not executed.
func dropsWith(changes ...func(*wire.Packet)) func(*suite.T) {
	return func(t *suite.T) {
		p := t.Connect(suite.Options{})
		for _, change := range changes {
			w := p.Probe()
			change(w)
			p.Dropped(w)
			if p.HasMemory() {
				p.Holds(0, make([]byte, 8))
			}
		}
	}
}

// acceptsWith tests that a WRITE with each change is executed and acknowledged.
func acceptsWith(changes ...func(*wire.Packet)) func(*suite.T) {
	return func(t *suite.T) {
		p := t.Connect(suite.Options{})
		for _, change := range changes {
			w := p.Probe()
			change(w)
			p.Request(w)
			p.Ack(w.BTH.PSN)
			if p.HasMemory() {
				p.Holds(0, w.Payload)
				p.Fill(0, make([]byte, 8))
			}
		}
	}
}

func noSuchQP(t *suite.T) {
	p := t.Connect(suite.Options{})
	gone := t.Connect(suite.Options{Share: p})
	t.Do(agent.Request{Do: agent.DoDestroy, QP: gone.QP})
	w := p.Write(0, t.Bytes(8))
	w.BTH.DestQP, w.BTH.PSN = gone.QPN, gone.PSN
	p.Dropped(w)
	p.Holds(0, make([]byte, 8))
	gone.Silent()
}

// otherService sends packets of one service to queue pairs of the others.
func otherService(t *suite.T) {
	rc := t.Connect(suite.Options{Recvs: 2})
	for _, op := range []bth.Opcode{bth.UCSendOnly, bth.UCWriteOnly, bth.UDSendOnly} {
		w := rc.Write(0, t.Bytes(8))
		w.BTH.Opcode = op
		rc.Dropped(w)
	}
	rc.Holds(0, make([]byte, 8))
	rc.NothingReceived()
	uc := t.Connect(suite.Options{Type: "UC", Recvs: 2})
	ud := t.Connect(suite.Options{Type: "UD", Recvs: 2})
	for _, p := range []*suite.Peer{uc, ud} {
		w := p.Send(t.Bytes(8))
		w.BTH.Opcode = bth.RCSendOnly
		p.Put(w)
		right := p.Send(t.Bytes(4))
		p.Request(right)
		if got, want := p.Received(1).ByteLen, p.HeadRoom()+4; got != want {
			t.Failed(fmt.Sprintf("only the message of the right service, %d bytes", want), fmt.Sprintf("one of %d bytes", got))
		}
		p.Silent()
	}
}

func wrongPKeys(t *suite.T) {
	p := t.Connect(suite.Options{})
	t.Counts(3, func() {
		for _, key := range []bth.PKey{0x8001, 0, 0x1234} {
			w := p.Write(0, t.Bytes(8))
			w.BTH.PKey = key
			p.Dropped(w)
		}
	}, "bad_pkey", "pkey_violations", "drop_qp_pkey", "drop_qp_drop_pkey")
	p.Holds(0, make([]byte, 8))
}

func emittedBTH(t *suite.T) {
	_, frames := exchange(t)
	for _, f := range frames {
		h := f.RoCE.BTH().Fields()
		if h.TVer != 0 || h.Resv6 != 0 || h.Resv7 != 0 || h.PKey != bth.DefaultPKey {
			t.Failed("TVer 0, reserved bits 0, P_Key 0xffff", fmt.Sprintf("%d, %#x and %#x, %#x in %s",
				h.TVer, h.Resv6, h.Resv7, uint16(h.PKey), suite.Describe(f)))
		}
	}
}

func answeredBTH(t *suite.T) {
	p, frames := exchange(t)
	for _, f := range frames {
		if f.RoCE.Info.Request {
			continue
		}
		h := f.RoCE.BTH().Fields()
		if h.Solicited || h.AckReq || h.DestQP != p.Own {
			t.Failed(fmt.Sprintf("SE and A 0, to queue pair %v", p.Own), suite.Describe(f)+" to "+h.DestQP.String())
		}
	}
}

// congestion makes a congestion notification packet.
func congestion(p *suite.Peer) *wire.Packet {
	w := p.Write(0, nil)
	w.BTH = bth.BTHFields{Opcode: bth.CNP, PKey: bth.DefaultPKey, DestQP: p.QPN, BECN: true}
	return w
}

func cnp(t *suite.T) {
	p := t.Connect(suite.Options{})
	p.Dropped(congestion(p))
	p.State("RTS")
}

func undefinedOpcodes(t *suite.T) {
	p := t.Connect(suite.Options{})
	for _, op := range []bth.Opcode{0x80, 0xC0, 0xFF} {
		w := p.Write(0, t.Bytes(8))
		w.BTH.Opcode = op
		p.Dropped(w)
	}
	p.Holds(0, make([]byte, 8))
}

func oddCNP(t *suite.T) {
	p := t.Connect(suite.Options{})
	filled := congestion(p)
	for i := range filled.CNPReserved {
		filled.CNPReserved[i] = 0xAA
	}
	p.Dropped(filled)
	short := congestion(p)
	short.Roce = short.BTH.Append(nil)
	p.Dropped(short)
}

var icrcCases = []suite.Case{
	{ID: "CRC-01", Run: icrcShapes},
	{ID: "CRC-02", Run: flippedPayload},
	{ID: "CRC-03", Run: dropsWith(
		late(bthOffset+7, 1), late(bthOffset+11, 1), late(bthOffset+8, 0x80), late(bthOffset+3, 0x80),
		late(bthOffset+1, 0x80), late(bthOffset+1, 0x10))},
	{ID: "CRC-04", Run: flippedID},
	{ID: "CRC-05", Run: dropsWith(late(-7, 1))},
	{ID: "CRC-06", Run: dropsWith(func(w *wire.Packet) {
		w.ICRC = func(right uint32) []byte { return binary.BigEndian.AppendUint32(nil, right) }
	})},
	{ID: "CRC-07", Run: dropsWith(func(w *wire.Packet) { w.Late = withoutPrefix })},
	{ID: "CRC-08", Run: filledPad},
	{ID: "CRC-09", Run: oddLengths},
	{ID: "CRC-10", Run: secondCopy},
}

// bthOffset is the BTH's first byte as late counts; -8 is the UDP header's.
const bthOffset = 0

// late flips bits of a byte of the finished packet, counted from its BTH.
func late(offset int, bits byte) func(*wire.Packet) {
	return func(w *wire.Packet) {
		w.Late = func(ip []byte) { ip[ipHeader(ip)+8+offset] ^= bits }
	}
}

func ipHeader(ip []byte) int {
	if ip[0]>>4 == 6 {
		return 40
	}
	return int(ip[0]&0xF) * 4
}

// icrcShapes exchanges payloads of all alignments and several lengths in both directions, so that a wrong ICRC of either
// side for any shape shows.
func icrcShapes(t *suite.T) {
	p := t.Connect(suite.Options{})
	for _, n := range []int{0, 1, 2, 3, 4, 5, 16, 63, 64, 255, 512, 1023, 1024} {
		data := t.Bytes(n)
		w := p.Write(0, data)
		p.Request(w)
		p.Ack(w.BTH.PSN)
		r := p.Read(0, n)
		p.Request(r)
		t.Same("the data", data, p.ReadResponse(r.BTH.PSN, n))
	}
}

func flippedPayload(t *suite.T) {
	p := t.Connect(suite.Options{})
	t.Counts(1, func() {
		w := p.Write(0, t.Bytes(8))
		late(bth.BTHLen+bth.RETHLen, 1)(w)
		p.Dropped(w)
	}, "icrc", "icrc_errors", "drop_icrc", "rx_icrc_encapsulated")
	p.Holds(0, make([]byte, 8))
}

func flippedID(t *suite.T) {
	only4(t)
	dropsWith(func(w *wire.Packet) {
		w.Late = func(ip []byte) {
			ip[5] ^= 0x80
			ip[10], ip[11] = 0, 0
			binary.BigEndian.PutUint16(ip[10:], ^onesSum(ip[:20]))
		}
	})(t)
}

// withoutPrefix puts the CRC of the packet alone where the ICRC belongs: without the eight bytes of ones that stand for
// the local route header.
func withoutPrefix(ip []byte) {
	h := ipHeader(ip)
	b := append([]byte(nil), ip[:len(ip)-bth.ICRCLen]...)
	if h == 40 {
		b[0] |= 0x0F
		b[1], b[2], b[3], b[7] = 0xFF, 0xFF, 0xFF, 0xFF
	} else {
		b[1], b[8], b[10], b[11] = 0xFF, 0xFF, 0xFF, 0xFF
	}
	b[h+6], b[h+7], b[h+8+4] = 0xFF, 0xFF, 0xFF
	binary.LittleEndian.PutUint32(ip[len(ip)-bth.ICRCLen:], crc32.ChecksumIEEE(b))
}

func filledPad(t *suite.T) {
	p := t.Connect(suite.Options{})
	data := t.Bytes(5)
	w := p.Write(0, data)
	w.BTH.Pad, w.Pad = 3, []byte{0xA1, 0xA2, 0xA3}
	p.Request(w)
	p.Ack(w.BTH.PSN)
	p.Holds(0, append(data, 0, 0, 0))
}

func oddLengths(t *suite.T) {
	p := t.Connect(suite.Options{})
	for _, n := range []int{1, 2, 3, 5} {
		data := t.Bytes(n)
		p.Fill(0, data)
		p.PostSend(p.SendWR(uint64(n), "SEND", 0, n))
		f := p.Requested(bth.RCSendOnly)
		want := (4 - n%4) % 4
		if f.RoCE.Pad != want {
			t.Failed(fmt.Sprintf("%d pad bytes after %d", want, n), fmt.Sprint(f.RoCE.Pad))
		}
		t.Same("the pad bytes", make([]byte, want), f.RoCE.PadBytes())
		t.Same("the payload", data, f.RoCE.Payload)
		p.MSN++
		p.PutAck(f.RoCE.BTH().PSN())
		p.Sent(uint64(n))
	}
}

func secondCopy(t *suite.T) {
	p := t.Connect(suite.Options{})
	data := t.Bytes(8)
	bad := p.Write(0, data)
	bad.ICRC = func(right uint32) []byte { return bth.AppendICRC(nil, ^right) }
	p.Put(bad)
	w := p.Write(0, data)
	p.Request(w)
	if msn := p.Ack(w.BTH.PSN).RoCE.AETH().MSN(); msn != 1 {
		t.Failed("MSN 1: the copy is the first message", fmt.Sprint(msn))
	}
	p.Holds(0, data)
}

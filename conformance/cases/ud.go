package cases

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

var udCases = needing(agent.FeatureUD, []suite.Case{
	{ID: "UD-01", Run: func(t *suite.T) { only4(t); udHeader(t) }},
	{ID: "UD-02", Run: func(t *suite.T) { only6(t); udHeader(t) }},
	{ID: "UD-03", Run: udWrongQKey},
	{ID: "UD-04", Run: udSource},
	{ID: "UD-05", Run: udImmediate},
	{ID: "UD-06", Run: udAnyPSN},
	{ID: "UD-07", Run: udNoReceive},
	{ID: "UD-08", Run: udShortBuffer},
	{ID: "UD-09", Run: func(t *suite.T) { p := ud(t, 1); datagram(p, p.Send(nil), 1) }},
	{ID: "UD-10", Run: func(t *suite.T) { p := ud(t, 1); datagram(p, p.Send(t.Bytes(portMTU(t))), 1) }},
	{ID: "UD-11", Run: udTooLong},
	{ID: "UD-12", Run: udPrivilegedQKey},
	{ID: "UD-13", Run: udFirst},
	{ID: "UD-14", Needs: []string{agent.FeatureMulticast}, Run: multicast},
	{ID: "UD-15", Needs: []string{agent.FeatureMulticast}, Run: multicastNotAttached},
	{ID: "UD-16", Run: udAnySource},
	{ID: "UD-17", Needs: []string{agent.FeatureQP1}, Run: managementQKey},
	{ID: "UD-18", Run: udNoAck},
})

const grh = 40

func ud(t *suite.T, recvs int) *suite.Peer {
	return t.Connect(suite.Options{Type: "UD", Recvs: recvs, RecvSize: 8192})
}

// datagram sends one and proves that it is delivered into the receive with this id.
func datagram(p *suite.Peer, w *wire.Packet, id int) agent.WC {
	p.Request(w)
	return arrived(p, w, id)
}

// arrived takes the receive completion with this id, of this datagram.
func arrived(p *suite.Peer, w *wire.Packet, id int) agent.WC {
	wc := p.Received(uint64(id))
	if want := uint32(grh + len(w.Payload)); wc.ByteLen != want || !wc.GRH {
		p.T.Failed(fmt.Sprintf("byte_len %d and the GRH flag", want), fmt.Sprintf("%d, %v", wc.ByteLen, wc.GRH))
	}
	p.Holds(p.RecvOff(id-1)+grh, w.Payload)
	return wc
}

// portMTU is the largest path MTU whose datagrams the link carries.
func portMTU(t *suite.T) int {
	const headers = 40 + 8 + bth.BTHLen + bth.DETHLen + bth.ICRCLen
	for n := 4096; n > 256; n /= 2 {
		if n+headers <= t.Link.MTU() {
			return n
		}
	}
	return 256
}

func udHeader(t *suite.T) {
	p := ud(t, 1)
	datagram(p, p.Send(t.Bytes(4)), 1)
	sent, area := t.LastSent().IP, p.Memory(p.RecvOff(0), grh)
	if t.Link.Remote().Unmap().Is6() {
		t.Same("the network header's area", sent[:40], area)
		return
	}
	h := area[20:]
	t.Same("version, header length", sent[:1], h[:1])
	t.Same("total length", sent[2:4], h[2:4])
	t.Same("protocol", sent[9:10], h[9:10])
	t.Same("source and destination", sent[12:20], h[12:20])
	if sum := onesSum(h); sum != 0xFFFF {
		t.Notef("the stored header's checksum is not right")
	}
	if string(h) != string(sent[:20]) {
		t.Notef("the stored header differs from the sent one: % x, % x", h, sent[:20])
	}
}

func udWrongQKey(t *suite.T) {
	p := ud(t, 1)
	t.Counts(1, func() {
		w := p.Send(t.Bytes(8))
		w.DETH.QKey ^= 0x100
		p.Request(w)
		datagram(p, p.Send(t.Bytes(4)), 1)
	}, "bad_qkey", "qkey_violations", "drop_qp_qkey", "drop_qp_drop_qkey")
	p.Silent()
}

func udSource(t *suite.T) {
	p := ud(t, 1)
	w := p.Send(t.Bytes(8))
	w.DETH.SrcQP = 0xABCDE
	if wc := datagram(p, w, 1); wc.SrcQP != 0xABCDE {
		t.Failed("src_qp 0xabcde", fmt.Sprintf("%#x", wc.SrcQP))
	}
}

func udImmediate(t *suite.T) {
	p := ud(t, 1)
	w := p.Send(t.Bytes(8))
	w.BTH.Opcode = bth.UDSendOnlyImmediate
	w.ImmDt = bth.ImmDt{9, 8, 7, 6}
	if wc := datagram(p, w, 1); !wc.WithImm || wc.Imm != 0x09080706 {
		t.Failed("WITH_IMM 09080706", fmt.Sprintf("%v, %08x", wc.WithImm, wc.Imm))
	}
}

func udAnyPSN(t *suite.T) {
	p := ud(t, 3)
	for i, psn := range []bth.PSN{p.PSN.Add(1 << 22), p.PSN.Add(^uint32(99)), p.PSN.Add(1 << 22)} {
		w := p.Send(t.Bytes(8))
		w.BTH.PSN = psn
		datagram(p, w, i+1)
	}
}

func udNoReceive(t *suite.T) {
	p := ud(t, 0)
	p.Request(p.Send(t.Bytes(8)))
	p.Silent()
	p.PostRecvs(1)
	datagram(p, p.Send(t.Bytes(4)), 1)
	p.NothingReceived()
}

func udShortBuffer(t *suite.T) {
	p := t.Connect(suite.Options{Type: "UD", Recvs: 1, RecvSize: 43})
	p.Request(p.Send(t.Bytes(4)))
	wcs := t.Do(agent.Request{Do: agent.DoPoll, CQ: p.RecvCQ, N: 1, MS: int(t.Quiet.Milliseconds())}).WCs
	switch {
	case len(wcs) == 0:
		t.Notef("dropped")
	case wcs[0].Status != "LOC_LEN_ERR":
		t.Failed("LOC_LEN_ERR or nothing", wcs[0].Status)
	}
	p.Holds(p.RecvOff(0)+43, make([]byte, 16))
	if len(wcs) == 0 { // a datagram that is dropped takes no receive
		datagram(p, p.Send(t.Bytes(3)), 1)
	}
}

// sendUD posts a datagram of n bytes on the target to this end.
func sendUD(p *suite.Peer, id uint64, n int, qkey uint32) *agent.Error {
	ah := p.T.Do(agent.Request{Do: agent.DoAH, PD: p.PD, Path: p.T.Path()}).AH
	wr := p.SendWR(id, "SEND", 0, n)
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah, uint32(p.Own), qkey
	_, refusal := p.T.Try(agent.Request{Do: agent.DoSend, QP: p.QP, Sends: []agent.SendWR{wr}})
	return refusal
}

func udTooLong(t *suite.T) {
	p := ud(t, 0)
	if refusal := sendUD(p, 1, 4097, p.QKey()); refusal != nil {
		t.Notef("refused at the post: %s", refusal.Errno)
	} else if wc := p.Sent(1, "SUCCESS", "LOC_LEN_ERR"); wc.Status != "SUCCESS" {
		t.Notef("LOC_LEN_ERR")
	}
	p.Silent()
}

func udPrivilegedQKey(t *suite.T) {
	p := ud(t, 0)
	if refusal := sendUD(p, 1, 8, 0x80000001); refusal != nil {
		t.Fatalf("the post was refused: %v", refusal)
	}
	f := p.Next("a datagram")
	if h := f.RoCE.DETH(); h == nil || uint32(h.QKey()) != p.QKey() {
		t.Failed(fmt.Sprintf("the queue pair's Q_Key %#x", p.QKey()), suite.Describe(f))
	}
}

func udFirst(t *suite.T) {
	p := ud(t, 1)
	w := p.Send(t.Bytes(8))
	w.BTH.Opcode = 0x60
	w.Roce = append(w.DETH.Append(w.BTH.Append(nil)), w.Payload...)
	p.Put(w)
	datagram(p, p.Send(t.Bytes(4)), 1)
	p.NothingReceived()
}

// group is a multicast address of the run's family.
func group(t *suite.T) netip.Addr {
	n := byte(t.Rand.Uint32()%250 + 1)
	if t.Link.Remote().Unmap().Is6() {
		return netip.AddrFrom16([16]byte{0xFF, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x40, 0x1, 0x2, n})
	}
	return netip.AddrFrom4([4]byte{239, 77, 1, n})
}

func toGroup(p *suite.Peer, g netip.Addr) *wire.Packet {
	w := p.Send(p.T.Bytes(8))
	w.Dst, w.BTH.DestQP = g, bth.MulticastQPN
	return w
}

func multicast(t *suite.T) {
	a := ud(t, 1)
	b := t.Connect(suite.Options{Type: "UD", Recvs: 1, RecvSize: 8192, PD: a.PD})
	g := group(t)
	for _, p := range []*suite.Peer{a, b} {
		t.Do(agent.Request{Do: agent.DoAttach, QP: p.QP, GID: g.String()})
	}
	w := toGroup(a, g)
	a.Put(w)
	arrived(a, w, 1)
	arrived(b, w, 1)
	for _, p := range []*suite.Peer{a, b} {
		t.Do(agent.Request{Do: agent.DoDetach, QP: p.QP, GID: g.String()})
	}
}

func multicastNotAttached(t *suite.T) {
	p := ud(t, 1)
	other := t.Connect(suite.Options{Type: "UD", PD: p.PD})
	g := group(t)
	t.Do(agent.Request{Do: agent.DoAttach, QP: other.QP, GID: g.String()})
	p.Put(toGroup(p, g))
	datagram(p, p.Send(t.Bytes(4)), 1)
	p.NothingReceived()
	t.Do(agent.Request{Do: agent.DoDetach, QP: other.QP, GID: g.String()})
}

func udAnySource(t *suite.T) {
	p := ud(t, 1)
	w := p.Send(t.Bytes(8))
	w.Src = neighbour(t, t.Link.Local())
	datagram(p, w, 1)
}

func udNoAck(t *suite.T) {
	p := ud(t, 1)
	w := p.Send(t.Bytes(8))
	w.BTH.AckReq = true
	datagram(p, w, 1)
	p.Silent()
}

// sidr makes a datagram to queue pair 1 that asks which queue pair serves a service id that nobody serves (SIDR_REQ of the
// connection manager).
func sidr(p *suite.Peer, qkey bth.QKey, request uint32) *wire.Packet {
	mad := make([]byte, 256)
	mad[0], mad[1], mad[2], mad[3] = 1, 7, 2, 3 // versions, communication management, Send
	binary.BigEndian.PutUint64(mad[8:], uint64(request))
	binary.BigEndian.PutUint16(mad[16:], 0x17)
	binary.BigEndian.PutUint32(mad[24:], request)
	binary.BigEndian.PutUint16(mad[28:], uint16(bth.DefaultPKey))
	binary.BigEndian.PutUint64(mad[32:], 0x7FFF_FFFF_0000_0000|uint64(request))
	w := p.Send(mad)
	w.BTH.Opcode, w.BTH.DestQP = bth.UDSendOnly, 1
	w.DETH = bth.DETHFields{QKey: qkey, SrcQP: 1}
	return w
}

// managementQKey asks queue pair 1 twice, the first time with another Q_Key: the first answer is that to the second
// question.
func managementQKey(t *suite.T) {
	p := ud(t, 0)
	p.Put(sidr(p, 0x80010001, 1), sidr(p, bth.GSIQKey, 2))
	f := t.Stray(t.Wait, func(f *wire.Frame) bool {
		return f.RoCE.Has(bth.HasDETH) && f.RoCE.BTH().DestQP() == 1 && len(f.RoCE.Payload) == 256
	})
	if f == nil {
		t.Failed("an answer to the request with the right Q_Key", fmt.Sprintf("none within %v", t.Wait))
	}
	mad := f.RoCE.Payload
	if attr, id := binary.BigEndian.Uint16(mad[16:]), binary.BigEndian.Uint32(mad[24:]); attr != 0x18 || id != 2 {
		t.Failed("a SIDR_REP to request 2", fmt.Sprintf("attribute %#x, request %d", attr, id))
	}
}

package cases

import (
	"fmt"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

var writeCases = []suite.Case{
	{ID: "WRT-01", Run: func(t *suite.T) { writeMessage(t, 8) }},
	{ID: "WRT-02", Run: func(t *suite.T) { writeMessage(t, 2500) }},
	{ID: "WRT-03", Run: writeNothing},
	{ID: "WRT-04", Run: func(t *suite.T) { writeImmediate(t, 0) }},
	{ID: "WRT-05", Run: func(t *suite.T) { writeImmediate(t, 2500) }},
	{ID: "WRT-06", Run: writeNotReady},
	{ID: "WRT-07", Run: func(t *suite.T) { t.Connect(suite.Options{}).Alive() }},
	{ID: "WRT-08", Run: writeUnknownKey},
	{ID: "WRT-09", Run: func(t *suite.T) {
		p := t.Connect(suite.Options{MRAccess: []string{"LOCAL_WRITE", "REMOTE_READ"}})
		refused(p, p.Write(0, t.Bytes(8)), bth.NAKRemoteAccess)
	}},
	{ID: "WRT-10", Run: func(t *suite.T) {
		p := t.Connect(suite.Options{Access: []string{"REMOTE_READ"}})
		refused(p, p.Write(0, t.Bytes(8)), bth.NAKInvalidRequest, bth.NAKRemoteAccess)
	}},
	{ID: "WRT-11", Run: func(t *suite.T) { writeOutside(t, -1, 8) }},
	{ID: "WRT-12", Run: func(t *suite.T) { writeOutside(t, 8192-7, 8) }},
	{ID: "WRT-13", Run: func(t *suite.T) {
		refusedWrite(t, 8, func(w *wire.Packet) { w.RETH.VA = ^uint64(3) }, bth.NAKRemoteAccess)
	}},
	{ID: "WRT-14", Run: writeOtherPD},
	{ID: "WRT-15", Run: func(t *suite.T) {
		refusedWrite(t, 4, func(w *wire.Packet) { w.RETH.Length = 8 }, bth.NAKInvalidRequest)
	}},
	{ID: "WRT-16", Run: func(t *suite.T) {
		refusedWrite(t, 8, func(w *wire.Packet) { w.RETH.Length = 4 }, bth.NAKInvalidRequest)
	}},
	{ID: "WRT-17", Run: func(t *suite.T) {
		refusedMessage(t, bth.RCWriteOnly, 2048, 1, func(m []*wire.Packet) { m[0].RETH.Length = 2100 })
	}},
	{ID: "WRT-18", Run: writeTooMuch},
	{ID: "WRT-19", Run: writeTooLong},
	{ID: "WRT-20", Run: func(t *suite.T) { firstNotFull(t) }},
	{ID: "WRT-21", Run: func(t *suite.T) {
		refusedMessage(t, bth.RCWriteOnly, 3*1024, 1, func(m []*wire.Packet) { m[1].Payload = m[1].Payload[:1020] })
	}},
	{ID: "WRT-22", Run: writeEmptyLast},
	{ID: "WRT-23", Run: func(t *suite.T) { refusedWrite(t, 1028, nil, bth.NAKInvalidRequest) }},
	{ID: "WRT-24", Run: func(t *suite.T) {
		refusedMessage(t, bth.RCWriteOnly, 2*1024, 0, func(m []*wire.Packet) {
			m[0].Payload, m[0].BTH.Pad, m[0].Pad = m[0].Payload[:1023], 1, []byte{0}
		})
	}},
	{ID: "WRT-25", Needs: []string{agent.FeatureZeroBased}, Run: func(t *suite.T) { writeAt(t, nil, "ZERO_BASED") }},
	{ID: "WRT-26", Needs: []string{agent.FeatureIova}, Run: func(t *suite.T) { writeAt(t, new(uint64(0x7000_1234_0000))) }},
	{ID: "WRT-27", Run: func(t *suite.T) {
		refusedWrite(t, 8, func(w *wire.Packet) { w.RETH.RKey ^= 0x5A }, bth.NAKRemoteAccess)
	}},
	{ID: "WRT-28", Run: writeDeregistered},
}

// refused sends a request that must be refused with one of the syndromes and end the queue pair.
func refused(p *suite.Peer, w *wire.Packet, syndromes ...bth.Syndrome) {
	p.Request(w)
	p.Nak(w.BTH.PSN, syndromes...)
	p.Dead()
}

// refusedWrite sends a WRITE Only of n bytes, changed, that must be refused; no byte of the region may change.
func refusedWrite(t *suite.T, n int, change func(*wire.Packet), syndromes ...bth.Syndrome) {
	p := t.Connect(suite.Options{Recvs: 1})
	w := p.Write(0, t.Bytes(n))
	if change != nil {
		change(w)
	}
	refused(p, w, syndromes...)
	p.Holds(0, make([]byte, 2048))
}

// refusedMessage sends a message, changed, whose packet with this index must be refused as an invalid request.
func refusedMessage(t *suite.T, op bth.Opcode, n, index int, change func([]*wire.Packet)) *suite.Peer {
	p := t.Connect(suite.Options{Recvs: 2, RecvSize: 8192})
	m := p.Message(op, 0, t.Bytes(n))
	change(m)
	p.Request(m[:index+1]...)
	p.Nak(m[index].BTH.PSN, bth.NAKInvalidRequest)
	p.Dead()
	return p
}

func writeMessage(t *suite.T, n int) {
	p := t.Connect(suite.Options{Recvs: 1})
	data := t.Bytes(n)
	p.Request(p.Message(bth.RCWriteOnly, 100, data)...)
	msnIs(t, p.Ack(p.PSN.Add(^uint32(0))), 1)
	p.Holds(100, append(append([]byte(nil), data...), make([]byte, 16)...))
	p.Holds(84, make([]byte, 16))
	p.NothingReceived()
}

func writeNothing(t *suite.T) {
	p := t.Connect(suite.Options{})
	p.Alive(func(w *wire.Packet) { w.RETH.RKey, w.RETH.VA = ^p.MR.RKey, 0xDEAD })
}

func writeImmediate(t *suite.T, n int) {
	p := t.Connect(suite.Options{Recvs: 1, RecvSize: 4096})
	data := t.Bytes(n)
	m := p.Message(bth.RCWriteOnlyImmediate, 0, data)
	m[len(m)-1].ImmDt = bth.ImmDt{0xA, 0xB, 0xC, 0xD}
	p.Request(m...)
	p.Ack(p.PSN.Add(^uint32(0)))
	wc := p.Received(1)
	if wc.Op != "RECV_RDMA_WITH_IMM" || int(wc.ByteLen) != n || !wc.WithImm || wc.Imm != 0x0A0B0C0D {
		t.Failed(fmt.Sprintf("RECV_RDMA_WITH_IMM, byte_len %d, immediate 0a0b0c0d", n),
			fmt.Sprintf("%s, byte_len %d, WITH_IMM %v, %08x", wc.Op, wc.ByteLen, wc.WithImm, wc.Imm))
	}
	p.Holds(0, data)
	p.Holds(p.RecvOff(0), make([]byte, 4096))
}

func writeNotReady(t *suite.T) {
	p := t.Connect(suite.Options{MinRNRTimer: new(rnrTimer)})
	one := p.Packet(bth.RCWriteOnlyImmediate)
	one.Payload = t.Bytes(8)
	p.Put(one)
	p.Nak(one.BTH.PSN, bth.RNRSyndrome(rnrTimer))
	p.PostRecv(agent.RecvWR{ID: 1})
	p.Request(one)
	p.Ack(one.BTH.PSN)
	p.Received(1)
	p.Holds(0, one.Payload)

	data := t.Bytes(2500)
	m := p.Message(bth.RCWriteOnlyImmediate, 4096, data)
	last := m[len(m)-1]
	p.Request(m...)
	p.Nak(last.BTH.PSN, bth.RNRSyndrome(rnrTimer))
	p.PostRecv(agent.RecvWR{ID: 2})
	p.Put(last)
	p.Ack(last.BTH.PSN)
	p.Received(2)
	p.Holds(4096, data)
}

func writeUnknownKey(t *suite.T) {
	p := t.Connect(suite.Options{})
	w := p.Write(0, t.Bytes(8))
	w.RETH.RKey ^= 0x55AA00
	refused(p, w, bth.NAKRemoteAccess)
	noteEvent(t, "QP_ACCESS_ERR")
}

// noteEvent notes whether an event came that some devices do not raise.
func noteEvent(t *suite.T, name string) {
	if !t.Has(agent.FeatureEvents) {
		t.Notef("the target shows no events")
		return
	}
	for _, e := range t.Do(agent.Request{Do: agent.DoAsync, MS: int(t.Quiet.Milliseconds())}).Events {
		if e.Type == name {
			return
		}
	}
	t.Notef("no event %s", name)
}

// writeOutside writes at an offset of a region of 8 KiB that lies in a larger, known memory.
func writeOutside(t *suite.T, off, n int) {
	p := t.Connect(suite.Options{Length: 8192})
	w := p.Write(off, t.Bytes(n))
	refused(p, w, bth.NAKRemoteAccess)
	p.Holds(0, make([]byte, 8192))
}

func writeOtherPD(t *suite.T) {
	p := t.Connect(suite.Options{})
	pd := t.Do(agent.Request{Do: agent.DoPD}).PD
	foreign := t.Region(pd, 4096, "LOCAL_WRITE", "REMOTE_WRITE")
	w := p.Write(0, t.Bytes(8))
	w.RETH.VA, w.RETH.RKey = foreign.Addr, foreign.RKey
	refused(p, w, bth.NAKRemoteAccess)
	t.Same("the foreign region", make([]byte, 8), t.Memory(foreign, 0, 8))
}

// writeEmptyLast sends a Last without payload, of a message that its First has filled: the length leaves nothing to find
// fault with but the empty packet, or the First that says that more comes.
func writeEmptyLast(t *suite.T) {
	p := t.Connect(suite.Options{})
	m := p.Message(bth.RCWriteOnly, 0, t.Bytes(2*p.MTU))
	m[1].Payload, m[0].RETH.Length = nil, uint32(p.MTU)
	p.Request(m...)
	f := p.Next("a NAK invalid request")
	if f.RoCE.Opcode == bth.RCAcknowledge && f.RoCE.AETH().Syndrome() == bth.NAKInvalidRequest && f.RoCE.BTH().PSN() == m[0].BTH.PSN {
		t.Notef("the First is refused")
	} else if f.RoCE.Opcode != bth.RCAcknowledge || f.RoCE.AETH().Syndrome() != bth.NAKInvalidRequest || f.RoCE.BTH().PSN() != m[1].BTH.PSN {
		t.Failed("a NAK invalid request for the Last or the First", suite.Describe(f))
	}
	p.Dead()
}

func writeTooMuch(t *suite.T) {
	p := refusedMessage(t, bth.RCWriteOnly, 3*1024, 1, func(m []*wire.Packet) { m[0].RETH.Length = 1024 + 512 })
	p.Holds(1024+512, make([]byte, 512))
}

func writeTooLong(t *suite.T) {
	p := t.Connect(suite.Options{})
	m := p.Message(bth.RCWriteOnly, 0, t.Bytes(2*p.MTU))
	m[0].RETH.Length = 0x80000001
	refused(p, m[0], bth.NAKInvalidRequest)
}

func firstNotFull(t *suite.T) {
	for _, op := range []bth.Opcode{bth.RCWriteOnly, bth.RCSendOnly} {
		refusedMessage(t, op, 2*1024, 0, func(m []*wire.Packet) { m[0].Payload = m[0].Payload[:1020] })
	}
}

// writeAt writes into a region whose addresses are not those of its memory.
func writeAt(t *suite.T, iova *uint64, more ...string) {
	p := t.Connect(suite.Options{})
	rights := append([]string{"LOCAL_WRITE", "REMOTE_WRITE"}, more...)
	a := t.Do(agent.Request{Do: agent.DoMR, PD: p.PD, Length: 4096, Access: rights, Iova: iova})
	region := suite.Region{ID: a.MR, Addr: a.Addr, LKey: a.LKey, RKey: a.RKey, Length: 4096}
	if want := orZero(iova); a.Addr != want {
		t.Failed(fmt.Sprintf("the region to begin at %#x", want), fmt.Sprintf("%#x", a.Addr))
	}
	data := t.Bytes(16)
	w := p.Write(0, data)
	w.RETH.VA, w.RETH.RKey = region.Addr+256, region.RKey
	p.Request(w)
	p.Ack(w.BTH.PSN)
	t.Same("the region at offset 256", data, t.Memory(region, 256, 16))
	out := p.Write(0, data)
	out.RETH.VA, out.RETH.RKey = region.Addr+4096-8, region.RKey
	refused(p, out, bth.NAKRemoteAccess)
}

func orZero(v *uint64) uint64 {
	if v == nil {
		return 0
	}
	return *v
}

func writeDeregistered(t *suite.T) {
	p := t.Connect(suite.Options{})
	other := t.Region(p.PD, 4096, "LOCAL_WRITE", "REMOTE_WRITE")
	w := p.Write(0, t.Bytes(8))
	w.RETH.VA, w.RETH.RKey = other.Addr, other.RKey
	p.Request(w)
	p.Ack(w.BTH.PSN)
	t.Do(agent.Request{Do: agent.DoDestroy, MR: other.ID})
	again := p.Write(0, t.Bytes(8))
	again.RETH.VA, again.RETH.RKey = other.Addr, other.RKey
	refused(p, again, bth.NAKRemoteAccess)
}

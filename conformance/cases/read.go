package cases

import (
	"encoding/binary"
	"fmt"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/pkg/bth"
)

var readCases = []suite.Case{
	{ID: "RDR-01", Run: readOneByte},
	{ID: "RDR-02", Run: readNothing},
	{ID: "RDR-03", Run: func(t *suite.T) { readWhole(t, 1) }},
	{ID: "RDR-04", Run: readOneMore},
	{ID: "RDR-05", Run: readFour},
	{ID: "RDR-06", Run: readAdvances},
	{ID: "RDR-07", Run: readInside},
	{ID: "RDR-08", Run: readMSN},
	{ID: "RDR-09", Run: readBadKey},
	{ID: "RDR-10", Run: readRegionRight},
	{ID: "RDR-11", Run: readQPRight},
	{ID: "RDR-12", Run: readTooLong},
	{ID: "RDR-13", Run: readWithPayload},
	{ID: "RDR-14", Needs: []string{agent.FeatureEmptyRD}, Run: readNoResources},
	{ID: "RDR-15", Run: readOneTooMany},
	{ID: "RDR-16", Run: readThenSend},
	{ID: "RDR-17", Run: writeThenRead},
	{ID: "RDR-18", Run: readAcrossEnd},
	{ID: "RDR-19", Run: readUnasked},
	{ID: "RDR-20", Run: readDeregistered},
}

func readOneByte(t *suite.T) {
	p := t.Connect(suite.Options{})
	data := t.Bytes(1)
	p.Fill(3, data)
	w := p.Read(3, 1)
	p.Request(w)
	f := p.Next("a READ response")
	psn := f.RoCE.BTH().PSN()
	if f.RoCE.Opcode != bth.RCReadResponseOnly || f.RoCE.Pad != 3 || psn != w.BTH.PSN || !f.RoCE.AETH().Syndrome().IsACK() {
		t.Failed(fmt.Sprintf("READ response Only with PSN %v, an ACK syndrome and 3 pad bytes", w.BTH.PSN),
			fmt.Sprintf("%s, %d pad bytes", suite.Describe(f), f.RoCE.Pad))
	}
	t.Same("the payload", data, f.RoCE.Payload)
}

func readNothing(t *suite.T) {
	p := t.Connect(suite.Options{})
	w := p.Read(0, 0)
	w.RETH.RKey, w.RETH.VA = ^p.MR.RKey, 0xDEAD
	p.Request(w)
	p.ReadResponse(w.BTH.PSN, 0)
	p.Alive()
}

// readWhole reads whole packets and returns the peer.
func readWhole(t *suite.T, packets int) *suite.Peer {
	p := t.Connect(suite.Options{})
	data := t.Bytes(packets * p.MTU)
	p.Fill(0, data)
	w := p.Read(0, len(data))
	p.Request(w)
	t.Same("the data", data, p.ReadResponse(w.BTH.PSN, len(data)))
	return p
}

func readOneMore(t *suite.T) {
	p := t.Connect(suite.Options{})
	data := t.Bytes(p.MTU + 1)
	p.Fill(0, data)
	w := p.Read(0, len(data))
	p.Request(w)
	t.Same("the data", data, p.ReadResponse(w.BTH.PSN, len(data)))
}

// readFour relies on ReadResponse, and on the parser: by its opcode a Middle has no AETH, so that four bytes more would show as
// payload.
func readFour(t *suite.T) { readWhole(t, 4) }

func readAdvances(t *suite.T) {
	readWhole(t, 3).Alive()
}

func readInside(t *suite.T) {
	p := readWhole(t, 3)
	data := t.Bytes(8)
	before := p.Memory(0x2000, len(data))
	w := p.Write(0x2000, data)
	w.BTH.PSN = p.PSN.Add(^uint32(1)) // the READ's second PSN: n+1 of n to n+2
	p.Put(w)
	f := p.Next("the ACK of a duplicate")
	if !f.RoCE.Has(bth.HasAETH) || !f.RoCE.AETH().Syndrome().IsACK() {
		t.Failed("the ACK of a duplicate", suite.Describe(f))
	}
	p.Holds(0x2000, before)
	p.Alive()
}

func readMSN(t *suite.T) {
	p := t.Connect(suite.Options{})
	first := p.Read(0, 3*p.MTU)
	p.Request(first)
	last := bth.AETH(nil)
	for range 3 {
		if f := p.Next("a READ response"); f.RoCE.Has(bth.HasAETH) {
			last = f.RoCE.AETH()
		}
	}
	w := p.Write(0, nil)
	p.Request(w)
	next := p.Ack(w.BTH.PSN).RoCE.AETH()
	if last == nil || last.MSN() != 1 || next.MSN() != 2 {
		t.Failed("MSN 1 in the READ's last response and MSN 2 for the request after it",
			fmt.Sprintf("%v and %d", last, next.MSN()))
	}
}

// refusedRead sends a READ that must be refused with one of the syndromes, and proves that no byte of it came and that
// the queue pair is in error.
func refusedRead(p *suite.Peer, off, n int, change func(*bth.RETHFields), syndromes ...bth.Syndrome) {
	w := p.Read(off, n)
	if change != nil {
		change(&w.RETH)
	}
	p.Request(w)
	p.Nak(w.BTH.PSN, syndromes...)
	p.Dead()
}

func readBadKey(t *suite.T) {
	refusedRead(t.Connect(suite.Options{}), 0, 8, func(r *bth.RETHFields) { r.RKey ^= 0x55AA00 }, bth.NAKRemoteAccess)
}

func readRegionRight(t *suite.T) {
	p := t.Connect(suite.Options{MRAccess: []string{"LOCAL_WRITE", "REMOTE_WRITE"}})
	refusedRead(p, 0, 8, nil, bth.NAKRemoteAccess)
}

func readQPRight(t *suite.T) {
	p := t.Connect(suite.Options{Access: []string{"REMOTE_WRITE"}})
	refusedRead(p, 0, 8, nil, bth.NAKInvalidRequest, bth.NAKRemoteAccess)
}

func readTooLong(t *suite.T) {
	refusedRead(t.Connect(suite.Options{}), 0, 0x80000001, nil, bth.NAKInvalidRequest)
}

func readWithPayload(t *suite.T) {
	p := t.Connect(suite.Options{})
	w := p.Read(0, 8)
	w.Payload = t.Bytes(8)
	p.Put(w)
	switch f := p.NextOrNone(); {
	case f == nil:
		p.Alive()
	case f.RoCE.Opcode != bth.RCAcknowledge || f.RoCE.AETH().Syndrome() != bth.NAKInvalidRequest:
		t.Failed("a NAK invalid request or nothing", suite.Describe(f))
	}
}

func readNoResources(t *suite.T) {
	refusedRead(t.Connect(suite.Options{DestRdAtomic: new(0)}), 0, 8, nil, bth.NAKInvalidRequest)
}

func readOneTooMany(t *suite.T) {
	p := t.Connect(suite.Options{DestRdAtomic: new(2)})
	data := t.Bytes(3 * 8)
	p.Fill(0, data)
	began := p.PSN
	for i := range 3 {
		p.Request(p.Read(8*i, 8))
	}
	for i := range 3 {
		psn := began.Add(uint32(i))
		f := p.Next("a READ response or a NAK invalid request")
		if f.RoCE.Opcode == bth.RCAcknowledge && f.RoCE.AETH().Syndrome() == bth.NAKInvalidRequest && f.RoCE.BTH().PSN() == psn {
			p.Dead()
			return
		}
		if f.RoCE.Opcode != bth.RCReadResponseOnly || f.RoCE.BTH().PSN() != psn {
			t.Failed(fmt.Sprintf("a READ response Only with PSN %v", psn), suite.Describe(f))
		}
		t.Same("the data", data[8*i:8*i+8], f.RoCE.Payload)
	}
	p.Alive()
}

func readThenSend(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 1})
	read := p.Read(0, 4*p.MTU)
	p.Request(read)
	send := p.Send(t.Bytes(16))
	p.Request(send)
	p.ReadResponse(read.BTH.PSN, 4*p.MTU)
	p.Ack(send.BTH.PSN)
}

func writeThenRead(t *suite.T) {
	p := t.Connect(suite.Options{})
	var data [8]byte
	binary.BigEndian.PutUint64(data[:], t.Rand.Uint64())
	write := p.Write(0, data[:])
	write.BTH.AckReq = false
	p.Request(write)
	read := p.Read(0, 8)
	p.Request(read)
	for {
		f := p.Next("a READ response")
		if f.RoCE.Opcode == bth.RCAcknowledge && f.RoCE.BTH().PSN() == write.BTH.PSN {
			continue // nobody asked, but it may be sent
		}
		if f.RoCE.Opcode != bth.RCReadResponseOnly {
			t.Failed("a READ response Only", suite.Describe(f))
		}
		t.Same("what was read back", data[:], f.RoCE.Payload)
		return
	}
}

func readAcrossEnd(t *suite.T) {
	p := t.Connect(suite.Options{Length: 8192})
	refusedRead(p, p.MR.Length-8, 9, nil, bth.NAKRemoteAccess)
}

func readUnasked(t *suite.T) {
	p := t.Connect(suite.Options{})
	w := p.Read(0, 8)
	w.BTH.AckReq = false
	p.Request(w)
	p.ReadResponse(w.BTH.PSN, 8)
}

func readDeregistered(t *suite.T) {
	p := t.Connect(suite.Options{MTU: 256, Length: 1 << 20})
	data := t.Bytes(1 << 20)
	p.Fill(0, data)
	w := p.Read(0, len(data))
	p.Request(w)
	_, _ = p.T.Try(agent.Request{Do: agent.DoDestroy, MR: p.MR.ID})
	for got := 0; got < len(data); {
		f := p.Next("a READ response or a NAK remote access error")
		if f.RoCE.Opcode == bth.RCAcknowledge && f.RoCE.AETH().Syndrome() == bth.NAKRemoteAccess {
			return
		}
		end := min(got+len(f.RoCE.Payload), len(data))
		t.Same("the data", data[got:end], f.RoCE.Payload)
		got = end
	}
}

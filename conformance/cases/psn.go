package cases

import (
	"fmt"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

var psnCases = []suite.Case{
	{ID: "PSN-01", Run: func(t *suite.T) { gap(t) }},
	{ID: "PSN-02", Run: oneNakAGap},
	{ID: "PSN-03", Run: gapCloses},
	{ID: "PSN-04", Run: secondGap},
	{ID: "PSN-05", Run: duplicateInGap},
	{ID: "PSN-06", Run: farAhead},
	{ID: "PSN-07", Run: farBehind},
	{ID: "PSN-08", Run: wraps},
	{ID: "PSN-09", Run: readWraps},
	{ID: "PSN-10", Run: nakFields},
	{ID: "PSN-11", Run: func(t *suite.T) { duplicateSend(t, 2) }},
	{ID: "PSN-12", Run: func(t *suite.T) { duplicateSend(t, 1) }},
	{ID: "PSN-13", Run: duplicateWrite},
	{ID: "PSN-14", Run: duplicateWithoutKey},
	{ID: "PSN-15", Run: duplicateRead},
	{ID: "PSN-16", Run: duplicateTail},
	{ID: "PSN-17", Run: duplicateBeyond},
	{ID: "PSN-18", Run: duplicateOtherKey},
	{ID: "PSN-19", Run: duplicateKeepsPSN},
	{ID: "PSN-20", Run: duplicateFirst},
	{ID: "PSN-21", Run: twoDuplicates},
}

// gap sends a WRITE one PSN too far, takes the NAK and returns the WRITE.
func gap(t *suite.T) (*suite.Peer, *wire.Packet) {
	p := t.Connect(suite.Options{})
	w := p.Write(0, t.Bytes(8))
	w.BTH.PSN = p.PSN.Add(1)
	p.Put(w)
	p.Nak(p.PSN, bth.NAKSequence)
	p.Holds(0, make([]byte, 8))
	return p, w
}

func oneNakAGap(t *suite.T) {
	p, w := gap(t)
	for range 10 {
		w.BTH.PSN = w.BTH.PSN.Add(1)
		p.Put(w)
	}
	p.Alive()
}

func gapCloses(t *suite.T) {
	p, w := gap(t)
	p.Alive()
	p.Request(w)
	msnIs(t, p.Ack(w.BTH.PSN), 2)
	p.Holds(0, w.Payload)
}

func secondGap(t *suite.T) {
	p, w := gap(t)
	p.Alive()
	w.BTH.PSN = p.PSN.Add(3)
	p.Put(w)
	p.Nak(p.PSN, bth.NAKSequence)
	p.Alive()
}

func duplicateInGap(t *suite.T) {
	p := t.Connect(suite.Options{})
	first := p.Write(0, t.Bytes(8))
	p.Request(first)
	p.Ack(first.BTH.PSN)
	far := p.Write(8, t.Bytes(8))
	far.BTH.PSN = p.PSN.Add(1)
	p.Put(far)
	p.Nak(p.PSN, bth.NAKSequence)
	p.Put(first)
	p.Ack(first.BTH.PSN)
	p.Alive()
}

func farAhead(t *suite.T) {
	p := t.Connect(suite.Options{})
	w := p.Write(0, t.Bytes(8))
	w.BTH.PSN = p.PSN.Add(1<<23 - 1)
	p.Put(w)
	p.Nak(p.PSN, bth.NAKSequence)
	p.Alive()
	p.Holds(0, make([]byte, 8))
}

func farBehind(t *suite.T) {
	p := t.Connect(suite.Options{})
	p.Alive()
	w := p.Write(0, t.Bytes(8))
	w.BTH.PSN = p.PSN.Add(1 << 23)
	p.Put(w)
	f := p.Next("the ACK of a duplicate")
	if f.RoCE.Opcode != bth.RCAcknowledge || !f.RoCE.AETH().Syndrome().IsACK() {
		t.Failed("the ACK of a duplicate", suite.Describe(f))
	}
	p.Alive()
	p.Holds(0, make([]byte, 8))
}

func wraps(t *suite.T) {
	p := t.Connect(suite.Options{RQPSN: new(bth.PSN(0xFFFFFE)), Recvs: 5})
	for i := range 5 {
		data := t.Bytes(8)
		w := p.Send(data)
		p.Request(w)
		msnIs(t, p.Ack(w.BTH.PSN), uint32(i+1))
		delivered(p, i+1, data)
	}
}

func readWraps(t *suite.T) {
	p := t.Connect(suite.Options{RQPSN: new(bth.PSN(0xFFFFFE))})
	data := t.Bytes(4 * p.MTU)
	p.Fill(0, data)
	w := p.Read(0, len(data))
	p.Request(w)
	t.Same("the data", data, p.ReadResponse(w.BTH.PSN, len(data)))
	p.Alive()
}

func nakFields(t *suite.T) {
	p := t.Connect(suite.Options{})
	for range 3 {
		p.Alive()
	}
	w := p.Write(0, t.Bytes(8))
	w.BTH.PSN = p.PSN.Add(2)
	p.Put(w)
	f := p.Nak(p.PSN, bth.NAKSequence)
	h := f.RoCE.BTH().Fields()
	if h.AckReq || h.DestQP != p.Own || len(f.RoCE.Payload) != 0 {
		t.Failed(fmt.Sprintf("A 0, queue pair %v, no payload", p.Own), suite.Describe(f)+" to "+h.DestQP.String())
	}
	msnIs(t, f, 3)
}

// again sends a request that was executed once more and takes the ACK, which names the newest request.
func again(p *suite.Peer, w *wire.Packet, msn uint32) {
	p.Put(w)
	msnIs(p.T, p.Ack(p.PSN.Add(^uint32(0))), msn)
}

func duplicateSend(t *suite.T, recvs int) {
	p := t.Connect(suite.Options{Recvs: recvs})
	w := p.Send(t.Bytes(8))
	p.Request(w)
	p.Ack(w.BTH.PSN)
	delivered(p, 1, w.Payload)
	again(p, w, 1)
	p.Alive()
	p.NothingReceived()
}

func duplicateWrite(t *suite.T) {
	p := t.Connect(suite.Options{})
	data := t.Bytes(8)
	w := p.Write(0, data)
	p.Request(w)
	p.Ack(w.BTH.PSN)
	w.Payload = t.Bytes(8)
	again(p, w, 1)
	p.Holds(0, data)
}

func duplicateWithoutKey(t *suite.T) {
	p := t.Connect(suite.Options{})
	other := t.Region(p.PD, 4096, "LOCAL_WRITE", "REMOTE_WRITE")
	w := writeWith(p, other.RKey, 0, t.Bytes(8))
	w.RETH.VA = other.Addr
	p.Request(w)
	p.Ack(w.BTH.PSN)
	t.Do(agent.Request{Do: agent.DoDestroy, MR: other.ID})
	again(p, w, 1)
	p.Alive()
}

// readOnce reads three packets and returns the request.
func readOnce(t *suite.T) (p *suite.Peer, w *wire.Packet, data []byte) {
	p = t.Connect(suite.Options{})
	data = t.Bytes(3 * p.MTU)
	p.Fill(0, data)
	w = p.Read(0, len(data))
	p.Request(w)
	t.Same("the data", data, p.ReadResponse(w.BTH.PSN, len(data)))
	return p, w, data
}

func duplicateRead(t *suite.T) {
	p, w, data := readOnce(t)
	copy(data[10:], t.Bytes(8))
	p.Fill(0, data)
	p.Put(w)
	t.Same("the data, as they are now", data, p.ReadResponse(w.BTH.PSN, len(data)))
	p.Alive()
}

func duplicateTail(t *suite.T) {
	p, w, data := readOnce(t)
	w.BTH.PSN = w.BTH.PSN.Add(2)
	w.RETH.VA += uint64(2 * p.MTU)
	w.RETH.Length = uint32(p.MTU)
	p.Put(w)
	t.Same("the tail", data[2*p.MTU:], p.ReadResponse(w.BTH.PSN, p.MTU))
	p.Alive()
}

func duplicateBeyond(t *suite.T) {
	p, w, _ := readOnce(t)
	w.RETH.Length += uint32(p.MTU)
	p.Dropped(w)
}

func duplicateOtherKey(t *suite.T) {
	p, w, _ := readOnce(t)
	other := t.Region(p.PD, 128<<10, "LOCAL_WRITE", "REMOTE_READ")
	w.RETH.RKey = other.RKey
	p.Put(w)
	switch f := p.NextOrNone(); {
	case f == nil:
		p.Alive()
	case f.RoCE.Opcode != bth.RCAcknowledge || f.RoCE.AETH().Syndrome() != bth.NAKRemoteAccess:
		t.Failed("nothing or a NAK remote access error", suite.Describe(f))
	}
}

func duplicateKeepsPSN(t *suite.T) {
	p := t.Connect(suite.Options{})
	var sent []*wire.Packet
	for i := range 4 {
		w := p.Write(8*i, t.Bytes(8))
		p.Request(w)
		p.Ack(w.BTH.PSN)
		sent = append(sent, w)
	}
	again(p, sent[1], 4)
	next := p.Write(64, t.Bytes(8))
	p.Request(next)
	msnIs(t, p.Ack(next.BTH.PSN), 5)
	p.Holds(64, next.Payload)
}

func duplicateFirst(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 1, RecvSize: 4096})
	data := t.Bytes(3 * p.MTU)
	m := p.Message(bth.RCSendOnly, 0, data)
	p.Request(m[0])
	first := *m[0]
	first.Payload = t.Bytes(p.MTU)
	p.Put(&first)
	p.Request(m[1:]...)
	msnIs(t, p.Ack(m[2].BTH.PSN), 1)
	delivered(p, 1, data)
	p.NothingReceived()
}

func twoDuplicates(t *suite.T) {
	p := t.Connect(suite.Options{})
	a, b := p.Write(0, t.Bytes(8)), p.Write(8, t.Bytes(8))
	b.BTH.PSN = a.BTH.PSN.Add(1)
	p.Request(a, b)
	p.Ack(b.BTH.PSN)
	p.Put(a, b)
	answers := 0
	for range 2 {
		f := p.NextOrNone()
		if f == nil {
			break
		}
		if f.RoCE.Opcode != bth.RCAcknowledge || !f.RoCE.AETH().Syndrome().IsACK() {
			t.Failed("an ACK for one duplicate or for both", suite.Describe(f))
		}
		answers++
	}
	if answers == 0 {
		t.Failed("an ACK for one duplicate or for both", "none")
	}
	t.Notef("%d answers", answers)
	p.Alive()
}

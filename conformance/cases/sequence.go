package cases

import (
	"fmt"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

var sequenceCases = []suite.Case{
	{ID: "OPS-01", Run: badSequence(bth.RCSendMiddle)},
	{ID: "OPS-02", Run: badSequence(bth.RCSendLast)},
	{ID: "OPS-03", Run: badSequence(bth.RCSendFirst, bth.RCSendOnly)},
	{ID: "OPS-04", Run: badSequence(bth.RCSendFirst, bth.RCWriteMiddle)},
	{ID: "OPS-05", Run: badSequence(bth.RCWriteFirst, bth.RCSendLast)},
	{ID: "OPS-06", Run: badSequence(bth.RCWriteFirst, bth.RCReadRequest)},
	{ID: "OPS-07", Run: badSequence(bth.RCSendFirst, bth.RCFetchAdd)},
	{ID: "OPS-08", Run: badSequence(bth.RCSendFirst, bth.RCSendFirst)},
	{ID: "OPS-09", Run: func(t *suite.T) { badSequence(bth.RCWriteMiddle)(t); badSequence(bth.RCWriteLast)(t) }},
	{ID: "OPS-10", Needs: []string{agent.FeatureMW2, agent.FeatureInv}, Run: lastInvalidates},
	{ID: "OPS-11", Run: badSequence(bth.RCWriteFirst, bth.RCSendLastInvalidate)},
	{ID: "OPS-12", Run: reservedOpcode},
	{ID: "OPS-13", Run: nothingAfterError},
	{ID: "OPS-14", Run: flushedInOrder},
	{ID: "OPS-15", Run: abandonedFirst},
}

// badSequence sends packets with consecutive PSNs, of which the last must be refused as an invalid request.
func badSequence(ops ...bth.Opcode) func(*suite.T) {
	return func(t *suite.T) {
		p := t.Connect(suite.Options{Recvs: 4})
		for i, op := range ops {
			w := p.Packet(op)
			w.BTH.AckReq = i == len(ops)-1
			if w.RETH.Length = 8; op == bth.RCWriteFirst {
				w.RETH.Length = uint32(2 * p.MTU)
			}
			if info := op.Info(); info.Payload != bth.PayloadNone {
				w.Payload = t.Bytes(p.MTU)
				if op == bth.RCSendOnly {
					w.Payload = w.Payload[:8]
				}
			}
			p.Request(w)
			if i == len(ops)-1 {
				p.Nak(w.BTH.PSN, bth.NAKInvalidRequest)
			}
		}
		p.Dead()
	}
}

func lastInvalidates(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 1, RecvSize: 4096, MRAccess: bindable})
	_, rkey := window(p, 0, "REMOTE_WRITE")
	data := t.Bytes(2500)
	m := p.Message(bth.RCSendOnlyInvalidate, 0, data)
	m[len(m)-1].IETH.RKey = rkey
	p.Request(m...)
	p.Ack(p.PSN.Add(^uint32(0)))
	if wc := delivered(p, 1, data); !wc.WithInv || wc.Inv != rkey {
		t.Failed(fmt.Sprintf("a completion WITH_INV of key %#x", rkey), fmt.Sprintf("WITH_INV %v, %#x", wc.WithInv, wc.Inv))
	}
}

func reservedOpcode(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 1})
	w := p.Packet(0x18)
	w.Payload = t.Bytes(8)
	p.Put(w)
	switch f := p.NextOrNone(); {
	case f == nil:
		t.Notef("dropped")
		p.Alive()
	case f.RoCE.Opcode != bth.RCAcknowledge || f.RoCE.AETH().Syndrome() != bth.NAKInvalidRequest:
		t.Failed("a NAK invalid request or nothing", suite.Describe(f))
	}
	t.Do(agent.Request{Do: agent.DoQuery, QP: p.QP})
}

// inError brings a queue pair into the error state by a request that is refused.
func inError(p *suite.Peer) *wire.Packet {
	w := p.Packet(bth.RCSendLast)
	w.Payload = p.T.Bytes(8)
	p.Request(w)
	p.Nak(w.BTH.PSN, bth.NAKInvalidRequest)
	p.State("ERR")
	return w
}

func nothingAfterError(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 4})
	w := inError(p)
	p.Put(p.Send(t.Bytes(8)), p.Write(0, t.Bytes(8)), p.Read(0, 8), w)
	p.Silent()
	p.Holds(0, make([]byte, 8))
}

func flushedInOrder(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 4})
	inError(p)
	for i := range 4 {
		p.Received(uint64(i+1), "WR_FLUSH_ERR")
	}
}

func abandonedFirst(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 3})
	first := p.Packet(bth.RCSendFirst)
	first.Payload, first.BTH.AckReq = t.Bytes(p.MTU), false
	p.Request(first)
	w := p.Packet(bth.RCWriteMiddle)
	w.Payload = t.Bytes(p.MTU)
	p.Request(w)
	p.Nak(w.BTH.PSN, bth.NAKInvalidRequest)
	if s := p.Received(1, "WR_FLUSH_ERR", "REM_INV_REQ_ERR", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "REM_OP_ERR").Status; s != "WR_FLUSH_ERR" {
		t.Notef("the receive of the abandoned SEND ends with %s", s)
	}
	p.Received(2, "WR_FLUSH_ERR")
	p.Received(3, "WR_FLUSH_ERR")
}

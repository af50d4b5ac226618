package cases

import (
	"bytes"
	"fmt"
	"time"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

var ucCases = needing(agent.FeatureUC, []suite.Case{
	{ID: "UC-01", Run: func(t *suite.T) { ucSend(t, false) }},
	{ID: "UC-02", Run: func(t *suite.T) { ucSend(t, true) }},
	{ID: "UC-03", Run: ucGapInSend},
	{ID: "UC-04", Run: ucAfterGap},
	{ID: "UC-05", Run: ucGapInWrite},
	{ID: "UC-06", Run: ucDropsUntilFirst},
	{ID: "UC-07", Run: ucAbandoned},
	{ID: "UC-08", Run: ucNoReceive},
	{ID: "UC-09", Run: ucBadKey},
	{ID: "UC-10", Run: ucNoRight},
	{ID: "UC-11", Run: ucOtherOpcodes},
	{ID: "UC-12", Run: ucRequester},
	{ID: "UC-13", Run: ucTooLong},
})

// needing adds a feature to what each of the cases needs.
func needing(feature string, cases []suite.Case) []suite.Case {
	for i := range cases {
		cases[i].Needs = append(cases[i].Needs, feature)
	}
	return cases
}

func uc(t *suite.T, recvs int) *suite.Peer {
	return t.Connect(suite.Options{Type: "UC", Recvs: recvs, RecvSize: 4096})
}

// settled waits until the target has handled everything that was sent so far: a WRITE behind it has arrived.
func settled(p *suite.Peer) {
	mark := p.T.Bytes(8)
	off := p.MR.Length/2 - 8
	p.Request(p.Write(off, mark))
	p.T.Within("a WRITE to arrive", func() bool { return bytes.Equal(p.Memory(off, 8), mark) })
}

// next sends a SEND of one packet and proves that it is delivered into the receive with this id.
func nextDelivered(p *suite.Peer, id int) {
	data := p.T.Bytes(8)
	p.Request(p.Send(data))
	delivered(p, id, data)
}

func ucSend(t *suite.T, ackReq bool) {
	p := uc(t, 1)
	w := p.Send(t.Bytes(16))
	w.BTH.AckReq = ackReq
	p.Request(w)
	delivered(p, 1, w.Payload)
	p.Silent()
}

func ucGapInSend(t *suite.T) {
	p := uc(t, 2)
	m := p.Message(bth.RCSendOnly, 0, t.Bytes(3*p.MTU))
	p.Request(m[0], m[2])
	nextDelivered(p, 1)
	p.NothingReceived()
}

func ucAfterGap(t *suite.T) {
	p := uc(t, 3)
	p.PSN = p.PSN.Add(5)
	nextDelivered(p, 1)
	p.PSN = p.PSN.Add(7)
	data := t.Bytes(2500)
	p.Request(p.Message(bth.RCSendOnly, 0, data)...)
	delivered(p, 2, data)
	cut := p.Message(bth.RCSendOnly, 0, t.Bytes(3*p.MTU))
	p.Request(cut[0])
	p.PSN = p.PSN.Add(1)
	nextDelivered(p, 3)
}

func ucGapInWrite(t *suite.T) {
	p := uc(t, 2)
	m := p.Message(bth.RCWriteOnlyImmediate, 0, t.Bytes(3*p.MTU))
	p.Request(m[0], m[2])
	nextDelivered(p, 1)
	p.NothingReceived()
}

func ucDropsUntilFirst(t *suite.T) {
	p := uc(t, 1)
	m := p.Message(bth.RCWriteOnly, 0, t.Bytes(5*p.MTU))
	p.Request(m[0], m[2], m[3], m[4])
	settled(p)
	p.Holds(2*p.MTU, make([]byte, 3*p.MTU))
	nextDelivered(p, 1)
}

func ucAbandoned(t *suite.T) {
	p := uc(t, 2)
	m := p.Message(bth.RCSendOnly, 0, t.Bytes(2*p.MTU))
	p.Request(m[0])
	data := t.Bytes(8)
	p.Request(p.Send(data))
	wc := p.AnyReceived()
	if wc.Status != "SUCCESS" || int(wc.ByteLen) != len(data) {
		t.Failed("the second SEND to be delivered alone", fmt.Sprintf("request %d with status %s and %d bytes", wc.ID, wc.Status, wc.ByteLen))
	}
	p.Holds(p.RecvOff(int(wc.ID)-1), data)
}

func ucNoReceive(t *suite.T) {
	p := uc(t, 0)
	p.Request(p.Send(t.Bytes(8)))
	settled(p)
	p.PostRecvs(1)
	nextDelivered(p, 1)
}

// ucDropped sends what must be dropped, proves by a SEND behind it that the queue pair lives, and that nothing came back.
func ucDropped(p *suite.Peer, w *wire.Packet) {
	p.Request(w)
	nextDelivered(p, 1)
	p.Holds(0, make([]byte, 8))
	p.Silent()
	p.State("RTS")
}

func ucBadKey(t *suite.T) {
	p := uc(t, 1)
	w := p.Write(0, t.Bytes(8))
	w.RETH.RKey ^= 0x55AA00
	ucDropped(p, w)
}

func ucNoRight(t *suite.T) {
	p := t.Connect(suite.Options{Type: "UC", Recvs: 1, Access: suite.None})
	ucDropped(p, p.Write(0, t.Bytes(8)))
}

func ucOtherOpcodes(t *suite.T) {
	p := uc(t, 2)
	for _, op := range []bth.Opcode{bth.RCReadRequest, bth.RCFetchAdd, bth.RCCmpSwap} {
		w := p.Packet(op)
		w.Roce = w.Append(nil)
		if op == bth.RCReadRequest {
			w.Roce = w.RETH.Append(w.BTH.Append(nil))
		} else {
			w.Roce = w.AtomicETH.Append(w.BTH.Append(nil))
		}
		p.Put(w)
	}
	nextDelivered(p, 1)
	p.Silent()
	p.Holds(0, make([]byte, 8))
}

func ucRequester(t *suite.T) {
	p := uc(t, 0)
	data := t.Bytes(2500)
	p.Fill(0, data)
	p.PostSend(p.SendWR(1, "SEND", 0, len(data)), p.SendWR(2, "RDMA_WRITE", 0, 8))
	var got []byte
	for _, op := range []bth.Opcode{bth.RCSendFirst, bth.RCSendMiddle, bth.RCSendLast} {
		got = append(got, p.Requested(op).RoCE.Payload...)
	}
	t.Same("the SEND", data, got)
	t.Same("the WRITE", data[:8], p.Requested(bth.RCWriteOnly).RoCE.Payload)
	p.Sent(1)
	p.Sent(2)
}

func ucTooLong(t *suite.T) {
	p := t.Connect(suite.Options{Type: "UC", Recvs: 2, RecvSize: 64})
	p.Request(p.Send(t.Bytes(65)))
	settledOrError(p)
	p.Holds(p.RecvOff(0)+64, make([]byte, 1))
	if *p.Query().State != "RTS" {
		p.Received(1, "LOC_LEN_ERR", "REM_INV_REQ_ERR")
		t.Notef("the receive and the queue pair end in error")
		return
	}
	data := t.Bytes(8)
	p.Request(p.Send(data))
	wc := p.AnyReceived()
	if wc.Status == "LOC_LEN_ERR" {
		t.Notef("the receive ends with LOC_LEN_ERR, the queue pair goes on")
		wc = p.AnyReceived()
	}
	if wc.Status != "SUCCESS" || wc.ByteLen != 8 {
		t.Failed("the next SEND to be delivered", fmt.Sprintf("status %s, %d bytes", wc.Status, wc.ByteLen))
	}
	p.Holds(p.RecvOff(int(wc.ID)-1), data)
}

// settledOrError waits until a WRITE behind what was sent has arrived, or Quiet is over.
func settledOrError(p *suite.Peer) {
	mark := p.T.Bytes(8)
	off := p.MR.Length/2 - 8
	p.Request(p.Write(off, mark))
	for end := time.Now().Add(p.T.Quiet); time.Now().Before(end) && !bytes.Equal(p.Memory(off, 8), mark); {
		time.Sleep(time.Millisecond)
	}
}

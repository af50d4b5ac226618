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

var sendCases = []suite.Case{
	{ID: "SND-01", Run: func(t *suite.T) { sendOne(t, 0) }},
	{ID: "SND-02", Run: func(t *suite.T) { sendOne(t, 1024) }},
	{ID: "SND-03", Run: sendSeveral},
	{ID: "SND-04", Run: func(t *suite.T) { sendImmediate(t, 4) }},
	{ID: "SND-05", Run: func(t *suite.T) { sendImmediate(t, 2500) }},
	{ID: "SND-06", Run: func(t *suite.T) { sendSolicited(t, true) }},
	{ID: "SND-07", Run: func(t *suite.T) { sendSolicited(t, false) }},
	{ID: "SND-08", Run: sendUnasked},
	{ID: "SND-09", Run: sendMany},
	{ID: "SND-10", Run: sendTooLong},
	{ID: "SND-11", Run: sendIntoBadKey},
	{ID: "SND-12", Run: sendScattered},
	{ID: "SND-13", Run: func(t *suite.T) { notReady(t) }},
	{ID: "SND-14", Run: readyAgain},
	{ID: "SND-15", Run: behindNotReady},
	{ID: "SND-16", Run: oneReceiveForAll},
	{ID: "SND-17", Needs: []string{agent.FeatureMW2, agent.FeatureInv}, Run: sendInvalidate},
	{ID: "SND-18", Needs: []string{agent.FeatureInv}, Run: func(t *suite.T) {
		badInvalidate(t, func(p *suite.Peer) uint32 { return p.MR.RKey ^ 0x7F0000 })
	}},
	{ID: "SND-19", Needs: []string{agent.FeatureInv}, Run: func(t *suite.T) {
		badInvalidate(t, func(p *suite.Peer) uint32 { return p.MR.RKey })
	}},
	{ID: "SND-20", Run: ackAfterData},
}

// delivered takes the receive completion with this id and compares its message.
func delivered(p *suite.Peer, id int, data []byte) agent.WC {
	wc := p.Received(uint64(id))
	if wc.ByteLen != uint32(len(data)) {
		p.T.Failed(fmt.Sprintf("byte_len %d", len(data)), fmt.Sprint(wc.ByteLen))
	}
	p.Holds(p.RecvOff(id-1), data)
	return wc
}

// msnIs fails unless an acknowledgement carries this MSN.
func msnIs(t *suite.T, f *wire.Frame, want uint32) {
	if got := f.RoCE.AETH().MSN(); got != want {
		t.Failed(fmt.Sprintf("MSN %d", want), fmt.Sprintf("%d in %s", got, suite.Describe(f)))
	}
}

func sendOne(t *suite.T, n int) {
	p := t.Connect(suite.Options{Recvs: 1})
	data := t.Bytes(n)
	w := p.Send(data)
	p.Request(w)
	msnIs(t, p.Ack(w.BTH.PSN), 1)
	delivered(p, 1, data)
}

func sendSeveral(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 2, RecvSize: 4096})
	data := t.Bytes(2*p.MTU + p.MTU/2)
	p.Request(p.Message(bth.RCSendOnly, 0, data)...)
	msnIs(t, p.Ack(p.PSN.Add(^uint32(0))), 1)
	delivered(p, 1, data)
	p.NothingReceived()
	p.Alive()
}

func sendImmediate(t *suite.T, n int) {
	p := t.Connect(suite.Options{Recvs: 1, RecvSize: 4096})
	data := t.Bytes(n)
	packets := p.Message(bth.RCSendOnlyImmediate, 0, data)
	packets[len(packets)-1].ImmDt = bth.ImmDt{1, 2, 3, 4}
	p.Request(packets...)
	p.Ack(p.PSN.Add(^uint32(0)))
	wc := delivered(p, 1, data)
	if !wc.WithImm || wc.Imm != 0x01020304 {
		t.Failed("a completion with the immediate value 01 02 03 04", fmt.Sprintf("WITH_IMM %v, %08x", wc.WithImm, wc.Imm))
	}
}

func sendSolicited(t *suite.T, solicited bool) {
	p := t.Connect(suite.Options{Recvs: 1, Channel: true})
	t.Do(agent.Request{Do: agent.DoArm, CQ: p.RecvCQ, Solicited: true})
	data := t.Bytes(8)
	w := p.Send(data)
	w.BTH.Solicited = solicited
	p.Request(w)
	p.Ack(w.BTH.PSN)
	wait := t.Wait
	if !solicited {
		wait = t.Quiet
	}
	if got := t.Do(agent.Request{Do: agent.DoEvent, CQ: p.RecvCQ, MS: int(wait / time.Millisecond)}).Event; got != solicited {
		t.Failed(fmt.Sprintf("a completion event: %v", solicited), fmt.Sprint(got))
	}
	delivered(p, 1, data)
}

func sendUnasked(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 1})
	data := t.Bytes(8)
	w := p.Send(data)
	w.BTH.AckReq = false
	p.Request(w)
	delivered(p, 1, data)
	next := p.Write(0, nil)
	p.Request(next)
	p.Ack(next.BTH.PSN)
}

func sendMany(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 64, RecvSize: 64})
	var sent [][]byte
	for i := range 64 {
		data := t.Bytes(16)
		sent = append(sent, data)
		w := p.Send(data)
		w.BTH.AckReq = i == 63
		p.Request(w)
	}
	msnIs(t, p.Ack(p.PSN.Add(^uint32(0))), 64)
	for i, data := range sent {
		delivered(p, i+1, data)
	}
}

func sendTooLong(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 1, RecvSize: 64})
	w := p.Send(t.Bytes(65))
	p.Request(w)
	p.Nak(w.BTH.PSN, bth.NAKInvalidRequest)
	p.Received(1, "LOC_LEN_ERR", "REM_INV_REQ_ERR")
	p.Dead()
	p.Holds(p.RecvOff(0)+64, make([]byte, 64))
}

func sendIntoBadKey(t *suite.T) {
	p := t.Connect(suite.Options{})
	sge := p.SGE(p.RecvOff(0), 64)
	sge.LKey ^= 0x55AA00
	p.PostRecv(agent.RecvWR{ID: 1, SGEs: []agent.SGE{sge}})
	w := p.Send(t.Bytes(64))
	p.Request(w)
	p.Nak(w.BTH.PSN, bth.NAKRemoteOperational)
	p.Received(1, "LOC_PROT_ERR")
	p.Dead()
}

func sendScattered(t *suite.T) {
	p := t.Connect(suite.Options{})
	if t.Hello.MaxSGE > 0 && t.Hello.MaxSGE < 3 {
		t.Skipf("the device has %d scatter elements", t.Hello.MaxSGE)
	}
	a, b := p.RecvOff(0), p.RecvOff(1)
	p.PostRecv(agent.RecvWR{ID: 1, SGEs: []agent.SGE{p.SGE(a, 10), p.SGE(a+10, 0), p.SGE(b, 100)}})
	data := t.Bytes(50)
	w := p.Send(data)
	p.Request(w)
	p.Ack(w.BTH.PSN)
	p.Received(1)
	p.Holds(a, append(append([]byte(nil), data[:10]...), 0, 0))
	p.Holds(b, append(append([]byte(nil), data[10:]...), 0, 0))
}

// rnrTimer is the code that notReady asks for: 0.16 ms.
const rnrTimer = 8

// notReady sends to a queue pair without receives and takes the RNR NAK.
func notReady(t *suite.T) (*suite.Peer, *wire.Packet) {
	p := t.Connect(suite.Options{MinRNRTimer: new(rnrTimer)})
	w := p.Send(t.Bytes(16))
	p.Put(w)
	msnIs(t, p.Nak(w.BTH.PSN, bth.RNRSyndrome(rnrTimer)), 0)
	return p, w
}

func readyAgain(t *suite.T) {
	p, w := notReady(t)
	p.PostRecvs(2)
	p.Request(w)
	msnIs(t, p.Ack(w.BTH.PSN), 1)
	delivered(p, 1, w.Payload)
	p.Alive()
	p.NothingReceived()
}

func behindNotReady(t *suite.T) {
	p, w := notReady(t)
	for i := range uint32(4) {
		next := p.Send(t.Bytes(16))
		next.BTH.PSN = w.BTH.PSN.Add(i + 1)
		p.Put(next)
	}
	p.PostRecvs(2)
	p.Request(w)
	f := p.Next("the ACK of the SEND that is repeated")
	if f.RoCE.Opcode == bth.RCAcknowledge && f.RoCE.AETH().Syndrome() == bth.NAKSequence {
		t.Notef("one NAK PSN sequence error for what follows")
		if f.RoCE.BTH().PSN() == w.BTH.PSN { // else it came after the repeated SEND, and acknowledges that
			f = p.Next("the ACK of the SEND that is repeated")
		}
	}
	acked := isAckOf(f, w.BTH.PSN) || f.RoCE.Opcode == bth.RCAcknowledge && f.RoCE.AETH().Syndrome() == bth.NAKSequence &&
		f.RoCE.BTH().PSN() == w.BTH.PSN.Add(1)
	if !acked {
		t.Failed("no further NAK, and the ACK of the SEND that is repeated", suite.Describe(f))
	}
	delivered(p, 1, w.Payload)
	p.Alive()
	p.NothingReceived()
}

func oneReceiveForAll(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 1, RecvSize: 4096})
	data := t.Bytes(3 * p.MTU)
	for _, w := range p.Message(bth.RCSendOnly, 0, data) {
		w.BTH.AckReq = true
		p.Request(w)
		p.Ack(w.BTH.PSN)
	}
	delivered(p, 1, data)
}

// windowLen is the length of the windows that window makes.
const windowLen = 4096

// window makes a window of type 2 and binds it, by a request of p, to windowLen bytes at an offset of p's region.
func window(p *suite.Peer, off int, rights ...string) (mw int, rkey uint32) {
	a := p.T.Do(agent.Request{Do: agent.DoMW, PD: p.PD, Type: "2"})
	rkey = a.RKey&^0xFF | (a.RKey+1)&0xFF
	p.PostSend(agent.SendWR{
		ID: 1000, Op: "BIND_MW", Flags: suite.Signaled, MW: a.MW,
		Bind: &agent.Bind{MR: p.MR.ID, Addr: p.MR.Addr + uint64(off), Length: windowLen, Access: rights, RKey: rkey},
	})
	p.Sent(1000)
	return a.MW, rkey
}

// bindable are a region's rights for windows on it.
var bindable = []string{"LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC", "MW_BIND"}

// writeWith writes 8 bytes by another key.
func writeWith(p *suite.Peer, rkey uint32, off int, data []byte) *wire.Packet {
	w := p.Write(off, data)
	w.RETH.RKey = rkey
	return w
}

func sendInvalidate(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 1, MRAccess: bindable})
	_, rkey := window(p, 0, "REMOTE_WRITE")
	data := t.Bytes(8)
	w := writeWith(p, rkey, 16, data)
	p.Request(w)
	p.Ack(w.BTH.PSN)
	p.Holds(16, data)
	send := p.Packet(bth.RCSendOnlyInvalidate)
	send.IETH.RKey = rkey
	p.Request(send)
	p.Ack(send.BTH.PSN)
	if wc := p.Received(1); !wc.WithInv || wc.Inv != rkey {
		t.Failed(fmt.Sprintf("a completion WITH_INV of key %#x", rkey), fmt.Sprintf("WITH_INV %v, %#x", wc.WithInv, wc.Inv))
	}
	again := writeWith(p, rkey, 16, t.Bytes(8))
	p.Request(again)
	p.Nak(again.BTH.PSN, bth.NAKRemoteAccess)
	p.Holds(16, data)
}

// badInvalidate sends a SEND that invalidates what cannot be: the receive fails, and the queue pair with it; the sender is
// not told by a NAK.
func badInvalidate(t *suite.T, key func(*suite.Peer) uint32) {
	p := t.Connect(suite.Options{Recvs: 1})
	send := p.Packet(bth.RCSendOnlyInvalidate)
	send.IETH.RKey = key(p)
	send.Payload = t.Bytes(8)
	p.Request(send)
	wcs := t.Do(agent.Request{Do: agent.DoPoll, CQ: p.RecvCQ, N: 1, MS: int(t.Wait / time.Millisecond)}).WCs
	if len(wcs) != 1 || wcs[0].Status == "SUCCESS" {
		t.Failed("the receive to complete in error", fmt.Sprint(wcs))
	}
	p.State("ERR")
	// The target is through with the request now: a NAK would be on its way.
	if f := p.NextOrNone(); f != nil && !(f.RoCE.Has(bth.HasAETH) && f.RoCE.AETH().Syndrome().IsACK()) {
		t.Failed("no NAK", suite.Describe(f))
	}
}

func ackAfterData(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 32, RecvSize: 1024})
	for i := range 32 {
		data := t.Bytes(1024)
		w := p.Send(data)
		p.Request(w)
		p.Ack(w.BTH.PSN)
		wcs := t.Do(agent.Request{Do: agent.DoPoll, CQ: p.RecvCQ, N: 1}).WCs
		if len(wcs) != 1 || wcs[0].ID != uint64(i+1) {
			t.Failed("the completion to be there when the ACK has come", fmt.Sprint(wcs))
		}
		if got := p.Memory(p.RecvOff(i), 1024); !bytes.Equal(got, data) {
			t.Failed("the data to be in memory when the ACK has come", "something else")
		}
	}
}

package suite

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

// Requested takes the next packet of the target as a requester, which must have this opcode (of a reliable connection, or
// the like of the queue pair's service) and the PSN p.TargetPSN, and advances that: by one, for a READ by the number of
// packets of its answer.
func (p *Peer) Requested(op bth.Opcode) *wire.Frame {
	expected := fmt.Sprintf("%v with PSN %v", op+p.class, p.TargetPSN)
	f := p.Next(expected)
	if f.RoCE.Opcode != op+p.class || f.RoCE.BTH().PSN() != p.TargetPSN {
		p.T.Failed(expected, Describe(f))
	}
	n := 1
	if op == bth.RCReadRequest {
		n = max(1, (int(f.RoCE.RETH().Length())+p.MTU-1)/p.MTU)
	}
	p.TargetPSN = p.TargetPSN.Add(uint32(n))
	return f
}

// Repeated takes the next packet, which must have this opcode and PSN, wherever p.TargetPSN is: a request that is sent
// again.
func (p *Peer) Repeated(op bth.Opcode, psn bth.PSN) *wire.Frame {
	expected := fmt.Sprintf("%v with PSN %v once more", op+p.class, psn)
	f := p.Next(expected)
	if f.RoCE.Opcode != op+p.class || f.RoCE.BTH().PSN() != psn {
		p.T.Failed(expected, Describe(f))
	}
	return f
}

// Answer begins an answer to a request of the target with this PSN: an ACK without credits, and MSN p.MSN.
func (p *Peer) Answer(op bth.Opcode, psn bth.PSN) *wire.Packet {
	w := &wire.Packet{}
	w.BTH = bth.BTHFields{Opcode: op, PKey: bth.DefaultPKey, DestQP: p.QPN, PSN: psn}
	w.AETH = bth.AETHFields{Syndrome: bth.AckNoCredit, MSN: p.MSN & 0xFFFFFF}
	return w
}

// PutAck acknowledges the target's requests up to this PSN.
func (p *Peer) PutAck(psn bth.PSN) {
	p.Put(p.Answer(bth.RCAcknowledge, psn))
}

// PutNak sends a NAK or an RNR NAK.
func (p *Peer) PutNak(psn bth.PSN, s bth.Syndrome) {
	w := p.Answer(bth.RCAcknowledge, psn)
	w.AETH.Syndrome = s
	p.Put(w)
}

// Response makes the packets that answer a READ with these data, from this PSN on.
func (p *Peer) Response(psn bth.PSN, data []byte) []*wire.Packet {
	n := max(1, (len(data)+p.MTU-1)/p.MTU)
	out := make([]*wire.Packet, n)
	for i := range out {
		w := p.Answer(p.readOpcode(i, n), psn.Add(uint32(i)))
		w.Payload = data[i*p.MTU : min(len(data), (i+1)*p.MTU)]
		out[i] = w
	}
	return out
}

// PutAtomicAck answers an atomic with the original value.
func (p *Peer) PutAtomicAck(psn bth.PSN, original uint64) {
	w := p.Answer(bth.RCAtomicAcknowledge, psn)
	w.AtomicAckETH.Original = original
	p.Put(w)
}

// Reads is a READ request's offset in what the tester pretends to hold at base, and its length.
func Reads(f *wire.Frame, base uint64) (off, n int) {
	r := f.RoCE.RETH()
	return int(r.VA() - base), int(r.Length())
}

// Resent takes the next packet that carries this PSN: a request that is sent again because of a loss. Other repeats of what
// was sent before p.TargetPSN may come before it.
func (p *Peer) Resent(op bth.Opcode, psn bth.PSN) *wire.Frame {
	return p.passing(fmt.Sprintf("%v with PSN %v once more", op+p.class, psn), op, psn)
}

// Fresh is Requested, but that repeats of earlier requests may come before the packet.
func (p *Peer) Fresh(op bth.Opcode) *wire.Frame {
	f := p.passing(fmt.Sprintf("%v with PSN %v", op+p.class, p.TargetPSN), op, p.TargetPSN)
	p.Unread(f)
	return p.Requested(op)
}

func (p *Peer) passing(expected string, op bth.Opcode, psn bth.PSN) *wire.Frame {
	passed := "nothing"
	for end := time.Now().Add(p.T.Wait); ; {
		f := p.poll(time.Until(end))
		if f == nil {
			p.T.Failed(expected, fmt.Sprintf("%s within %v", passed, p.T.Wait))
		}
		switch got := f.RoCE.BTH().PSN(); {
		case got == psn && f.RoCE.Opcode == op+p.class:
			return f
		case got == psn || !got.Before(p.TargetPSN):
			p.T.Failed(expected, Describe(f))
		}
		passed = "nothing but " + Describe(f)
	}
}

// Waiting returns what has come to this end and was not taken yet, without waiting for more.
func (p *Peer) Waiting() []*wire.Frame {
	var out []*wire.Frame
	for {
		f := p.poll(0)
		if f == nil {
			return out
		}
		out = append(out, f)
	}
}

// Meanwhile proves like Alive that the queue pair works and has dealt with what was sent before, and returns what else came
// until the proof.
func (p *Peer) Meanwhile() []*wire.Frame {
	w := p.Write(0, nil)
	p.Request(w)
	var out []*wire.Frame
	for {
		f := p.Next(fmt.Sprintf("an ACK with PSN %v", w.BTH.PSN))
		if isAck(f) && f.RoCE.BTH().PSN() == w.BTH.PSN {
			return out
		}
		out = append(out, f)
	}
}

// Unread gives packets back that Meanwhile or Waiting took, so that they are the next ones.
func (p *Peer) Unread(frames ...*wire.Frame) {
	p.inbox = append(frames, p.inbox...)
}

// HostOrder is how a number lies in the target's memory. Every target there is has the low byte first.
func HostOrder(v uint64) []byte {
	return binary.LittleEndian.AppendUint64(nil, v)
}

package suite

import (
	"bytes"
	"fmt"
	"time"

	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

// Packet begins a request to the target's queue pair: the opcode of a reliable connection stands for the like of the queue
// pair's service. Its PSN is p.PSN, AckReq is set, a RETH or an AtomicETH names the region's first 8 bytes.
func (p *Peer) Packet(op bth.Opcode) *wire.Packet {
	w := &wire.Packet{}
	w.BTH = bth.BTHFields{Opcode: op + p.class, PKey: bth.DefaultPKey, DestQP: p.QPN, AckReq: true, PSN: p.PSN}
	w.RETH = bth.RETHFields{VA: p.MR.Addr, RKey: p.MR.RKey, Length: 8}
	w.AtomicETH = bth.AtomicETHFields{VA: p.MR.Addr, RKey: p.MR.RKey}
	w.DETH = bth.DETHFields{QKey: bth.QKey(p.QKey()), SrcQP: p.Own}
	return w
}

// Send makes a SEND of one packet.
func (p *Peer) Send(payload []byte) *wire.Packet {
	p.needMemory(1)
	w := p.Packet(bth.RCSendOnly)
	w.Payload = payload
	return w
}

// Write makes a WRITE of one packet to an offset of the region.
func (p *Peer) Write(off int, payload []byte) *wire.Packet {
	p.needMemory(len(payload))
	w := p.Packet(bth.RCWriteOnly)
	w.RETH.VA += uint64(off)
	w.RETH.Length = uint32(len(payload))
	w.Payload = payload
	return w
}

// Read makes a READ request for n bytes at an offset of the region.
func (p *Peer) Read(off, n int) *wire.Packet {
	p.needMemory(n)
	w := p.Packet(bth.RCReadRequest)
	w.RETH.VA += uint64(off)
	w.RETH.Length = uint32(n)
	return w
}

// FetchAdd and CmpSwap make atomics on an offset of the region.
func (p *Peer) FetchAdd(off int, add uint64) *wire.Packet {
	p.needMemory(8)
	w := p.Packet(bth.RCFetchAdd)
	w.AtomicETH.VA += uint64(off)
	w.AtomicETH.Swap = add
	return w
}

// CmpSwap makes a compare and swap on an offset of the region.
func (p *Peer) CmpSwap(off int, compare, swap uint64) *wire.Packet {
	p.needMemory(8)
	w := p.Packet(bth.RCCmpSwap)
	w.AtomicETH.VA += uint64(off)
	w.AtomicETH.Compare, w.AtomicETH.Swap = compare, swap
	return w
}

// Message makes the packets of a SEND (only is RCSendOnly or one of its kind) or of a WRITE to an offset (RCWriteOnly or its
// like): as many as the data needs at the path MTU, with consecutive PSNs from p.PSN and AckReq in the last one.
func (p *Peer) Message(only bth.Opcode, off int, data []byte) []*wire.Packet {
	p.needMemory(1)
	n := max(1, (len(data)+p.MTU-1)/p.MTU)
	out := make([]*wire.Packet, n)
	for i := range out {
		w := p.Packet(placed(only, i, n))
		w.BTH.PSN = p.PSN.Add(uint32(i))
		w.BTH.AckReq = i == n-1
		w.RETH.VA += uint64(off)
		w.RETH.Length = uint32(len(data))
		w.Payload = data[i*p.MTU : min(len(data), (i+1)*p.MTU)]
		out[i] = w
	}
	return out
}

// placed returns the opcode of packet i of n of a message whose only packet would have the given one.
func placed(only bth.Opcode, i, n int) bth.Opcode {
	write := only == bth.RCWriteOnly || only == bth.RCWriteOnlyImmediate
	first, last := bth.RCSendFirst, bth.RCSendLast
	if write {
		first, last = bth.RCWriteFirst, bth.RCWriteLast
	}
	switch {
	case n == 1:
		return only
	case i == 0:
		return first
	case i < n-1:
		return first + 1
	case only == bth.RCSendOnlyInvalidate:
		return bth.RCSendLastInvalidate
	case only == bth.RCSendOnlyImmediate || only == bth.RCWriteOnlyImmediate:
		return last + 1
	}
	return last
}

// Put sends packets as they are and changes nothing of the peer.
func (p *Peer) Put(packets ...*wire.Packet) {
	for _, w := range packets {
		if err := p.T.Link.Send(w); err != nil {
			p.T.Fatalf("the tester's link: %v", err)
		}
	}
}

// Request sends packets, and advances p.PSN past them: by one for each, for a READ by its answer's number of packets.
func (p *Peer) Request(packets ...*wire.Packet) {
	p.Put(packets...)
	for _, w := range packets {
		n := 1
		if w.BTH.Opcode == bth.RCReadRequest {
			n = max(1, (int(w.RETH.Length)+p.MTU-1)/p.MTU)
		}
		p.PSN = w.BTH.PSN.Add(uint32(n))
	}
}

// Next returns the next packet from the target to this end. None within Wait fails the case; so do a wrong ICRC and a
// packet that cannot be parsed.
func (p *Peer) Next(expected string) *wire.Frame {
	return p.NextWithin(p.T.Wait, expected)
}

// NextWithin is Next with a time of its own.
func (p *Peer) NextWithin(d time.Duration, expected string) *wire.Frame {
	f := p.poll(d)
	if f == nil {
		p.T.Failed(expected, fmt.Sprintf("nothing within %v", d))
	}
	return f
}

// poll returns the next packet to this end within d, nil for none.
func (p *Peer) poll(d time.Duration) *wire.Frame {
	deadline := time.Now().Add(d)
	for len(p.inbox) == 0 {
		if !p.T.receive(deadline) {
			return nil
		}
	}
	f := p.inbox[0]
	p.inbox = p.inbox[1:]
	if f.Err != nil {
		p.T.Fatalf("the target sent a packet that does not parse: %v", f.Err)
	}
	if !f.ICRCOK {
		p.T.Fatalf("the target sent a packet with a wrong ICRC: %s", Describe(f))
	}
	return f
}

// receive takes one frame from the link to whom it belongs; false when none came until the deadline.
func (t *T) receive(deadline time.Time) bool {
	f, ok, err := t.Link.Receive(deadline)
	if err != nil {
		t.Fatalf("the tester's link: %v", err)
	}
	if !ok {
		return false
	}
	if b := f.RoCE.BTH(); !f.NotUDP && b != nil {
		if p := t.peers[b.DestQP()]; p != nil {
			p.inbox = append(p.inbox, f)
			return true
		}
	}
	t.strays = append(t.strays, f)
	return true
}

// Strays returns the frames that came to no peer of the case so far: ICMP messages, packets to unknown queue pairs.
func (t *T) Strays() []*wire.Frame { return t.strays }

// Silent fails if anything comes to this end within Quiet.
func (p *Peer) Silent() {
	if f := p.poll(p.T.Quiet); f != nil {
		p.T.Failed("nothing", Describe(f))
	}
}

// Alive proves that the queue pair works and that everything sent before was either answered, with answers that the case
// has taken, or dropped: it sends a WRITE of no bytes at p.PSN, and the very next packet must acknowledge it. Changes are
// made to the WRITE first.
func (p *Peer) Alive(changes ...func(*wire.Packet)) {
	w := p.Write(0, nil)
	for _, change := range changes {
		change(w)
	}
	p.Request(w)
	expected := fmt.Sprintf("the next answer to be the ACK of the following request, PSN %v", w.BTH.PSN)
	f := p.Next(expected)
	if !isAck(f) || f.RoCE.BTH().PSN() != w.BTH.PSN {
		p.T.Failed(expected, Describe(f))
	}
}

// Dropped sends packets that the target must drop without a word, and proves it by a READ of no bytes at p.PSN: the very
// next packet must answer that. Had a packet been executed in its place, an ACK would come.
func (p *Peer) Dropped(packets ...*wire.Packet) {
	p.Put(packets...)
	w := p.Read(0, 0)
	p.Request(w)
	expected := fmt.Sprintf("the next answer to be that to the following READ, PSN %v", w.BTH.PSN)
	f := p.Next(expected)
	if f.RoCE.Opcode != bth.RCReadResponseOnly || f.RoCE.BTH().PSN() != w.BTH.PSN {
		p.T.Failed(expected, Describe(f))
	}
}

// Dead proves that the queue pair answers nothing any more, and is in the error state.
func (p *Peer) Dead() {
	p.State("ERR")
	p.Put(p.Write(0, nil))
	p.Silent()
}

func isAck(f *wire.Frame) bool {
	return f.RoCE.Opcode == bth.RCAcknowledge && f.RoCE.AETH().Syndrome().IsACK()
}

// Ack takes the ACK with this PSN; those of earlier requests, of which nobody has to send one, may come before it.
func (p *Peer) Ack(psn bth.PSN) *wire.Frame {
	expected := fmt.Sprintf("an ACK with PSN %v", psn)
	for {
		f := p.Next(expected)
		if !isAck(f) || f.RoCE.BTH().PSN().After(psn) {
			p.T.Failed(expected, Describe(f))
		}
		if f.RoCE.BTH().PSN() == psn {
			return f
		}
	}
}

// Nak takes the next packet, which must be a NAK (or RNR NAK) with this PSN and one of these syndromes.
func (p *Peer) Nak(psn bth.PSN, syndromes ...bth.Syndrome) *wire.Frame {
	expected := fmt.Sprintf("%v with PSN %v", syndromes[0], psn)
	f := p.Next(expected)
	if f.RoCE.Opcode == bth.RCAcknowledge && f.RoCE.BTH().PSN() == psn {
		for _, s := range syndromes {
			if f.RoCE.AETH().Syndrome() == s {
				return f
			}
		}
	}
	p.T.Failed(expected, Describe(f))
	return nil
}

// ReadResponse takes the answer to a READ of n bytes, whose first packet has this PSN: right opcodes, PSNs and lengths.
func (p *Peer) ReadResponse(psn bth.PSN, n int) []byte {
	var data []byte
	packets := max(1, (n+p.MTU-1)/p.MTU)
	for i := range packets {
		op := p.readOpcode(i, packets)
		expected := fmt.Sprintf("%v with PSN %v", op, psn.Add(uint32(i)))
		f := p.Next(expected)
		want := min(n-i*p.MTU, p.MTU)
		if f.RoCE.Opcode != op || f.RoCE.BTH().PSN() != psn.Add(uint32(i)) || len(f.RoCE.Payload) != want {
			p.T.Failed(fmt.Sprintf("%s and %d bytes", expected, want), Describe(f))
		}
		data = append(data, f.RoCE.Payload...)
	}
	return data
}

func (p *Peer) readOpcode(i, n int) bth.Opcode {
	switch {
	case n == 1:
		return bth.RCReadResponseOnly
	case i == 0:
		return bth.RCReadResponseFirst
	case i == n-1:
		return bth.RCReadResponseLast
	}
	return bth.RCReadResponseMiddle
}

// AtomicAck takes the answer to an atomic and returns the original value.
func (p *Peer) AtomicAck(psn bth.PSN) uint64 {
	expected := fmt.Sprintf("an atomic acknowledge with PSN %v", psn)
	f := p.Next(expected)
	if f.RoCE.Opcode != bth.RCAtomicAcknowledge || f.RoCE.BTH().PSN() != psn {
		p.T.Failed(expected, Describe(f))
	}
	return f.RoCE.AtomicAckETH().Fields().Original
}

// Bytes returns n bytes that are the case's own.
func (t *T) Bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(t.Rand.Uint32())
	}
	return b
}

// Same fails unless two byte strings are equal.
func (t *T) Same(what string, want, got []byte) {
	if bytes.Equal(want, got) {
		return
	}
	i := 0
	for i < len(want) && i < len(got) && want[i] == got[i] {
		i++
	}
	t.Fatalf("%s: expected %d bytes, got %d; they differ from byte %d on: expected %s, got %s",
		what, len(want), len(got), i, some(want[i:]), some(got[i:]))
}

func some(b []byte) string {
	if len(b) > 8 {
		return fmt.Sprintf("% x ...", b[:8])
	}
	return fmt.Sprintf("% x", b)
}

// within polls a condition until it holds, for Wait at most.
func (t *T) within(f func() bool) bool {
	for began := time.Now(); ; {
		if f() {
			return true
		}
		if time.Since(began) > t.Wait {
			return false
		}
		time.Sleep(time.Millisecond)
	}
}

// NextOrNone returns the next packet to this end, nil when none came within Quiet.
func (p *Peer) NextOrNone() *wire.Frame { return p.poll(p.T.Quiet) }

// LastSent returns the last frame that the tester sent, nil before the first.
func (t *T) LastSent() *wire.Frame {
	for i := len(t.res.Frames) - 1; i >= 0; i-- {
		if t.res.Frames[i].Dir == wire.Sent {
			return t.res.Frames[i]
		}
	}
	return nil
}

// Within polls a condition until it holds, and fails with what was expected if it does not within Wait.
func (t *T) Within(expected string, f func() bool) {
	if !t.within(f) {
		t.Failed(expected, fmt.Sprintf("not so within %v", t.Wait))
	}
}

// Stray waits for a frame that is to none of the case's queue pairs and for which wanted holds; none within d is nil.
func (t *T) Stray(d time.Duration, wanted func(*wire.Frame) bool) *wire.Frame {
	for deadline := time.Now().Add(d); ; {
		for i, f := range t.strays {
			if wanted(f) {
				t.strays = append(t.strays[:i:i], t.strays[i+1:]...)
				return f
			}
		}
		if !t.receive(deadline) {
			return nil
		}
	}
}

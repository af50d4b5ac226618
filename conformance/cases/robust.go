package cases

import (
	"fmt"
	"slices"
	"time"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

var robustCases = []suite.Case{
	{ID: "ROB-01", Run: randomBytes},
	{ID: "ROB-02", Run: everyOpcode},
	{ID: "ROB-03", Run: reorderedSends},
	{ID: "ROB-04", Run: everythingTwice},
	{ID: "ROB-05", Run: eachPacketLost},
	{ID: "ROB-06", Run: randomLoss},
	{ID: "ROB-07", Run: lateAnswers},
	{ID: "ROB-08", Run: bothDirections},
	{ID: "ROB-09", Run: manyQueuePairs},
	{ID: "ROB-10", Run: everyMTU},
	{ID: "ROB-11", Run: hugeMessage},
	{ID: "ROB-12", Run: anyFamily},
}

var robustNotTestable = []suite.Untestable{
	{ID: "ROB-13", Reason: "two targets against each other: the interoperability lab does it (conformance/interop)"},
	{ID: "ROB-14", Reason: "needs the counters of a hardware adapter that the target talks to"},
}

// randomBytes sends datagrams of random bytes, half of them with a right ICRC and to a queue pair that exists; another
// queue pair must not notice.
func randomBytes(t *suite.T) {
	const datagrams = 20000
	p, victim := t.Connect(suite.Options{}), t.Connect(suite.Options{Recvs: 4})
	for i := range datagrams {
		w := victim.Write(0, nil)
		w.Roce = t.Bytes(t.Rand.IntN(80))
		if i%2 == 0 {
			w.ICRC = func(uint32) []byte { return t.Bytes(4) }
		} else if len(w.Roce) >= bth.BTHLen {
			copy(w.Roce[4:8], w.BTH.Append(nil)[4:8]) // a destination that exists, and 0 where the reserved bits are
		}
		p.Put(w)
		if i%250 == 249 {
			answersStill(p)
		}
	}
	t.Notef("%d datagrams", datagrams)
	for p.NextOrNone() != nil { // answers to what was sent twice
	}
	p.Alive()
}

// answersStill waits until a WRITE of no bytes is acknowledged. In a flood it may be lost, and is sent again.
func answersStill(p *suite.Peer) {
	w := p.Write(0, nil)
	for began := time.Now(); time.Since(began) < 5*p.T.Wait; {
		p.Put(w)
		for {
			f := p.NextOrNone()
			if f == nil {
				break
			}
			if isAckOf(f, w.BTH.PSN) {
				p.PSN = w.BTH.PSN.Add(1)
				return
			}
		}
	}
	p.T.Failed("the other queue pair to answer still", "nothing")
}

// everyOpcode sends each opcode with the least length to a reliable connection: those of its service may be executed or
// refused, all others are dropped.
func everyOpcode(t *suite.T) {
	p := t.Connect(suite.Options{})
	for op := 0x20; op < 0x100; op++ {
		p.Put(leastPacket(p, bth.Opcode(op)))
	}
	p.Alive()
	answers := []bth.Opcode{bth.RCAcknowledge, bth.RCAtomicAcknowledge, bth.RCReadResponseOnly}
	for op := range bth.Opcode(0x20) {
		q := t.Connect(suite.Options{Share: p, Recvs: 1})
		q.Put(leastPacket(q, op))
		if f := q.NextOrNone(); f != nil && !slices.Contains(answers, f.RoCE.Opcode) {
			t.Failed(fmt.Sprintf("to opcode %#02x an acknowledgement, a NAK or nothing", uint8(op)), suite.Describe(f))
		}
		if s := *q.Query().State; s != "RTS" && s != "ERR" {
			t.Failed("the queue pair in RTS or ERR after opcode "+fmt.Sprintf("%#02x", uint8(op)), s)
		}
		t.Do(agent.Request{Do: agent.DoDestroy, QP: q.QP})
	}
	p.Alive()
}

func leastPacket(p *suite.Peer, op bth.Opcode) *wire.Packet {
	w := p.Packet(bth.RCWriteOnly)
	w.BTH.Opcode, w.RETH.Length = op, 0
	return w
}

func reorderedSends(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 2})
	a, b := p.Send(t.Bytes(8)), p.Send(t.Bytes(12))
	b.BTH.PSN = a.BTH.PSN.Add(1)
	p.Put(b)
	p.Nak(a.BTH.PSN, bth.NAKSequence)
	p.Put(a)
	p.Ack(a.BTH.PSN)
	p.Request(b)
	p.Ack(b.BTH.PSN)
	delivered(p, 1, a.Payload)
	delivered(p, 2, b.Payload)
	p.Alive()
	p.NothingReceived()
}

func everythingTwice(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 2})
	twice := func(w *wire.Packet) {
		p.Put(w)
		p.Request(w)
	}
	send, add := p.Send(t.Bytes(8)), p.FetchAdd(0, 3)
	twice(send)
	p.Ack(send.BTH.PSN)
	add.BTH.PSN = p.PSN
	twice(add)
	skipAcks(p, func(f *wire.Frame) bool { return f.RoCE.Opcode == bth.RCAtomicAcknowledge })
	write := p.Write(64, t.Bytes(8))
	twice(write)
	skipAcks(p, func(f *wire.Frame) bool { return isAckOf(f, write.BTH.PSN) })
	for _, f := range p.Meanwhile() { // the second one is answered on its own, or not
		if !isAckOf(f, write.BTH.PSN) {
			t.Failed("an ACK of the last request or nothing", suite.Describe(f))
		}
	}
	delivered(p, 1, send.Payload)
	p.NothingReceived()
	p.Holds(0, number(3))
	p.Holds(64, write.Payload)

	p.PostSend(p.SendWR(1, "SEND", 0, 8), p.SendWR(2, "RDMA_READ", 128, 8))
	first := p.TargetPSN
	requests := 0
	skipAcks(p, func(f *wire.Frame) bool { // the duplicates' ACKs may come in between
		if f.RoCE.Info.Request {
			requests++
		}
		return requests == 2
	})
	p.MSN++
	p.PutAck(first)
	p.PutAck(first)
	p.MSN++
	data := t.Bytes(8)
	p.Put(p.Response(first.Add(1), data)...)
	p.Put(p.Response(first.Add(1), data)...)
	p.Sent(1)
	p.Sent(2)
	p.NothingSent()
	p.Holds(128, data)
}

func isAckOf(f *wire.Frame, psn bth.PSN) bool {
	return f.RoCE.Opcode == bth.RCAcknowledge && f.RoCE.AETH().Syndrome().IsACK() && f.RoCE.BTH().PSN() == psn
}

// skipAcks takes packets until one is wanted; a NAK among them fails the case.
func skipAcks(p *suite.Peer, wanted func(*wire.Frame) bool) {
	for {
		f := p.Next("an answer")
		if wanted(f) {
			return
		}
		if f.RoCE.Has(bth.HasAETH) && !f.RoCE.AETH().Syndrome().IsACK() {
			p.T.Failed("no NAK", suite.Describe(f))
		}
	}
}

// mix makes a run of messages of all kinds, with the PSNs that they have in a row, and proves afterwards what they did.
func mix(p *suite.Peer) (packets []*wire.Packet, check func()) {
	t := p.T
	data, small := t.Bytes(2500), t.Bytes(8)
	add := func(more ...*wire.Packet) {
		for _, w := range more {
			packets = append(packets, w)
			n := uint32(1)
			if w.BTH.Opcode == bth.RCReadRequest {
				n = (w.RETH.Length + uint32(p.MTU) - 1) / uint32(p.MTU)
			}
			p.PSN = w.BTH.PSN.Add(n)
		}
	}
	began := p.PSN
	add(p.Message(bth.RCSendOnly, 0, data)...)
	add(p.Message(bth.RCWriteOnly, 4096, data)...)
	add(p.Read(4096, len(data)))
	add(p.FetchAdd(0, 7))
	add(p.Write(8192, small))
	p.PSN = began
	return packets, func() {
		delivered(p, 1, data)
		p.NothingReceived()
		p.Holds(4096, data)
		p.Holds(0, number(7))
		p.Holds(8192, small)
	}
}

// carry sends packets as a requester that goes back to the first packet that the target asks for, and leaves out those for
// which lost says so. It returns when the last packet, a WRITE Only, is acknowledged.
func carry(p *suite.Peer, packets []*wire.Packet, lost func(*wire.Packet) bool) {
	last := packets[len(packets)-1].BTH.PSN
	from := 0
	for range 1000 {
		for _, w := range packets[from:] {
			w.BTH.AckReq = true
			if !lost(w) {
				p.Put(w)
			}
		}
		for {
			f := p.NextOrNone()
			if f == nil {
				break // everything behind the last packet that arrived was lost: send from the start of the window again
			}
			switch {
			case isAckOf(f, last):
				p.PSN = last.Add(1)
				return
			case f.RoCE.Opcode == bth.RCAcknowledge && f.RoCE.AETH().Syndrome() == bth.NAKSequence:
				from = indexOf(p, packets, f)
			case f.RoCE.Has(bth.HasAETH) && !f.RoCE.AETH().Syndrome().IsACK():
				p.T.Failed("no NAK but for a gap", suite.Describe(f))
			case f.RoCE.Opcode == bth.RCAcknowledge:
				from = max(from, indexAfter(packets, f.RoCE.BTH().PSN()))
			}
			if f.RoCE.Opcode == bth.RCAcknowledge && !f.RoCE.AETH().Syndrome().IsACK() {
				break
			}
		}
	}
	p.T.Fatalf("no end of losses after 1000 rounds")
}

// indexOf finds the packet that a NAK asks for; a READ's request stands for all PSNs of its answer.
func indexOf(p *suite.Peer, packets []*wire.Packet, nak *wire.Frame) int {
	want := nak.RoCE.BTH().PSN()
	for i := len(packets) - 1; i >= 0; i-- {
		if !packets[i].BTH.PSN.After(want) {
			return i
		}
	}
	p.T.Failed("a NAK for a packet that was sent", suite.Describe(nak))
	return 0
}

// indexAfter is the first packet behind an acknowledged PSN. READs and atomics are answered by themselves, so that it does
// not go past one.
func indexAfter(packets []*wire.Packet, psn bth.PSN) int {
	for i, w := range packets {
		if w.BTH.PSN.After(psn) {
			return i
		}
	}
	return len(packets) - 1
}

func eachPacketLost(t *suite.T) {
	for index := range 9 {
		p := t.Connect(suite.Options{Recvs: 2, RecvSize: 4096})
		packets, check := mix(p)
		gone := false
		carry(p, packets, func(w *wire.Packet) bool {
			if gone || w != packets[min(index, len(packets)-1)] {
				return false
			}
			gone = true
			return true
		})
		check()
	}
}

func randomLoss(t *suite.T) {
	const rounds = 40
	for range rounds {
		p := t.Connect(suite.Options{Recvs: 2, RecvSize: 4096})
		packets, check := mix(p)
		carry(p, packets, func(*wire.Packet) bool { return t.Rand.IntN(20) == 0 })
		check()
	}
	t.Notef("%d runs of 9 packets with a loss of 5 %% of the requests, in place of 10 minutes", rounds)
}

func lateAnswers(t *suite.T) {
	p := t.Connect(suite.Options{Timeout: new(10)})
	p.PostSend(p.SendWR(1, "RDMA_WRITE", 0, 8))
	f := p.Requested(bth.RCWriteOnly)
	psn := f.RoCE.BTH().PSN()
	p.Repeated(bth.RCWriteOnly, psn)
	p.MSN++
	p.PutAck(psn)
	p.PutAck(psn)
	p.Sent(1)
	p.PostSend(p.SendWR(2, "RDMA_WRITE", 0, 8))
	for p.TargetPSN == psn.Add(1) {
		if g := p.Next("the next WRITE"); g.RoCE.BTH().PSN() == p.TargetPSN {
			p.TargetPSN = p.TargetPSN.Add(1)
		} else if g.RoCE.BTH().PSN() != psn {
			t.Failed("the next WRITE, or the first once more", suite.Describe(g))
		}
	}
	p.MSN++
	p.PutAck(psn.Add(1))
	p.Sent(2)
	p.NothingSent()
}

func bothDirections(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 16})
	for i := range 16 {
		p.PostSend(p.SendWR(uint64(i+1), "SEND", 0, 8))
		w := p.Send(t.Bytes(8))
		p.Request(w)
		request, ack := false, false
		for !request || !ack {
			f := p.Next("a SEND and an ACK")
			switch {
			case f.RoCE.Opcode == bth.RCSendOnly && f.RoCE.BTH().PSN() == p.TargetPSN:
				request = true
				p.TargetPSN = p.TargetPSN.Add(1)
				p.MSN++
				p.PutAck(f.RoCE.BTH().PSN())
			case isAckOf(f, w.BTH.PSN):
				ack = true
			default:
				t.Failed(fmt.Sprintf("a SEND with PSN %v or the ACK of %v", p.TargetPSN, w.BTH.PSN), suite.Describe(f))
			}
		}
		p.Sent(uint64(i + 1))
		delivered(p, i+1, w.Payload)
	}
}

// manyQueuePairs connects up to 1,000, as many as 10 seconds allow, and writes by each to a place of its own. Few requests are
// on their way at a time: a way to the target may queue no more than 500 packets.
func manyQueuePairs(t *suite.T) {
	first := t.Connect(suite.Options{})
	first.Holds(0, make([]byte, 8)) // who cannot be asked for that is not asked for a thousand queue pairs
	peers := []*suite.Peer{first}
	for end := time.Now().Add(10 * time.Second); len(peers) < 1000 && time.Now().Before(end); {
		peers = append(peers, t.Connect(suite.Options{Share: first, SendWRs: 1, RecvWRs: 1}))
	}
	t.Notef("%d queue pairs", len(peers))
	if len(peers) < 32 {
		t.Failed("32 queue pairs at least within 10 s", fmt.Sprint(len(peers)))
	}
	var want []byte
	for some := range slices.Chunk(peers, 100) {
		for _, p := range some {
			data := t.Bytes(8)
			p.Request(p.Write(len(want), data))
			want = append(want, data...)
		}
		for _, p := range some {
			p.Ack(p.PSN.Add(^uint32(0)))
		}
	}
	first.Holds(0, want)
}

func everyMTU(t *suite.T) {
	const headers = 40 + 8 + bth.BTHLen + bth.RETHLen + bth.ICRCLen
	for _, n := range []int{256, 512, 1024, 2048, 4096} {
		if n+headers > t.Link.MTU() {
			t.Notef("the link does not carry path MTU %d", n)
			continue
		}
		p := t.Connect(suite.Options{MTU: n, Recvs: 1, RecvSize: 16384})
		data := t.Bytes(3*n - 1)
		p.Request(p.Message(bth.RCSendOnly, 0, data)...)
		p.Ack(p.PSN.Add(^uint32(0)))
		delivered(p, 1, data)
		p.Fill(0, data)
		r := p.Read(0, len(data))
		p.Request(r)
		t.Same("the data", data, p.ReadResponse(r.BTH.PSN, len(data)))
		p.PostSend(p.SendWR(1, "RDMA_WRITE", 0, len(data)))
		var got []byte
		for _, op := range []bth.Opcode{bth.RCWriteFirst, bth.RCWriteMiddle, bth.RCWriteLast} {
			got = append(got, p.Requested(op).RoCE.Payload...)
		}
		t.Same("the WRITE", data, got)
	}
}

func hugeMessage(t *suite.T) {
	p := t.Connect(suite.Options{})
	wr := p.SendWR(1, "RDMA_WRITE", 0, 8)
	wr.SGEs[0].Length = 0x80000001
	if _, refusal := t.Try(agent.Request{Do: agent.DoSend, QP: p.QP, Sends: []agent.SendWR{wr}}); refusal != nil {
		t.Notef("refused at the post: %s", refusal.Errno)
		return
	}
	p.Sent(1, "LOC_LEN_ERR", "LOC_PROT_ERR", "LOC_QP_OP_ERR")
}

func anyFamily(t *suite.T) {
	a := t.Link.Remote()
	kind := "IPv4"
	switch {
	case a.Is6() && !a.Is4In6() && a.IsLinkLocalUnicast():
		kind = "link-local IPv6"
	case a.Is6() && !a.Is4In6():
		kind = "IPv6"
	}
	t.Notef("%s; other families need runs of their own", kind)
	exchange(t)
}

package cases

import (
	"fmt"
	"time"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

var responseCases = []suite.Case{
	{ID: "RSP-01", Run: respAckOfFive},
	{ID: "RSP-02", Run: respAckInside},
	{ID: "RSP-03", Run: respAckBelow},
	{ID: "RSP-04", Run: respGhost},
	{ID: "RSP-05", Run: respAckTwice},
	{ID: "RSP-06", Run: respAckBehindRead},
	{ID: "RSP-07", Run: respReadImplies},
	{ID: "RSP-08", Run: respMissingMiddle},
	{ID: "RSP-09", Run: func(t *suite.T) { respResumed(t, true) }},
	{ID: "RSP-10", Run: func(t *suite.T) { respResumed(t, false) }},
	{ID: "RSP-11", Run: respShortLast},
	{ID: "RSP-12", Run: respReadForSend},
	{ID: "RSP-13", Run: respAtomic},
	{ID: "RSP-14", Run: respSequence},
	{ID: "RSP-15", Run: respSequenceTwice},
	{ID: "RSP-16", Run: respSequenceForever},
	{ID: "RSP-17", Run: func(t *suite.T) { respRefused(t, bth.NAKInvalidRequest, "REM_INV_REQ_ERR") }},
	{ID: "RSP-18", Run: func(t *suite.T) { respRefused(t, bth.NAKRemoteAccess, "REM_ACCESS_ERR") }},
	{ID: "RSP-19", Run: func(t *suite.T) { respRefused(t, bth.NAKRemoteOperational, "REM_OP_ERR") }},
	{ID: "RSP-20", Run: respReserved},
	{ID: "RSP-21", Run: respReadRefused},
	{ID: "RSP-22", Run: func(t *suite.T) { respNotReady(t, 14) }},
	{ID: "RSP-23", Run: func(t *suite.T) { respNotReady(t, 0) }},
	{ID: "RSP-24", Run: func(t *suite.T) { respNeverReady(t, 0) }},
	{ID: "RSP-25", Run: func(t *suite.T) { respNeverReady(t, 2) }},
	{ID: "RSP-26", Run: respReadyAtLast},
	{ID: "RSP-27", Run: respNotReadyImplies},
	{ID: "RSP-28", Run: respSequenceInWait},
	{ID: "RSP-29", Run: respMSN},
	{ID: "RSP-30", Run: respCredits},
}

// sendWRs makes n SENDs of 16 bytes, with ids from the given one.
func sendWRs(p *suite.Peer, id uint64, n int) []agent.SendWR {
	wrs := make([]agent.SendWR, n)
	for i := range wrs {
		wrs[i] = p.SendWR(id+uint64(i), "SEND", 16*i, 16)
	}
	return wrs
}

// sends posts n SENDs of 16 bytes, with ids from the given one, and takes their packets.
func sends(p *suite.Peer, id uint64, n int) []*wire.Frame {
	p.PostSend(sendWRs(p, id, n)...)
	out := make([]*wire.Frame, n)
	for i := range out {
		out[i] = p.Fresh(bth.RCSendOnly)
	}
	return out
}

func psnOf(f *wire.Frame) bth.PSN { return f.RoCE.BTH().PSN() }

// ignored puts an answer that must change nothing: the queue pair works, sends nothing, and completes nothing.
func ignored(p *suite.Peer, psn bth.PSN) {
	p.PutAck(psn)
	p.Alive()
	p.NothingSent()
}

func respAckOfFive(t *suite.T) {
	p := t.Connect(suite.Options{})
	frames := sends(p, 1, 5)
	p.NothingSent()
	acked(p, frames[4], 5)
	for id := range uint64(5) {
		p.Sent(id + 1)
	}
}

func respAckInside(t *suite.T) {
	p := t.Connect(suite.Options{})
	p.PostSend(p.SendWR(1, "SEND", 0, 3*p.MTU))
	frames := requested(p, bth.RCSendFirst, bth.RCSendMiddle, bth.RCSendLast)
	ignored(p, psnOf(frames[1]))
	acked(p, frames[2], 1)
	p.Sent(1)
}

func respAckBelow(t *suite.T) {
	p := t.Connect(suite.Options{})
	first := sends(p, 1, 3)
	acked(p, first[2], 3)
	for id := range uint64(3) {
		p.Sent(id + 1)
	}
	second := sends(p, 4, 1)
	for _, psn := range []bth.PSN{psnOf(first[0]), psnOf(first[1]), psnOf(first[0]).Add(^uint32(99))} {
		ignored(p, psn)
	}
	acked(p, second[0], 1)
	p.Sent(4)
}

func respGhost(t *suite.T) {
	p := t.Connect(suite.Options{})
	ignored(p, p.TargetPSN) // nothing was sent yet
	f := sends(p, 1, 1)[0]
	for _, beyond := range []uint32{1, 2, 100, 1 << 22} {
		ignored(p, psnOf(f).Add(beyond))
	}
	acked(p, f, 1)
	p.Sent(1)
	f = sends(p, 2, 1)[0]
	p.Alive()
	p.NothingSent()
	acked(p, f, 1)
	p.Sent(2)
}

func respAckTwice(t *suite.T) {
	p := t.Connect(suite.Options{})
	first := sends(p, 1, 1)[0]
	acked(p, first, 1)
	p.Sent(1)
	ignored(p, psnOf(first))
	second := sends(p, 2, 1)[0]
	ignored(p, psnOf(first))
	acked(p, second, 1)
	p.Sent(2)
	ignored(p, psnOf(second))
}

func respAckBehindRead(t *suite.T) {
	p := t.Connect(suite.Options{})
	n := 2 * p.MTU
	p.PostSend(p.SendWR(1, "RDMA_READ", 0, n))
	read := p.Requested(bth.RCReadRequest)
	send := readBehind(p)
	if send == nil {
		return
	}
	p.MSN = 2
	p.PutAck(psnOf(send))
	again := p.Resent(bth.RCReadRequest, psnOf(read))
	reth(t, again, read.RoCE.RETH().Fields())
	p.NothingSent()
	data := t.Bytes(n)
	p.Put(p.Response(psnOf(read), data)...)
	p.Sent(1)
	p.Holds(0, data)
	p.PutAck(psnOf(send)) // it may have been sent again, or have counted the first time
	p.Sent(2)
}

// readBehind posts a SEND behind an unanswered READ and returns its packet. A target that holds it back until the READ is
// answered cannot be tested further: the case is skipped.
func readBehind(p *suite.Peer) *wire.Frame {
	p.PostSend(p.SendWR(2, "SEND", 0x8000, 16))
	f := p.NextOrNone()
	if f == nil {
		p.T.Skipf("the target sends no SEND behind an unanswered READ")
	}
	if f.RoCE.Opcode != bth.RCSendOnly || psnOf(f) != p.TargetPSN {
		p.T.Failed(fmt.Sprintf("%v with PSN %v", bth.RCSendOnly, p.TargetPSN), suite.Describe(f))
	}
	p.TargetPSN = p.TargetPSN.Add(1)
	return f
}

func respReadImplies(t *suite.T) {
	p := t.Connect(suite.Options{})
	p.PostSend(p.SendWR(1, "SEND", 0, 16), p.SendWR(2, "SEND", 16, 16), p.SendWR(3, "RDMA_READ", 64, 32))
	frames := requested(p, bth.RCSendOnly, bth.RCSendOnly, bth.RCReadRequest)
	p.MSN = 2
	data := t.Bytes(32)
	answered(p, frames[2], data)
	for id := range uint64(3) {
		p.Sent(id + 1)
	}
	p.Holds(64, data)
}

// readTimeout is the timeout code of reading: 67 ms.
const readTimeout = 14

// reading posts a READ of so many packets and takes its request.
func reading(t *suite.T, packets int) (p *suite.Peer, read *wire.Frame, data []byte) {
	p = t.Connect(suite.Options{Timeout: new(readTimeout)})
	data = t.Bytes(packets * p.MTU)
	p.PostSend(p.SendWR(1, "RDMA_READ", 0, len(data)))
	read = p.Requested(bth.RCReadRequest)
	p.MSN++
	return p, read, data
}

// tail takes the request for the rest of a READ, from this packet of its answer on. When the tester is slow, the READ was asked
// for once more before.
func tail(p *suite.Peer, read *wire.Frame, from int) *wire.Frame {
	f := p.Resent(bth.RCReadRequest, psnOf(read).Add(uint32(from)))
	want := read.RoCE.RETH().Fields()
	want.VA += uint64(from * p.MTU)
	want.Length -= uint32(from * p.MTU)
	reth(p.T, f, want)
	return f
}

func respMissingMiddle(t *suite.T) {
	p, read, data := reading(t, 4)
	stream := p.Response(psnOf(read), data)
	p.Put(stream[0], stream[2], stream[3])
	put := time.Now()
	f := tail(p, read, 1)
	if f.Time.Sub(put) < bth.AckTimeout(readTimeout) {
		t.Notef("the rest is asked for before the timeout")
	} else {
		t.Notef("the rest is asked for after the timeout")
	}
	p.NothingSent()
	p.Put(p.Response(psnOf(f), data[p.MTU:])...)
	p.Sent(1)
	p.Holds(0, data)
}

// respResumed loses the rest of a READ's answer, waits until it is asked for, and answers with a stream of its own, which
// begins with First or is an Only, or with the rest of the old stream.
func respResumed(t *suite.T, anew bool) {
	for _, c := range []struct{ packets, have int }{{4, 1}, {2, 1}} {
		p, read, data := reading(t, c.packets)
		stream := p.Response(psnOf(read), data)
		p.Put(stream[:c.have]...)
		f := tail(p, read, c.have)
		rest := stream[c.have:]
		if anew {
			rest = p.Response(psnOf(f), data[c.have*p.MTU:])
		}
		p.Put(rest...)
		p.Sent(1)
		p.Holds(0, data)
	}
}

func respShortLast(t *suite.T) {
	p, read, data := reading(t, 2)
	stream := p.Response(psnOf(read), data)
	stream[1].Payload = stream[1].Payload[:p.MTU-4]
	p.Put(stream...)
	p.Sent(1, "BAD_RESP_ERR", "LOC_LEN_ERR")
	p.State("ERR")
}

func respReadForSend(t *suite.T) {
	p := t.Connect(suite.Options{})
	p.Put(p.Response(psnOf(sends(p, 1, 1)[0]), t.Bytes(16))...)
	p.Sent(1, "BAD_RESP_ERR")
	p.State("ERR")
}

func respAtomic(t *suite.T) {
	p := t.Connect(suite.Options{})
	wr := p.SendWR(1, "ATOMIC_FETCH_AND_ADD", 64, 8)
	wr.CompareAdd = 0x1122334455667788
	p.PostSend(wr)
	f := p.Requested(bth.RCFetchAdd)
	h := f.RoCE.AtomicETH().Fields()
	if h.VA != wr.Addr || h.RKey != wr.RKey || h.Swap != wr.CompareAdd {
		t.Failed(fmt.Sprintf("an AtomicETH with VA %#x, key %#x and %#x to add", wr.Addr, wr.RKey, wr.CompareAdd), suite.Describe(f))
	}
	original := t.Rand.Uint64()
	p.MSN++
	p.PutAtomicAck(psnOf(f), original)
	p.Sent(1)
	p.Holds(64, suite.HostOrder(original))
}

// sentAgain takes SENDs that are sent again, from one on.
func sentAgain(p *suite.Peer, frames []*wire.Frame) {
	for _, f := range frames {
		p.Repeated(bth.RCSendOnly, psnOf(f))
	}
}

// respSequence runs without a timeout, so that nothing but the NAK can bring the packets again.
func respSequence(t *suite.T) {
	p := t.Connect(suite.Options{Timeout: new(0)})
	frames := sends(p, 1, 5)
	p.MSN = 2
	p.PutNak(psnOf(frames[2]), bth.NAKSequence)
	sentAgain(p, frames[2:])
	p.Sent(1)
	p.Sent(2)
	p.NothingSent()
	acked(p, frames[4], 3)
	for id := uint64(3); id <= 5; id++ {
		p.Sent(id)
	}
}

// respSequenceTwice cannot know whether the target has begun to send again when the second NAK comes; then it may go back
// once more.
func respSequenceTwice(t *suite.T) {
	p := t.Connect(suite.Options{Timeout: new(0)})
	frames := sends(p, 1, 5)
	p.MSN = 2
	p.PutNak(psnOf(frames[2]), bth.NAKSequence)
	p.PutNak(psnOf(frames[2]), bth.NAKSequence)
	sentAgain(p, frames[2:])
	times := 1
	for _, f := range p.Meanwhile() {
		if psnOf(f) == psnOf(frames[2]) {
			times++
		}
	}
	if times > 2 {
		t.Failed("the packet to be sent again once, or twice", fmt.Sprintf("%d times", times))
	}
	t.Notef("sent again %d times", times)
	acked(p, frames[4], 3)
	for id := range uint64(5) {
		p.Sent(id + 1)
	}
	acked(p, sends(p, 6, 1)[0], 1)
	p.Sent(6)
}

// respSequenceForever counts transmissions; a target that waits for its timer with one of them passes.
func respSequenceForever(t *suite.T) {
	const retries = 2
	p := t.Connect(suite.Options{Timeout: new(14), RetryCnt: new(retries)})
	f := sends(p, 1, 1)[0]
	for range retries {
		p.PutNak(psnOf(f), bth.NAKSequence)
		p.Repeated(bth.RCSendOnly, psnOf(f))
	}
	p.PutNak(psnOf(f), bth.NAKSequence)
	p.Sent(1, "RETRY_EXC_ERR")
	p.State("ERR")
	p.Silent()
}

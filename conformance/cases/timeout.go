package cases

import (
	"fmt"
	"time"

	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

var timeoutCases = []suite.Case{
	{ID: "TMO-01", Run: timeoutFirst},
	{ID: "TMO-02", Run: timeoutRetries},
	{ID: "TMO-03", Run: timeoutNever},
	{ID: "TMO-04", Run: timeoutAnswered},
	{ID: "TMO-05", Run: timeoutProgress},
	{ID: "TMO-06", Run: timeoutLostAck},
	{ID: "TMO-07", Run: timeoutSame},
	{ID: "TMO-08", Run: timeoutReadTail},
	{ID: "TMO-09", Run: timeoutLostRead},
	{ID: "TMO-10", Run: timeoutAtomic},
}

// timeoutFirst measures from before the request was posted to the resend for the lower bound, and from the first
// transmission for the upper one, which has half a second more than four times the timeout for a busy host.
func timeoutFirst(t *suite.T) {
	const code, grace = 14, 500 * time.Millisecond
	least := bth.AckTimeout(code)
	p := t.Connect(suite.Options{Timeout: new(code)})
	posted := time.Now()
	f := sends(p, 1, 1)[0]
	again := p.Repeated(bth.RCSendOnly, psnOf(f))
	if took := again.Time.Sub(posted); took < least-least/20 { // a clock that ticks ends a little early
		t.Failed(fmt.Sprintf("no resend within %v", least), fmt.Sprintf("one %v after the request was posted", took))
	}
	took := again.Time.Sub(f.Time)
	if took > 4*least+grace {
		t.Failed(fmt.Sprintf("a resend within %v", 4*least), fmt.Sprintf("one after %v", took))
	}
	t.Notef("sent again after %v with a timeout of %v", took, least)
	acked(p, f, 1)
	p.Sent(1)
}

func timeoutRetries(t *suite.T) {
	for retries := range 7 {
		p := t.Connect(suite.Options{Timeout: new(8), RetryCnt: new(retries)})
		f := sends(p, 1, 1)[0]
		for range retries {
			p.Repeated(bth.RCSendOnly, psnOf(f))
		}
		p.Sent(1, "RETRY_EXC_ERR")
		p.State("ERR")
		if retries == 0 || retries == 6 {
			p.Silent()
		} else if more := p.Waiting(); len(more) > 0 {
			t.Failed(fmt.Sprintf("%d transmissions", retries+1), fmt.Sprintf("%d", retries+1+len(more)))
		}
	}
}

func timeoutNever(t *suite.T) {
	p := t.Connect(suite.Options{Timeout: new(0)})
	f := sends(p, 1, 1)[0]
	for range 10 {
		p.Silent()
	}
	p.Alive()
	p.NothingSent()
	acked(p, f, 1)
	p.Sent(1)
}

// timeoutAnswered loses each request once. Together that is more often than the retry counter allows for one.
func timeoutAnswered(t *suite.T) {
	const retries = 3
	p := t.Connect(suite.Options{Timeout: new(14), RetryCnt: new(retries)})
	for id := range uint64(retries + 1) {
		f := sends(p, id, 1)[0]
		p.Resent(bth.RCSendOnly, psnOf(f))
		acked(p, f, 1)
		p.Sent(id)
		p.NothingSent()
	}
}

// timeoutProgress acknowledges one packet of a message after each timeout.
func timeoutProgress(t *suite.T) {
	const retries = 3
	p := t.Connect(suite.Options{Timeout: new(14), RetryCnt: new(retries)})
	p.PostSend(p.SendWR(1, "SEND", 0, (retries+2)*p.MTU))
	frames := requested(p, bth.RCSendFirst, bth.RCSendMiddle, bth.RCSendMiddle, bth.RCSendMiddle, bth.RCSendLast)
	last := frames[len(frames)-1]
	for _, f := range frames {
		p.Resent(f.RoCE.Opcode, psnOf(f))
		if f == last {
			break
		}
		p.Meanwhile() // the packets behind it
		p.PutAck(psnOf(f))
	}
	acked(p, last, 1)
	p.Sent(1)
}

func timeoutLostAck(t *suite.T) {
	p := t.Connect(suite.Options{Timeout: new(14)})
	f := sends(p, 1, 1)[0]
	again := p.Repeated(bth.RCSendOnly, psnOf(f))
	t.Same("the duplicate's payload", f.RoCE.Payload, again.RoCE.Payload)
	p.MSN++
	p.PutAck(psnOf(f))
	p.PutAck(psnOf(again))
	p.Sent(1)
	acked(p, sends(p, 2, 1)[0], 1)
	p.Sent(2)
	p.NothingSent()
}

// timeoutSame compares what is sent again with the first time: everything but AckReq in the BTH and the ICRC.
func timeoutSame(t *suite.T) {
	p := t.Connect(suite.Options{Timeout: new(14)})
	p.Fill(0, t.Bytes(4*p.MTU))
	p.PostSend(p.SendWR(1, "SEND", 0, 2*p.MTU+1), p.SendWR(2, "RDMA_WRITE", 0, 2*p.MTU-2))
	frames := requested(p, bth.RCSendFirst, bth.RCSendMiddle, bth.RCSendLast, bth.RCWriteFirst, bth.RCWriteLast)
	last := (*wire.Frame)(nil)
	for i, f := range frames {
		last = p.Repeated(f.RoCE.Opcode, psnOf(f))
		t.Same(fmt.Sprintf("packet %d, headers and payload", i+1), lasting(f), lasting(last))
	}
	if !last.RoCE.BTH().AckReq() {
		t.Failed("AckReq in the last packet that is sent again", suite.Describe(last))
	}
	acked(p, last, 2)
	p.Sent(1)
	p.Sent(2)
}

// lasting is what of a packet must not change when it is sent again.
func lasting(f *wire.Frame) []byte {
	b := append([]byte(nil), f.Roce[:len(f.Roce)-4]...)
	b[8] &^= 0x80 // AckReq
	return b
}

func timeoutReadTail(t *suite.T) {
	p, read, data := reading(t, 4)
	p.Put(p.Response(psnOf(read), data)[:2]...)
	f := tail(p, read, 2)
	p.Put(p.Response(psnOf(f), data[2*p.MTU:])...)
	p.Sent(1)
	p.Holds(0, data)
}

func timeoutLostRead(t *suite.T) {
	p, read, data := reading(t, 2)
	f := tail(p, read, 0)
	p.Put(p.Response(psnOf(f), data)...)
	p.Sent(1)
	p.Holds(0, data)
}

// timeoutAtomic is on both sides of a lost answer: the target's request is sent again as it was, and the tester's is done
// once.
func timeoutAtomic(t *suite.T) {
	p := t.Connect(suite.Options{Timeout: new(14)})
	wr := p.SendWR(1, "ATOMIC_CMP_AND_SWP", 64, 8)
	wr.CompareAdd, wr.Swap = t.Rand.Uint64(), t.Rand.Uint64()
	p.PostSend(wr)
	f := p.Requested(bth.RCCmpSwap)
	again := p.Repeated(bth.RCCmpSwap, psnOf(f))
	t.Same("the request that is sent again", lasting(f), lasting(again))
	p.MSN++
	p.PutAtomicAck(psnOf(f), wr.CompareAdd)
	p.PutAtomicAck(psnOf(f), wr.CompareAdd)
	p.Sent(1)
	p.Holds(64, suite.HostOrder(wr.CompareAdd))
	p.Waiting() // repeats, when the tester was slow

	began := t.Rand.Uint64()
	p.Fill(128, suite.HostOrder(began))
	w := p.FetchAdd(128, 1)
	p.Request(w)
	for i := range 2 {
		if i > 0 {
			p.Put(w)
		}
		if got := p.AtomicAck(w.BTH.PSN); got != began {
			t.Failed(fmt.Sprintf("the original value %#x", began), fmt.Sprintf("%#x", got))
		}
	}
	p.Holds(128, suite.HostOrder(began+1))
	p.NothingSent()
}

package cases

import (
	"fmt"
	"time"

	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

// respRefused refuses the second of three SENDs: the first is acknowledged by that, the third is flushed, and so are
// receives.
func respRefused(t *suite.T, s bth.Syndrome, status string) {
	p := t.Connect(suite.Options{Recvs: 2})
	frames := sends(p, 1, 3)
	p.MSN = 1
	p.PutNak(psnOf(frames[1]), s)
	p.Sent(1)
	p.Sent(2, status)
	p.Sent(3, "WR_FLUSH_ERR")
	p.Received(1, "WR_FLUSH_ERR")
	p.Received(2, "WR_FLUSH_ERR")
	p.State("ERR")
}

func respReserved(t *suite.T) {
	for _, s := range []bth.Syndrome{0x65, 0x40} {
		p := t.Connect(suite.Options{})
		p.PutNak(psnOf(sends(p, 1, 1)[0]), s)
		wc := p.Sent(1, "BAD_RESP_ERR", "REM_OP_ERR")
		t.Notef("syndrome %#x: %s", uint8(s), wc.Status)
		p.State("ERR")
	}
}

func respReadRefused(t *suite.T) {
	p, read, data := reading(t, 4)
	p.Put(p.Response(psnOf(read), data)[:2]...)
	p.PutNak(psnOf(read).Add(2), bth.NAKRemoteAccess)
	p.Sent(1, "REM_ACCESS_ERR")
	p.State("ERR")
}

// waited fails unless the packet came after the RNR NAK's time at the earliest.
func waited(t *suite.T, code uint8, nak time.Time, f *wire.Frame) {
	least := bth.RNRTimerDuration(code)
	if took := f.Time.Sub(nak); took < least {
		t.Failed(fmt.Sprintf("no resend within %v of the RNR NAK", least), fmt.Sprintf("%s after %v", suite.Describe(f), took))
	}
}

func respNotReady(t *suite.T, code uint8) {
	p := t.Connect(suite.Options{})
	frames := sends(p, 1, 2)
	nak := time.Now()
	p.PutNak(psnOf(frames[0]), bth.RNRSyndrome(code))
	f := p.Repeated(bth.RCSendOnly, psnOf(frames[0]))
	waited(t, code, nak, f)
	sentAgain(p, frames[1:])
	acked(p, frames[1], 2)
	p.Sent(1)
	p.Sent(2)
}

// respNeverReady counts transmissions: one, and one more for each RNR retry.
func respNeverReady(t *suite.T, retries int) {
	p := t.Connect(suite.Options{RNRRetry: new(retries)})
	f := sends(p, 1, 1)[0]
	for range retries {
		p.PutNak(psnOf(f), bth.RNRSyndrome(1))
		p.Repeated(bth.RCSendOnly, psnOf(f))
	}
	p.PutNak(psnOf(f), bth.RNRSyndrome(1))
	p.Sent(1, "RNR_RETRY_EXC_ERR")
	p.State("ERR")
	p.Silent()
}

func respReadyAtLast(t *suite.T) {
	p := t.Connect(suite.Options{RNRRetry: new(7)})
	f := sends(p, 1, 1)[0]
	for range 25 {
		p.PutNak(psnOf(f), bth.RNRSyndrome(1))
		p.Repeated(bth.RCSendOnly, psnOf(f))
	}
	acked(p, f, 1)
	p.Sent(1)
}

func respNotReadyImplies(t *suite.T) {
	p := t.Connect(suite.Options{})
	frames := sends(p, 1, 3)
	p.MSN = 2
	p.PutNak(psnOf(frames[2]), bth.RNRSyndrome(14))
	p.Sent(1)
	p.Sent(2)
	p.NothingSent()
	sentAgain(p, frames[2:])
	acked(p, frames[2], 1)
	p.Sent(3)
}

// respSequenceInWait sends what kernel rxe sends for the packets behind one that found no receive: a NAK sequence error for
// the same PSN.
func respSequenceInWait(t *suite.T) {
	const code = 20 // 10 ms
	p := t.Connect(suite.Options{})
	frames := sends(p, 1, 2)
	nak := time.Now()
	p.PutNak(psnOf(frames[0]), bth.RNRSyndrome(code))
	p.PutNak(psnOf(frames[0]), bth.NAKSequence)
	f := p.Repeated(bth.RCSendOnly, psnOf(frames[0]))
	waited(t, code, nak, f)
	sentAgain(p, frames[1:])
	acked(p, frames[1], 2)
	p.Sent(1)
	p.Sent(2)
}

func respMSN(t *suite.T) {
	p := t.Connect(suite.Options{})
	for id, msn := range []uint32{0, 3, 3, 0xFFFFFF} {
		f := sends(p, uint64(id), 1)[0]
		p.MSN = msn
		p.PutAck(psnOf(f))
		p.Sent(uint64(id))
	}
}

// respCredits answers without a credit, when the target may send one request and then wait for the answer, and then with
// unlimited credit.
func respCredits(t *suite.T) {
	p := t.Connect(suite.Options{})
	put := func(f *wire.Frame, s bth.Syndrome) {
		p.MSN++
		p.PutNak(psnOf(f), s)
	}
	put(sends(p, 1, 1)[0], 0)
	p.Sent(1)
	const n = 3
	wrs := sendWRs(p, 2, n)
	p.PostSend(wrs...)
	first := p.Requested(bth.RCSendOnly)
	early := p.Meanwhile()
	t.Notef("without credits %d of %d requests are sent at once", 1+len(early), n)
	p.Unread(early...)
	put(first, 0)
	p.Sent(2)
	for i := 1; i < n; i++ {
		put(p.Requested(bth.RCSendOnly), 0)
		p.Sent(uint64(2 + i))
	}
	put(sends(p, 8, 1)[0], bth.AckNoCredit)
	p.Sent(8)
	frames := sends(p, 9, 5) // all at once
	for i, f := range frames {
		put(f, bth.AckNoCredit)
		p.Sent(uint64(9 + i))
	}
}

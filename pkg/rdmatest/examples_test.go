package rdmatest_test

import (
	"testing"

	"github.com/softroce/softroce/pkg/rdmatest"
	"github.com/softroce/softroce/pkg/verbs"
)

// The tests below are those of docs/rdmatest.md, word for word.

func TestRNRStorm(t *testing.T) {
	net := rdmatest.New(t, rdmatest.Config{})
	a, b := net.Adapter("a"), net.Adapter("b")
	x, y := net.RC(a, b, verbs.RCConfig{MinRNRTimer: 1, RNRRetry: 7}) // 0.01 ms, without end
	naks := net.Count(rdmatest.Sent(b), rdmatest.Opcode("RNR"))
	x.Send(64)    // b has posted no receive,
	naks.Wait(50) // and says so, again and again
	y.Recv(64)
	if wc := x.Wait(); wc.Status != verbs.WCSuccess {
		t.Errorf("after %d RNR NAKs: %v", naks.Hit(), wc.Status)
	}
}

func TestLostAckOfAtomic(t *testing.T) {
	net := rdmatest.New(t, rdmatest.Config{})
	a, b := net.Adapter("a"), net.Adapter("b")
	x, y := net.RC(a, b, verbs.RCConfig{Timeout: 13}) // asks again after 34 ms
	asked := net.Count(rdmatest.Received(b), rdmatest.Opcode("FETCH-ADD"))
	net.Drop(rdmatest.Sent(b), rdmatest.Opcode("ATOMIC-ACK"), rdmatest.First(1))
	x.FetchAdd(y, 1)
	if wc := x.Wait(); wc.Status != verbs.WCSuccess {
		t.Error(wc.Status)
	}
	if y.Word() != 1 || x.Word() != 0 || asked.Hit() < 2 {
		t.Errorf("asked %d times: the word is %d, and was %d", asked.Hit(), y.Word(), x.Word())
	}
}

func TestPeerDiesInMidWrite(t *testing.T) {
	net := rdmatest.New(t, rdmatest.Config{})
	a, b := net.Adapter("a"), net.Adapter("b")
	x, y := net.RC(a, b, verbs.RCConfig{Timeout: 14, RetryCnt: 2})
	stuck := net.Drop(rdmatest.Received(b), rdmatest.Opcode("WRITE"), rdmatest.NthTo(20, 0)) // from the 20th on
	x.Write(y, 1<<20)
	stuck.Wait(1)
	b.Kill()
	if wc := x.Wait(); wc.Status != verbs.WCRetryExcErr {
		t.Errorf("the writer: %v", wc.Status)
	}
	<-y.Dev.Done() // the dead one's program knows it, too
}

func TestRetryCountExhausted(t *testing.T) {
	net := rdmatest.New(t, rdmatest.Config{})
	a, b := net.Adapter("a"), net.Adapter("b")
	x, y := net.RC(a, b, verbs.RCConfig{Timeout: 8, RetryCnt: 3}) // 1 ms
	tries := net.Drop(rdmatest.Sent(a), rdmatest.Opcode("WRITE"))
	x.Write(y, 64)
	if wc := x.Wait(); wc.Status != verbs.WCRetryExcErr || tries.Hit() != 1+3 {
		t.Errorf("%v after %d tries", wc.Status, tries.Hit())
	}
}

func TestPartitionHealsInTime(t *testing.T) {
	net := rdmatest.New(t, rdmatest.Config{})
	a, b := net.Adapter("a"), net.Adapter("b")
	x, y := net.RC(a, b, verbs.RCConfig{Timeout: 16, RetryCnt: 7}) // eight times 268 ms
	cut := net.Partition(a, b)
	copy(x.MR.Bytes(), "hello")
	x.Write(y, 5)
	cut.Wait(2) // the first try and the second are lost
	net.Heal(a, b)
	if wc := x.Wait(); wc.Status != verbs.WCSuccess || string(y.MR.Bytes()[:5]) != "hello" {
		t.Errorf("%v, %q", wc.Status, y.MR.Bytes()[:5])
	}
}

package rdmatest_test

import (
	"bytes"
	"context"
	"io"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/softroce/softroce/pkg/rdmacm"
	"github.com/softroce/softroce/pkg/rdmanet"
	"github.com/softroce/softroce/pkg/rdmatest"
	"github.com/softroce/softroce/pkg/verbs"
)

// TestDocumentation holds the tests in docs/rdmatest.md to those that run.
func TestDocumentation(t *testing.T) {
	doc, err := os.ReadFile("../../docs/rdmatest.md")
	if err != nil {
		t.Fatal(err)
	}
	src, err := os.ReadFile("examples_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(func Test.*?)```").FindAllSubmatch(doc, -1)
	if n := bytes.Count(src, []byte("\nfunc Test")); len(blocks) != n || n < 5 {
		t.Errorf("docs/rdmatest.md has %d tests, examples_test.go %d", len(blocks), n)
	}
	for _, b := range blocks {
		if !bytes.Contains(src, b[1]) {
			t.Errorf("docs/rdmatest.md has a test that does not run:\n%s", b[1])
		}
	}
}

// TestEveryFault runs data through each fault, by each match, and looks whether
// the rule says so.
func TestEveryFault(t *testing.T) {
	net := rdmatest.New(t, rdmatest.Config{Seed: 7})
	a, b := net.Adapter("a"), net.Adapter("b")
	x, y := net.RC(a, b, verbs.RCConfig{Timeout: 12, PSN: 100})
	for _, c := range []struct {
		want string
		rule func() *rdmatest.Rule
	}{
		{"drop sent 5%", func() *rdmatest.Rule { return net.Drop(rdmatest.Percent(5)) }},
		{"delay 1ms from " + a.Addr().String() + " every 3", func() *rdmatest.Rule {
			return net.Delay(time.Millisecond, time.Millisecond, rdmatest.Received(b), rdmatest.From(a), rdmatest.Every(3))
		}},
		{"delay 1ms..2ms sent FIRST", func() *rdmatest.Rule {
			return net.Delay(time.Millisecond, 2*time.Millisecond, rdmatest.Sent(a), rdmatest.Opcode("first"))
		}},
		{"duplicate 2 to " + b.Addr().String() + " nth 2..4", func() *rdmatest.Rule {
			return net.Duplicate(2, rdmatest.Sent(a), rdmatest.To(b), rdmatest.NthTo(2, 4))
		}},
		{"corrupt byte -1 sent nth 1..3", func() *rdmatest.Rule { return net.Corrupt(rdmatest.Byte(-1), rdmatest.First(3)) }},
		{"corrupt bit 33 sealed sent", func() *rdmatest.Rule { return net.Corrupt(rdmatest.Bit(33).Sealed()) }},
		{"corrupt sent 3%", func() *rdmatest.Rule { return net.Corrupt(rdmatest.AnyBit(), rdmatest.Percent(3)) }},
		{"reorder 2 sent nth 5", func() *rdmatest.Rule { return net.Reorder(2, rdmatest.Nth(5)) }},
		{"rate 100mbit sent", func() *rdmatest.Rule { return net.Rate(1e8) }},
		{"count sent psn 100..16777215", func() *rdmatest.Rule { return net.Count(rdmatest.PSN(100, 0xFFFFFF)) }},
		{"drop to " + b.Addr().String() + " nth 1..2 for 1m0s", func() *rdmatest.Rule {
			return net.Drop(rdmatest.Sent(a), rdmatest.To(b), rdmatest.First(2), rdmatest.For(time.Minute))
		}},
	} {
		t.Run(c.want, func(t *testing.T) {
			r := c.rule()
			if r.String() != c.want {
				t.Errorf("the rule is %q, want %q", r, c.want)
			}
			move(t, x, y)
			r.Wait(1)
			r.Remove()
			if n := r.Hit(); n == 0 || r.Matched() < n {
				t.Errorf("hit %d, matched %d", n, r.Matched())
			}
		})
	}
	text := a.Impair("drop local-qp 0x1 # nobody\ncount sent")
	never := net.Drop(rdmatest.QP(1), rdmatest.In(time.Hour))
	move(t, x, y)
	if text[0].Hit() != 0 || text[1].Hit() == 0 || never.Hit() != 0 {
		t.Errorf("hits %d, %d, %d", text[0].Hit(), text[1].Hit(), never.Hit())
	}
}

// move writes and reads some packets and compares.
func move(t *testing.T, x, y *rdmatest.End) {
	t.Helper()
	const n = 300000
	for i := range n {
		x.MR.Bytes()[i] = byte(i * 7)
	}
	want := bytes.Clone(x.MR.Bytes()[:n])
	clear(y.MR.Bytes()[:n])
	x.Write(y, n)
	if wc := x.Wait(); wc.Status != verbs.WCSuccess || !bytes.Equal(y.MR.Bytes()[:n], want) {
		t.Fatalf("write: %v, equal %v", wc.Status, bytes.Equal(y.MR.Bytes()[:n], want))
	}
	clear(x.MR.Bytes()[:n])
	x.Read(y, n)
	if wc := x.Wait(); wc.Status != verbs.WCSuccess || !bytes.Equal(x.MR.Bytes()[:n], want) {
		t.Fatalf("read: %v, equal %v", wc.Status, bytes.Equal(x.MR.Bytes()[:n], want))
	}
}

// TestSeed finds the same packets hit with the same seed, others with another, and
// others again of another adapter.
func TestSeed(t *testing.T) {
	doubled := func(seed uint64, second bool) string {
		net := rdmatest.New(t, rdmatest.Config{Seed: seed})
		a, b := net.Adapter("a"), net.Adapter("b")
		x, y := net.RC(a, b, verbs.RCConfig{Timeout: 22}) // nothing is sent again
		var s strings.Builder
		r := net.Duplicate(1, rdmatest.Opcode("SEND"), rdmatest.Percent(30))
		if second {
			x, y = y, x
		}
		for range 30 {
			before := r.Hit()
			y.Recv(8)
			x.Send(8)
			if wc := x.Wait(); wc.Status != verbs.WCSuccess {
				t.Fatal(wc.Status)
			}
			y.Wait()
			s.WriteByte(byte('0' + r.Hit() - before))
		}
		return s.String()
	}
	one, again := doubled(7, false), doubled(7, false)
	if one != again {
		t.Errorf("the same seed doubled\n%s and\n%s", one, again)
	}
	if other := doubled(8, false); one == other {
		t.Errorf("another seed doubled the same: %s", one)
	}
	if other := doubled(7, true); one == other {
		t.Errorf("of another adapter the same were doubled: %s", one)
	}
}

// TestKillIsSilent has a connected adapter die: its peer's connection manager is
// told nothing.
func TestKillIsSilent(t *testing.T) {
	net := rdmatest.New(t, rdmatest.Config{})
	a, b := net.Adapter("a"), net.Adapter("b")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := rdmacm.Listen(b.Open(), netip.AddrPortFrom(b.Addr(), 7471), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		_, err := l.Accept(ctx, &rdmacm.Config{QP: verbs.QPInitAttr{Type: verbs.RC}})
		accepted <- err
	}()
	c, err := rdmacm.Dial(ctx, a.Open(), l.Addr(), &rdmacm.Config{QP: verbs.QPInitAttr{Type: verbs.RC}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	// Its first message would go to b before any of the new connection's.
	mads := net.Count(rdmatest.Received(b), rdmatest.Opcode("MAD"))

	before := mads.Hit()
	a.Kill()
	a.Restart()
	x, y := net.RC(a, b, verbs.RCConfig{Timeout: 22})
	x.Write(y, 8)
	x.Wait()
	if n := mads.Hit() - before; n != 0 {
		t.Errorf("%d messages told of the death", n)
	}
}

// TestRulesOfLaterAdapters keeps rules for adapters that come after them, or come
// back, and counts on.
func TestRulesOfLaterAdapters(t *testing.T) {
	net := rdmatest.New(t, rdmatest.Config{})
	a := net.Adapter("a")
	all := net.Count()
	b := net.Adapter("b")
	of := net.Count(rdmatest.Sent(b))
	x, y := net.RC(a, b, verbs.RCConfig{Timeout: 22})
	x.Write(y, 8)
	x.Wait()
	if all.Hit() != 2 || of.Hit() != 1 {
		t.Errorf("a WRITE and its ACK: counted %d, and %d of b", all.Hit(), of.Hit())
	}
	b.Kill()
	b.Kill() // of no effect
	b.Restart()
	x, y = net.RC(a, b, verbs.RCConfig{Timeout: 22})
	x.Write(y, 8)
	x.Wait()
	if all.Hit() != 4 || of.Hit() != 2 {
		t.Errorf("after a restart: counted %d, and %d of b", all.Hit(), of.Hit())
	}
}

// TestF19ReconnectAfterDeath kills a client's adapter and lets it connect again
// from the same address, over and over: the server answers each time, as a new
// connection.
func TestF19ReconnectAfterDeath(t *testing.T) {
	net := rdmatest.New(t, rdmatest.Config{})
	a, b := net.Adapter("client"), net.Adapter("server")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := rdmacm.Listen(b.Open(), netip.AddrPortFrom(b.Addr(), 7471), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan *rdmacm.Conn)
	go func() {
		for {
			c, err := l.Accept(ctx, &rdmacm.Config{QP: verbs.QPInitAttr{Type: verbs.RC}})
			if err != nil {
				close(accepted)
				return
			}
			accepted <- c
		}
	}()
	seen := make(map[verbs.QPN]bool)
	for i := range 10 {
		c, err := rdmacm.Dial(ctx, a.Open(), l.Addr(), &rdmacm.Config{QP: verbs.QPInitAttr{Type: verbs.RC}})
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		s := <-accepted
		if s == nil {
			t.Fatalf("connection %d was not accepted", i)
		}
		if seen[c.QP().Num()] {
			t.Errorf("connection %d has a queue pair number of an earlier one: %#x", i, uint32(c.QP().Num()))
		}
		seen[c.QP().Num()] = true
		a.Kill()
		_ = c.Close() // its adapter is dead
		a.Restart()
		_ = s.Close() // nobody answers
	}
}

// TestStreamUnderLoss runs a program on pkg/rdmanet, which knows nothing of all
// this, over a bad network.
func TestStreamUnderLoss(t *testing.T) {
	network := rdmatest.New(t, rdmatest.Config{Seed: 3})
	a, b := network.Adapter("a"), network.Adapter("b")
	bad := network.Drop(rdmatest.Opcode("SEND,WRITE", "READ-RESPONSE", "ACK"), rdmatest.Percent(1))
	network.Reorder(3, rdmatest.Opcode("WRITE,SEND"), rdmatest.Percent(1))
	l, err := rdmanet.Listen(b.Open(), b.Addr().String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	want := bytes.Repeat([]byte("softroce"), 1<<17)
	sent := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = c.Write(want)
			if end := c.Close(); err == nil {
				err = end
			}
		}
		sent <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := rdmanet.Dial(ctx, a.Open(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	_ = c.Close() // the other side has closed
	if err := <-sent; err != nil {
		t.Errorf("the sender: %v", err)
	}
	if bad.Hit() == 0 {
		t.Error("nothing was lost")
	}
}

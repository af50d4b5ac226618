package tap_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/internal/tap"
	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/rdmanet"
	"github.com/softroce/softroce/pkg/verbs"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// device opens an adapter of its own.
func device(t testing.TB, addrs ...netip.Addr) *verbs.Device {
	t.Helper()
	a, err := adapter.Start(adapter.Config{Addrs: addrs, Workers: 2})
	check(t, err)
	t.Cleanup(func() { _ = a.Close() })
	d, err := a.Open()
	check(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// stream connects two devices; what is written to the one end comes out of the
// other.
func stream(t testing.TB, from, to *verbs.Device, addr netip.Addr) (in, out net.Conn) {
	t.Helper()
	l, err := rdmanet.Listen(to, net.JoinHostPort(addr.String(), "0"))
	check(t, err)
	t.Cleanup(func() { _ = l.Close() })
	in, err = (&rdmanet.Dialer{Device: from}).Dial("rdma", l.Addr().String())
	check(t, err)
	out, err = l.Accept()
	check(t, err)
	t.Cleanup(func() { _, _ = in.Close(), out.Close() })
	return in, out
}

// carry moves n bytes.
func carry(t testing.TB, in io.Writer, out io.Reader, n int) {
	t.Helper()
	got := make(chan error)
	go func() {
		_, err := io.CopyN(io.Discard, out, int64(n))
		got <- err
	}()
	_, err := in.Write(bytes.Repeat([]byte("softroce"), n/8))
	check(t, err)
	check(t, <-got)
}

// read gives all that a capture has.
func read(c io.Reader) <-chan []byte {
	all := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(c)
		all <- b
	}()
	return all
}

func records(t testing.TB, b []byte) (rs []capture.Record) {
	t.Helper()
	check(t, capture.Decode(bytes.NewReader(b), func(r capture.Record) { rs = append(rs, r) }))
	return rs
}

// A capture that begins and ends while packets flow has each of them, with the
// queue pair, the work request and the verdict; and also those between two queue
// pairs of one adapter have a right ICRC then.
func TestCapture(t *testing.T) {
	for name, one := range map[string]bool{"two adapters": false, "one adapter": true} {
		t.Run(name, func(t *testing.T) {
			addrs := testaddr.Take(t, 2)
			a := device(t, addrs[0])
			b, to := a, addrs[0]
			if !one {
				b, to = device(t, addrs[1]), addrs[1]
			}
			in, out := stream(t, a, b, to)
			carry(t, in, out, 1<<20)
			c, err := tap.Start(a, tap.Options{})
			check(t, err)
			all := read(c)
			carry(t, in, out, 1<<20)
			n, err := c.Stop()
			check(t, err)
			carry(t, in, out, 1<<16)
			rs := records(t, <-all)
			if uint64(len(rs)) != n.Written || n.Lost != 0 || len(rs) < 256 {
				t.Errorf("%d packets came, %d written, %d lost", len(rs), n.Written, n.Lost)
			}
			if _, err := c.Stats(); err == nil {
				t.Error("the capture is over and still counts")
			}
			sent, heard := 0, 0
			for _, r := range rs {
				note := capture.ParseNote(r.Comment)
				if r.Bad() || !note.HasQP {
					t.Fatal(r)
				}
				switch info := r.Opcode.Info(); {
				case r.Way == capture.Outbound && info.Request && note.Op != "" && note.Op != "RECV" && note.Verdict == "":
					sent++
				case r.Way == capture.Inbound && note.Verdict == "accepted" && r.QPN == note.QPN:
					heard++
				}
			}
			if sent < 256 || heard == 0 {
				t.Errorf("%d packets with their request, %d accepted: %v", sent, heard, rs[0])
			}
		})
	}
}

// A reader that does not read loses packets, which the capture says; the transfer
// goes on.
func TestSlowReader(t *testing.T) {
	addrs := testaddr.Take(t, 2)
	a, b := device(t, addrs[0]), device(t, addrs[1])
	in, out := stream(t, a, b, addrs[1])
	c, err := tap.Start(a, tap.Options{})
	check(t, err)
	carry(t, in, out, 24<<20)
	n, err := c.Stats()
	check(t, err)
	if n.Lost == 0 {
		t.Fatal("a capture that nobody reads lost nothing")
	}
	all := make(chan []byte, 1)
	var began []byte // the reader wakes up, and there is room again: the queue had as much as it holds
	for len(began) < 4<<20 {
		buf := make([]byte, 1<<20)
		k, err := c.Read(buf)
		check(t, err)
		began = append(began, buf[:k]...)
	}
	go func() {
		rest, _ := io.ReadAll(c)
		all <- append(began, rest...)
	}()
	carry(t, in, out, 1<<20)
	n, err = c.Stop()
	check(t, err)
	var lost uint64
	rs := records(t, <-all)
	for _, r := range rs {
		lost += capture.ParseNote(r.Comment).Lost
	}
	if uint64(len(rs)) != n.Written || lost == 0 || lost > n.Lost {
		t.Errorf("%d packets of %d, %d of %d lost ones are noted", len(rs), n.Written, lost, n.Lost)
	}
}

// Queue pairs and peers are chosen, and a reader that goes ends the capture alone.
func TestChoice(t *testing.T) {
	addrs := testaddr.Take(t, 3)
	a, b := device(t, addrs[0]), device(t, addrs[1])
	in, out := stream(t, a, b, addrs[1])
	in2, out2 := stream(t, a, b, addrs[1])
	find, err := tap.Start(a, tap.Options{})
	check(t, err)
	all := read(find)
	carry(t, in, out, 1<<12)
	_, err = find.Stop()
	check(t, err)
	qpn := uint32(0)
	for _, r := range records(t, <-all) {
		if n := capture.ParseNote(r.Comment); n.HasQP && n.QPN > bth.QPN(1) {
			qpn = uint32(n.QPN)
		}
	}
	var chosen []*tap.Capture
	var tapes []<-chan []byte
	for _, o := range []tap.Options{{QPNs: []uint32{qpn}}, {Peer: addrs[1]}, {Peer: addrs[2]}, {}} {
		c, err := tap.Start(a, o)
		check(t, err)
		chosen = append(chosen, c)
		if o.QPNs != nil || o.Peer.IsValid() {
			tapes = append(tapes, read(c))
		}
	}
	if _, err := tap.Start(a, tap.Options{}); err == nil || !strings.Contains(err.Error(), "4") {
		t.Errorf("a fifth capture of one program: %v", err)
	}
	check(t, chosen[3].Close())
	carry(t, in, out, 1<<16)
	carry(t, in2, out2, 1<<16)
	for _, c := range chosen[:3] {
		_, err := c.Stop()
		check(t, err)
	}
	one, both, none := records(t, <-tapes[0]), records(t, <-tapes[1]), records(t, <-tapes[2])
	for _, r := range one {
		if n := capture.ParseNote(r.Comment); uint32(n.QPN) != qpn {
			t.Errorf("not of queue pair %#x: %v", qpn, r)
		}
	}
	if len(one) == 0 || len(both) <= len(one) || len(none) > 0 {
		t.Errorf("%d packets of one queue pair, %d to the peer, %d to another", len(one), len(both), len(none))
	}
	if _, err := chosen[3].Stats(); err == nil {
		t.Error("nobody reads the capture any more, and it goes on")
	}
}

// A capture that is closed is over, also one that no packet is of: a program may have
// a few at a time, and any number one after the other.
func TestCloseEndsACapture(t *testing.T) {
	dev := device(t, testaddr.Take(t, 1)...)
	for i := range 20 {
		c, err := tap.Start(dev, tap.Options{QPNs: []uint32{0xABCDEF}})
		for end := time.Now().Add(20 * time.Second); errors.Is(err, syscall.ENOSPC) && time.Now().Before(end); runtime.Gosched() {
			c, err = tap.Start(dev, tap.Options{QPNs: []uint32{0xABCDEF}}) // the last one is on its way out
		}
		if err != nil {
			t.Fatalf("capture %d: %v", i, err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

package trace

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/pkg/bth"
)

const captures = "../../pkg/bth/testdata/captures"

func readFile(t testing.TB, file string) *Trace {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tr, err := Read(f, Options{})
	if err != nil {
		t.Fatal(file, err)
	}
	return tr
}

var hosts = [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}

// tape writes packets of RC connections, as some capture would have them.
type tape struct {
	t   testing.TB
	buf bytes.Buffer
	w   *capture.Writer
	now time.Duration
}

func newTape(t testing.TB) *tape {
	t.Helper()
	x := &tape{t: t}
	var err error
	if x.w, err = capture.NewWriter(&x.buf, "tape", capture.WriterOptions{}); err != nil {
		t.Fatal(err)
	}
	return x
}

// put writes a packet from one of the hosts; body is what follows its BTH.
func (x *tape) put(from int, op bth.Opcode, qpn bth.QPN, psn bth.PSN, note string, body ...byte) {
	x.t.Helper()
	h := bth.BTHFields{Opcode: op, PKey: bth.DefaultPKey, DestQP: qpn, PSN: psn, AckReq: true, Pad: 0}
	b := append(h.Append(nil), body...)
	p := capture.Packet{
		Time: time.Unix(1000, 0).Add(x.now), Src: hosts[from], Dst: hosts[1-from], SrcPort: 0xC000, TTL: 64, IDKnown: true, Comment: note,
	}
	net := bth.NetHeader{Src: bth.GIDFromAddr(p.Src), Dst: bth.GIDFromAddr(p.Dst), SrcPort: p.SrcPort, DstPort: 4791}
	p.Payload = bth.AppendICRC(b, bth.ICRC(net.Seed(len(b)+4), b))
	p.Outbound = strings.HasPrefix(note, "qp ")
	if err := x.w.WritePacket(p); err != nil {
		x.t.Fatal(err)
	}
	x.now += 10 * time.Microsecond
}

func (x *tape) send(qpn bth.QPN, psn bth.PSN) {
	x.put(0, bth.RCSendOnly, qpn, psn, "", make([]byte, 64)...)
}

func (x *tape) answer(qpn bth.QPN, psn bth.PSN, s bth.Syndrome) {
	x.put(1, bth.RCAcknowledge, qpn, psn, "", byte(s), 0, 0, 1)
}

func (x *tape) bytes() []byte {
	x.t.Helper()
	if err := x.w.Flush(); err != nil {
		x.t.Fatal(err)
	}
	return x.buf.Bytes()
}

func (x *tape) read() *Trace {
	x.t.Helper()
	tr, err := Read(bytes.NewReader(x.bytes()), Options{})
	if err != nil {
		x.t.Fatal(err)
	}
	return tr
}

// longTape is a transfer of n packets with a loss here and there.
func longTape(t testing.TB, n int) []byte {
	x := newTape(t)
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a seed, no secret (2026-11)
	for psn, k := bth.PSN(0xFFFF00), 0; k < n; {
		for i := 0; i < 20 && k < n; i++ {
			x.send(0x11, psn.Add(uint32(i)))
			k++
		}
		last := psn.Add(19)
		switch {
		case k == n:
			continue
		case r.IntN(20) == 0:
			x.answer(0x22, psn.Add(7), bth.NAKSequence)
			psn = psn.Add(7)
		case r.IntN(200) == 0:
			x.now += 50 * time.Millisecond
			continue
		default:
			x.answer(0x22, last, bth.AckNoCredit)
			psn = last.Add(1)
		}
		k++
	}
	return x.bytes()
}

// What each capture of kernel rxe says, in numbers.
func TestStoriesOfRxe(t *testing.T) {
	for _, c := range []struct {
		file string
		want string // of the first connection's first direction
		find string // in its findings
	}{
		{"rc_send_small", "", "Nothing went wrong"},
		{"rc_loss_write", "sequence NAKs", "did not reach B"},
		{"rc_rnr", "3 RNR NAKs", "had no receive posted"},
		{"rc_retry_exceeded", "3 timeouts", "no answer: it was sent 4 times"},
		{"rc_loss_read", "1 answer missing", "READ response"},
		{"rc_nak_bad_rkey_write", "", "remote access error"},
		{"rc_psn_wrap", "4 messages, 7 packets, 4.93 KiB; round trip", ""},
		{"ud_send", "", "Datagrams have no acknowledgements"},
		{"uc_loss", "", "cannot be seen on an unreliable connection"},
		{"rc_mixed_ipv6", "5 messages, 7 packets, 2.99 KiB; round trip", ""},
	} {
		t.Run(c.file, func(t *testing.T) {
			tr := readFile(t, filepath.Join(captures, c.file+".pcap"))
			conn := tr.Conns[0]
			var found []string
			for _, f := range conn.Findings() {
				found = append(found, f.Text)
			}
			all := strings.Join(found, "\n")
			if s := conn.Dirs[0].summary(); !strings.Contains(s, c.want) || !strings.Contains(all, c.find) {
				t.Errorf("%s\n%s\nwant %q and %q", s, all, c.want, c.find)
			}
		})
	}
}

// Each capture that we have gives a text and a page, at each width, and every
// packet is in one connection.
func TestEveryCapture(t *testing.T) {
	files, err := filepath.Glob(captures + "/*.pcap")
	if err != nil || len(files) < 20 {
		t.Fatal(len(files), err)
	}
	for _, f := range append(files, "testdata/softroce_lossy.pcapng") {
		tr := readFile(t, f)
		n := 0
		for _, c := range tr.Conns {
			n += len(c.packets)
		}
		if n != len(tr.Packets) {
			t.Errorf("%s: %d of %d packets are in a connection", f, n, len(tr.Packets))
		}
		for _, width := range []int{0, 1, 60, 79, 200} {
			var b bytes.Buffer
			if err := tr.Text(&b, TextOptions{Width: width, All: true}); err != nil {
				t.Error(err)
			}
			limit := max(width, 40)
			if width == 0 {
				limit = 100
			}
			for line := range strings.Lines(b.String()) {
				if len([]rune(strings.TrimRight(line, "\n"))) > limit && strings.Contains(line, "|") {
					t.Fatalf("%s: a line of more than %d columns: %q", f, limit, line)
				}
			}
			if strings.Contains(b.String(), "\x1b") {
				t.Error("colours without a terminal")
			}
		}
	}
}

// Two directions are found by what answers what, with several connections at once
// and a capture that begins in the middle.
func TestPairing(t *testing.T) {
	x := newTape(t)
	const n = 8
	for i := range bth.PSN(30) {
		for c := range bth.QPN(n) {
			base := bth.PSN(c * 70_000)
			if i > 0 || c%2 == 0 {
				x.send(0x100+c, base+i)
			}
			x.answer(0x200+(n-1-c), base+i, bth.AckNoCredit)
		}
	}
	tr := x.read()
	if len(tr.Conns) != n {
		t.Fatalf("%d connections, want %d", len(tr.Conns), n)
	}
	for _, c := range tr.Conns {
		a, b := c.Ends[0], c.Ends[1]
		if a.Addr != hosts[0] || !a.Known || !b.Known || a.QPN-0x200 != n-1-(b.QPN-0x100) {
			t.Errorf("%v", c)
		}
		if d := c.Dirs[0]; d.Open != 0 || d.Answers != 30 || c.Dirs[1].Sent != 0 {
			t.Errorf("%v: %+v", c, d)
		}
	}
}

// An adapter's comments name the two ends, and a packet that it sent and got itself
// is one.
func TestNotes(t *testing.T) {
	x := newTape(t)
	for i := range bth.PSN(5) {
		x.now = time.Duration(i) * time.Millisecond
		x.put(0, bth.RCSendOnly, 0x11, i, "qp 0x000022, wr 7 SEND")
		x.put(0, bth.RCSendOnly, 0x11, i, map[bool]string{true: "accepted, qp 0x000011", false: "dropped: icrc"}[i != 3])
		x.put(1, bth.RCAcknowledge, 0x22, i, "qp 0x000011", byte(bth.AckNoCredit), 0, 0, 1)
	}
	x.put(1, bth.RCSendOnly, 0x33, 9, "qp 0x000044")
	x.put(1, bth.RCSendOnly, 0x55, 9, "qp 0x000066") // two that are alike but for the comment
	x.put(0, bth.RCSendOnly, 0x66, 9, "")
	x.put(0, bth.RCSendOnly, 0x44, 9, "")
	tr := x.read()
	if len(tr.Packets) != 14 || len(tr.Conns) != 3 || tr.Conns[2].Ends != [2]End{{hosts[1], 0x66, true}, {hosts[0], 0x55, true}} || tr.Conns[0].Ends[0].QPN != 0x22 || tr.Conns[1].Ends[0].QPN != 0x44 {
		t.Fatalf("%d packets, %v", len(tr.Packets), tr.Conns)
	}
	p := tr.Packets[tr.Conns[0].packets[0]]
	if p.Note.WR != 7 || p.Got == nil || p.Got.Verdict != "accepted" {
		t.Errorf("%+v", p)
	}
	dropped := 0
	for _, e := range tr.Conns[0].Events {
		if e.Kind == KindDropped && strings.Contains(e.Text, "by the adapter that got it: icrc") {
			dropped++
		}
	}
	if dropped != 1 {
		t.Errorf("%+v", tr.Conns[0].Events)
	}
}

// What was dropped on purpose is found first, by its rule, and nothing else is guessed of.
func TestOnPurpose(t *testing.T) {
	for _, c := range []struct{ comment, want string }{
		{"dropped: impaired by rule 2, qp 0x000022", "4 packets were dropped on purpose (rule 2 of softroce impair show)"},
		{"dropped: impaired, qp 0x000022", "4 packets were dropped on purpose (a rule of softroce impair show)"},
	} {
		x := newTape(t)
		for range 4 {
			x.put(0, bth.RCSendOnly, 0x11, 1, c.comment)
			x.now += 30 * time.Millisecond
		}
		fs := x.read().Conns[0].Findings()
		if len(fs) < 2 || !strings.HasPrefix(fs[0].Text, c.want) || fs[0].Event < 0 {
			t.Fatalf("got %+v, want %q first", fs, c.want)
		}
		for _, f := range fs[1:] {
			if strings.Contains(f.Text, "path MTU") || strings.Contains(f.Text, "by the adapter itself") {
				t.Errorf("guessed: %q", f.Text)
			}
		}
		if fs[1].Weight != Fail || !strings.Contains(fs[1].Text, "has no answer") {
			t.Errorf("the second is %+v", fs[1])
		}
	}
}

// Packets that were dropped before they left come to their places among those of the
// same time, however many there are: a file decides how many.
func TestDroppedInTheirPlaces(t *testing.T) {
	const n = 1 << 17
	var tr Trace
	for _, dropped := range []bool{true, false} { // noted first
		for i := range n {
			if p := (Packet{Op: bth.RCSendOnly, QPN: bth.QPN(1 + i%2), PSN: bth.PSN(i / 2), Way: capture.Outbound}); (i/2%2 == 0) == dropped {
				if dropped {
					p.Flags = Dropped
				}
				tr.Packets = append(tr.Packets, p)
			}
		}
	}
	tr.orderDropped()
	var next [2]bth.PSN
	for i := range tr.Packets {
		p := &tr.Packets[i]
		if k := p.QPN - 1; p.PSN != next[k] {
			t.Fatalf("packet %d of %d: PSN %v to queue pair %v, want %v", i, len(tr.Packets), p.PSN, p.QPN, next[k])
		} else {
			next[k]++
		}
	}
	if next != [2]bth.PSN{n / 2, n / 2} {
		t.Errorf("PSNs end at %v, want %d", next, n/2)
	}
}

// The machine's verdict on small stories.
func TestStories(t *testing.T) {
	const q, back = 0x11, 0x22
	for _, c := range []struct {
		name string
		do   func(x *tape)
		want []Kind
		find string
	}{
		{"nothing", func(x *tape) { x.send(q, 1); x.answer(back, 1, bth.AckNoCredit) }, nil, "Nothing"},
		{"wraps", func(x *tape) {
			for i := range uint32(6) {
				p := bth.PSN(0xFFFFFE).Add(i)
				x.send(q, p)
				x.answer(back, p, bth.AckNoCredit)
			}
		}, nil, "Nothing"},
		{"a lost request", func(x *tape) {
			for p := range bth.PSN(4) {
				x.send(q, p)
			}
			x.answer(back, 1, bth.NAKSequence)
			for p := range bth.PSN(3) {
				x.send(q, p+1)
			}
			x.answer(back, 3, bth.AckNoCredit)
		}, []Kind{KindLost, KindResend}, "1 packet of A did not reach B"},
		{"a lost acknowledgement", func(x *tape) {
			x.send(q, 0)
			x.answer(back, 0, bth.AckNoCredit)
			x.send(q, 1)
			x.send(q, 2)
			x.now += 20 * time.Millisecond
			x.send(q, 1)
			x.answer(back, 2, bth.AckNoCredit)
		}, []Kind{KindTimeout, KindStall}, "20.0 ms at most"},
		{"an overtaken packet", func(x *tape) {
			for _, p := range []bth.PSN{0, 2, 1, 3} {
				x.send(q, p)
			}
			x.answer(back, 3, bth.AckNoCredit)
		}, []Kind{KindGap}, "not in the capture"},
		{"RNR", func(x *tape) {
			x.send(q, 0)
			x.answer(back, 0, bth.RNRSyndrome(12))
			x.now += 700 * time.Microsecond
			x.send(q, 0)
			x.answer(back, 0, bth.AckNoCredit)
		}, []Kind{KindRNR, KindResend}, "no receive posted"},
		{"refused", func(x *tape) { x.send(q, 0); x.answer(back, 0, bth.NAKRemoteAccess) }, []Kind{KindNAK}, "queue pair goes to the error state"},
		{"never answered", func(x *tape) {
			x.send(q, 0)
			x.answer(back, 0, bth.AckNoCredit)
			for range 4 {
				x.send(q, 1)
				x.now += 30 * time.Millisecond
			}
		}, []Kind{KindTimeout, KindStall, KindTimeout, KindStall, KindTimeout, KindSilent, KindStall}, "sent 4 times"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newTape(t)
			c.do(x)
			tr := x.read()
			var kinds []Kind
			for _, e := range tr.Conns[0].Events {
				kinds = append(kinds, e.Kind)
			}
			var all string
			for _, f := range tr.Conns[0].Findings() {
				all += f.Text + "\n"
			}
			if len(tr.Conns) != 1 || !equal(kinds, c.want) || !strings.Contains(all, c.find) {
				t.Errorf("%v, want %v\n%s", kinds, c.want, all)
			}
		})
	}
}

func equal(a, b []Kind) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// Files that are broken, cut or of something else are told in words.
func TestBadInput(t *testing.T) {
	good, err := os.ReadFile(filepath.Join(captures, "rc_loss_write.pcap"))
	if err != nil {
		t.Fatal(err)
	}
	x := newTape(t)
	empty := bytes.Clone(x.bytes())
	for _, c := range []struct {
		name string
		b    []byte
		err  error
		text string
	}{
		{"nothing", nil, capture.ErrFormat, "0 bytes"},
		{"no capture", []byte("hello, this is no capture at all"), capture.ErrFormat, "starts with"},
		{"an empty capture", empty, ErrNoPackets, "among the 0 frames"},
		{"another protocol", bytes.ReplaceAll(good, []byte{0x12, 0xb7}, []byte{0, 53}), ErrNoPackets, "UDP to port 4791"},
		{"only a header", good[:24], ErrNoPackets, "no RoCEv2"},
	} {
		if _, err := Read(bytes.NewReader(c.b), Options{}); !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	tr, err := Read(bytes.NewReader(good[:len(good)/2]), Options{})
	if err != nil || len(tr.Warnings) != 1 || !strings.Contains(tr.Warnings[0], "not read to its end") || len(tr.Packets) < 50 {
		t.Errorf("half a file: %v, %v", tr, err)
	}
	if _, err := Read(bytes.NewReader(good), Options{QPNs: []uint32{1}}); !errors.Is(err, ErrNoPackets) {
		t.Errorf("a queue pair that is not there: %v", err)
	}
	tr, err = Read(bytes.NewReader(good), Options{QPNs: []uint32{0xbc}, Peer: netip.MustParseAddr("10.77.0.11"), Max: 10})
	if err != nil || len(tr.Packets) != 10 || len(tr.Warnings) != 1 || tr.Left != 231 {
		t.Errorf("the first ten: %v", err)
	}
}

// A capture whose packets are cut behind their headers has the same story; one that
// cuts the headers says so.
func TestSnapLength(t *testing.T) {
	good, err := os.ReadFile(filepath.Join(captures, "rc_loss_write.pcap"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := Read(bytes.NewReader(good), Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read(bytes.NewReader(cutPackets(good, 80)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := got.Conns[0].Dirs[0].summary(), want.Conns[0].Dirs[0].summary(); a != b || got.Conns[0].MTU != 1024 {
		t.Errorf("cut: %s, whole: %s", a, b)
	}
	if _, err := Read(bytes.NewReader(cutPackets(good, 48)), Options{}); !errors.Is(err, ErrNoPackets) || !strings.Contains(err.Error(), "snap length") {
		t.Errorf("cut in the headers: %v", err)
	}
}

// cutPackets cuts the frames of a pcap (little endian) as a snap length does.
func cutPackets(b []byte, n uint32) []byte {
	out := bytes.Clone(b[:24])
	word := func(b []byte) uint32 { return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24 }
	for b = b[24:]; len(b) >= 16; {
		have := word(b[8:])
		keep := min(have, n)
		head := bytes.Clone(b[:16])
		head[8], head[9], head[10], head[11] = byte(keep), byte(keep>>8), byte(keep>>16), byte(keep>>24)
		out = append(append(out, head...), b[16:16+keep]...)
		b = b[16+have:]
	}
	return out
}

// The page holds everything itself and needs nothing.
func TestPageIsAlone(t *testing.T) {
	var b bytes.Buffer
	if err := readFile(t, "testdata/softroce_lossy.pcapng").HTML(&b); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"http:", "https:", "src=\"", "@import", "url("} {
		s := strings.NewReplacer("http://www.w3.org/2000/svg", "", "url(#clip)", "").Replace(b.String())
		if strings.Contains(s, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
}

// Any bytes give a story or an error, in text and as a page.
func FuzzRead(f *testing.F) {
	for _, name := range []string{"rc_rnr", "rc_loss_read", "ud_send", "uc_loss", "cm_rping"} {
		b, err := os.ReadFile(filepath.Join(captures, name+".pcap"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[:min(len(b), 8<<10)])
	}
	b, err := os.ReadFile("testdata/softroce_lossy.pcapng")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b[:4<<10])
	f.Fuzz(func(t *testing.T, b []byte) {
		tr, err := Read(bytes.NewReader(b), Options{Max: 1000})
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := tr.Text(&out, TextOptions{Width: 80, Colour: true, All: true}); err != nil {
			t.Error(err)
		}
	})
}

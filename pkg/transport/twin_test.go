package transport_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/simnet"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/transport"
)

// A twin records what a test's queue pairs do, for a comparison with the same
// test whose queue pairs do not handle runs. A nil twin does nothing.
type twin struct {
	runs   bool
	rand   simnet.Rand
	log    []string
	states map[int]string // of the end that made the entry before
	quiet  bool           // inside a run
	buf    [64 << 10]byte
	ahead  []simnet.Datagram // taken from the network, not handled
	sent   int               // packets built as part of runs
	taken  int               // packets handled as part of runs
	lent   int               // of both, by reference
	failed string
}

func newTwin(runs bool, seed uint64) *twin {
	return &twin{runs: runs, rand: simnet.NewRand(seed), states: make(map[int]string)}
}

// note records the state of an end, behind some of the entries.
func (t *twin) note(e *end) {
	if t != nil && len(t.log)%3 == 0 {
		t.states[len(t.log)] = fmt.Sprintf("%v: %v %v %v", e.qpn, e.qp.NextTimeout(), e.qp.Window(), e.qp.Inner())
	}
}

// entry records what an end did, and its state behind some of the entries, when
// it is not inside a run.
func (t *twin) entry(e *end, s string) {
	t.log = append(t.log, s)
	if !t.quiet && len(t.log)%4 == 0 {
		t.note(e)
	}
}

// built records a packet.
func (t *twin) built(e *end, b []byte) {
	if t != nil {
		t.entry(e, fmt.Sprintf("%v-> %s %x", e.qpn, packetText(b), b[len(b)-bth.ICRCLen:]))
	}
}

// handled records the verdict on a packet.
func (t *twin) handled(e *end, b []byte, v transport.Verdict) {
	if t != nil {
		t.entry(e, fmt.Sprintf("%v<- %s %v", e.qpn, packetText(b), v))
	}
}

// take is the next datagram.
func (t *twin) take(n *simnet.Net) (simnet.Datagram, bool) {
	if t == nil || len(t.ahead) == 0 {
		return n.Take()
	}
	d := t.ahead[0]
	t.ahead = t.ahead[1:]
	return d, true
}

// takeRun hands the packets that follow d, which an end handled, on as a run, as
// an adapter would, when they are one, and a random part of it at that. bare:
// they have no ICRC.
func (t *twin) takeRun(n *simnet.Net, e *end, d *simnet.Datagram, v transport.Verdict, bare bool) {
	if t == nil || !t.runs || v != transport.Accepted || t.rand.IntN(8) == 0 {
		return
	}
	var p bth.Packet
	if p.Parse(d.Data) != nil || p.Info.Position != bth.First && p.Info.Position != bth.Middle {
		return
	}
	size, op := bth.BTHLen+len(p.Payload)+bth.ICRCLen, middleOf[p.Info.Op]
	lead := append([]byte(nil), d.Data[:bth.BTHLen-3]...)
	lead[0], lead[4], lead[8] = byte(op), 0, 0
	h := bth.NetHeader{Src: e.parsed.Src, Dst: e.gid, SrcPort: worldPort, DstPort: 4791}
	first, k := p.BTH().PSN().Add(1), 0
	var run []byte
	for most := 1 + t.rand.IntN(60); k < most && t.look(n, k); k++ {
		b := t.ahead[k].Data
		if t.ahead[k].To != d.To || len(b) != size || !bytes.HasPrefix(b, lead) || bth.BTH(b).PSN() != first.Add(uint32(k)) {
			break
		}
		if !bare && bth.ICRC(h.Seed(size), b[:size-bth.ICRCLen]) != binary.LittleEndian.Uint32(b[size-bth.ICRCLen:]) {
			break
		}
		run = append(run, b...)
	}
	took := t.giveRun(n.Now(), e, op, first, run, size, bare)
	if took < 0 || took > k {
		t.failed = fmt.Sprintf("took %d of %d packets", took, k)
		return
	}
	for i := range took {
		t.quiet = i < took-1
		t.handled(e, t.ahead[i].Data, transport.Accepted)
	}
	t.quiet = false
	t.ahead = t.ahead[took:]
	t.taken += took
}

// giveRun hands a run to an end, as packets or as a loan.
func (t *twin) giveRun(now time.Time, e *end, op bth.Opcode, first bth.PSN, run []byte, size int, bare bool) (took int) {
	if !bare || len(run) == 0 || t.rand.IntN(2) == 0 {
		return e.qp.HandleMiddles(now, op, first, run, size)
	}
	p, mtu := e.parsed, size-bth.BTHLen-bth.ICRCLen
	if err := p.Parse(append(append([]byte(nil), run[:bth.BTHLen]...), 0, 0, 0, 0)); err != nil {
		t.failed = err.Error()
	}
	var payload []byte
	for b := run; len(b) > 0; b = b[size:] {
		payload = append(payload, b[bth.BTHLen:][:mtu]...)
	}
	took = e.qp.HandleLent(now, &p, payload, mtu)
	t.lent += took
	return took
}

// lendRun builds a run of what an end lends.
func (t *twin) lendRun(e *end, now time.Time, buf []byte, most int) (k int, first bth.PSN) {
	var head [bth.BTHLen + bth.ICRCLen]byte
	k, payload := e.qp.LendMiddles(now, head[:], most, t.rand.IntN(2) == 0)
	if k == 0 {
		return 0, 0
	}
	mtu, at := len(payload)/k, 0
	for i := range k {
		at += transport.BuildLent(buf[at:], head[:], i, payload[i*mtu:][:mtu])
	}
	t.lent += k
	return k, bth.BTH(head[:]).PSN()
}

// look says whether there is a datagram k places behind the one that is handled.
func (t *twin) look(n *simnet.Net, k int) bool {
	if k < len(t.ahead) {
		return true
	}
	d, ok := n.Take()
	if ok {
		d.Data = append([]byte(nil), d.Data...)
		t.ahead = append(t.ahead, d)
	}
	return ok
}

var middleOf = map[bth.Op]bth.Opcode{
	bth.OpSend: bth.RCSendMiddle, bth.OpWrite: bth.RCWriteMiddle, bth.OpReadResponse: bth.RCReadResponseMiddle,
}

// pollRun builds a run behind a packet of n bytes, at random, of as many packets
// as begin within room bytes, and returns its length in bytes.
func (t *twin) pollRun(e *end, now time.Time, n, room int, send func([]byte)) int {
	if t == nil || !t.runs || room <= 0 || t.rand.IntN(4) == 0 {
		return 0
	}
	var p bth.Packet
	if err := p.Parse(e.buf[:n]); err != nil {
		t.failed = err.Error()
		return 0
	}
	size := bth.BTHLen + len(p.Payload) + bth.ICRCLen
	buf := t.buf[:t.rand.IntN(len(t.buf))]
	for i := range buf {
		buf[i] = 0xEE
	}
	most := min((room+size-1)/size, t.rand.IntN(40))
	k, first := 0, bth.PSN(0)
	if t.rand.IntN(2) == 0 {
		k, first = t.lendRun(e, now, buf, min(most, len(buf)/size))
	} else {
		k, first = e.qp.PollMiddles(now, buf, most)
	}
	if k > 0 && (k > most || k*size > len(buf) || first != p.BTH().PSN().Add(1)) {
		t.failed = fmt.Sprintf("behind %s: %d packets, the first has PSN %v; room for %d", packetText(e.buf[:n]), k, first, most)
		return 0
	}
	for i := k * size; i < len(buf); i++ {
		if buf[i] != 0xEE {
			t.failed = fmt.Sprintf("a run of %d packets of %d bytes: byte %d was written", k, size, i)
			break
		}
	}
	for i := range k {
		t.quiet = i < k-1
		t.built(e, buf[i*size:(i+1)*size])
		send(buf[i*size : (i+1)*size])
	}
	t.quiet = false
	t.sent += k
	return k * size
}

// sendRun sends a run behind a packet of n bytes that a side of the world sent,
// and returns the number of packets.
func (t *twin) sendRun(w *world, s *side, now time.Time, n int) (k int) {
	t.built(s.end, s.buf[:n])
	t.pollRun(s.end, now, n, 1<<30, func(b []byte) {
		w.net.Send(s.index, 1-s.index, b)
		k++
	})
	return k
}

// differ says where two twins differ.
func (t *twin) differ(u *twin) string {
	if t.failed != "" {
		return t.failed
	}
	for i := range min(len(t.log), len(u.log)) {
		if t.log[i] != u.log[i] {
			return fmt.Sprintf("entry %d of %d: got\n%s\nwant\n%s", i, len(u.log), t.log[i], u.log[i])
		}
	}
	for i := range len(t.log) + 1 {
		s, noted := t.states[i]
		if !noted {
			continue
		}
		if want, ok := u.states[i]; ok && s != want {
			return fmt.Sprintf("after entry %d, %s: got\n%s\nwant\n%s", i-1, t.log[i-1], s, want)
		}
	}
	if len(t.log) != len(u.log) {
		return fmt.Sprintf("%d entries, want %d", len(t.log), len(u.log))
	}
	return ""
}

// twins runs the world of a configuration with and without runs. Nothing must
// tell the two apart.
func twins(t *testing.T, make func() worldConfig) (runs *twin) {
	var pair [2]*twin
	var errs [2]string
	for i := range pair {
		c := make()
		w := newWorld(t, c)
		pair[i] = newTwin(i == 1, c.seed)
		w.twin = pair[i]
		if err := w.run(); err != nil {
			errs[i] = err.Error()
		}
	}
	if s := pair[1].differ(pair[0]); s != "" {
		t.Errorf("seed %d: %s", make().seed, s)
	}
	if errs[0] != errs[1] {
		t.Errorf("seed %d: %s, want %s", make().seed, errs[1], errs[0])
	}
	return pair[1]
}

package transport_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/simnet"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// The memory of the services without acknowledgements, in slots: what is sent,
// receives, and where the peer WRITEs. What is behind them never changes.
const (
	letterSlot   = 12 << 10
	letterSlots  = 8
	letterRecv   = letterSlots * letterSlot
	letterWrite  = 2 * letterSlots * letterSlot
	letterGuard  = 3 * letterSlots * letterSlot
	letterMemory = letterGuard + 4096
)

// A letter is a message that may be lost. Its first four bytes say which it is,
// and so does its immediate.
type letter struct {
	id        uint32
	code      wq.Opcode
	from, to  int
	n         int
	wrongKey  bool // UD: not the receiver's Q_Key
	lost      int  // packets of it
	delivered bool
}

// fill writes a letter's content.
func (l *letter) fill(b []byte) {
	for i := range b {
		b[i] = byte(int(l.id)*31 + i*7 + i>>8)
	}
	if len(b) >= 4 {
		binary.BigEndian.PutUint32(b, l.id)
	}
}

func (l *letter) told() bool { return l.code != wq.RDMAWrite }

// letterBox is one end.
type letterBox struct {
	*end
	index   int
	sending []*letter // posted, not wholly handed out
	done    []*letter // handed out, completion not seen
	byPSN   map[bth.PSN]*letter
	heard   map[int]uint32 // newest letter by sender
	nextID  uint32
	recvID  uint64
	posted  int
}

// A postOffice is some ends, and a network that loses.
type postOffice struct {
	t       testing.TB
	net     *simnet.Net
	rand    simnet.Rand
	boxes   []*letterBox
	letters map[uint32]*letter
	strict  bool // nothing is doubled and the order stays
	runs    bool
	now     *letter // whose packet is being sent
	typ     qpstate.Type
	mtu     int
	sent    int               // packets in runs
	taken   int               // likewise handled
	ahead   []simnet.Datagram // taken from the network, not handled
	buf     [1 << 15]byte
	err     error
}

func (p *postOffice) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
}

// newPostOffice makes the ends of a seed. choose decides each packet's fate; nil:
// the seed does.
func newPostOffice(t testing.TB, typ qpstate.Type, seed uint64, strict bool, choose func(uint64, int) simnet.Fate) *postOffice {
	p := &postOffice{t: t, rand: simnet.NewRand(seed), letters: map[uint32]*letter{}, strict: strict, typ: typ}
	mtu := bth.MTU256 + bth.MTU(p.rand.IntN(5))
	p.mtu, p.runs = mtu.Bytes(), p.rand.IntN(2) == 0
	cfg := simnet.Config{Seed: seed, Delay: netDelay, Choose: choose}
	switch {
	case choose != nil:
	case strict:
		cfg.Choose = func(uint64, int) (f simnet.Fate) {
			switch p.rand.IntN(40) {
			case 0:
				f.Drop = true
			case 1:
				f.Corrupt = 1 + p.rand.IntN(3)
			}
			if f != (simnet.Fate{}) {
				p.now.lost++
			}
			return f
		}
	default:
		cfg.Loss, cfg.Duplicate, cfg.Reorder, cfg.Corrupt, cfg.Jitter = .03, .03, .03, .03, time.Duration(p.rand.IntN(10000))
	}
	p.net = simnet.New(cfg, start)
	o := options{typ: typ, mtu: mtu, memSize: letterMemory, psnA: bth.PSNMask - bth.PSN(p.rand.IntN(200)), psnB: bth.PSN(1 + p.rand.IntN(1<<20))}.withDefaults()
	n := 2
	if typ == qpstate.UD {
		n = 3
	}
	for i := range n {
		b := &letterBox{end: newEnd(t, bth.QPN(0x11*(i+1)), byte(i+1), o), index: i, byPSN: map[bth.PSN]*letter{}, heard: map[int]uint32{}}
		p.boxes = append(p.boxes, b)
	}
	for i, b := range p.boxes {
		b.to(qpstate.RTS, p.boxes[1-min(i, 1)].end, o)
		for j, x := range p.boxes {
			b.ahs[uint32(j)] = &transport.Path{Src: b.gid, Dst: x.gid, SrcPort: worldPort, HopLimit: 64, MTU: uint32(p.mtu)}
		}
		p.postRecvs(b)
	}
	return p
}

// postRecvs keeps receives posted.
func (p *postOffice) postRecvs(b *letterBox) {
	for ; b.posted < letterSlots-1; b.posted++ {
		off := letterRecv + int(b.recvID%letterSlots)*letterSlot
		cut := 1 + p.rand.IntN(700)
		b.postRecv(p.net.Now(), b.recvID, b.sge(off, cut), b.sge(off+cut, letterSlot-cut))
		b.recvID++
	}
}

var ucLetters = [...]wq.Opcode{wq.Send, wq.SendWithImm, wq.RDMAWrite, wq.RDMAWriteWithImm}

// write posts a letter.
func (p *postOffice) write(b *letterBox) {
	b.nextID++
	l := &letter{id: b.nextID<<2 | uint32(b.index), from: b.index, to: (b.index + 1) % len(p.boxes), code: ucLetters[p.rand.IntN(4)]}
	most := 5 * p.mtu
	if p.typ == qpstate.UD {
		l.to = (b.index + 1 + p.rand.IntN(2)) % 3
		l.code = ucLetters[p.rand.IntN(2)]
		l.wrongKey = p.rand.IntN(8) == 0
		most = p.mtu
	}
	l.n = []int{p.rand.IntN(8), p.mtu * p.rand.IntN(most/p.mtu+1), p.rand.IntN(most + 1)}[p.rand.IntN(3)]
	l.n = min(l.n, letterSlot-64)
	if l.code == wq.Send {
		l.n = min(max(l.n, 4), most)
	}
	slot := int(b.nextID % letterSlots)
	l.fill(b.mem[slot*letterSlot:][:l.n])
	wr := wq.SendWR{
		WRID: uint64(l.id), Opcode: l.code, ImmData: l.id, Flags: wq.SendSignaled, AH: uint32(l.to),
		RemoteQPN: p.boxes[l.to].qpn, RemoteQKey: udKey, RKey: p.boxes[l.to].mr.RKey(), RemoteAddr: memBase + letterWrite + uint64(slot*letterSlot),
		SGList: []wq.SGE{b.sge(slot*letterSlot, l.n)},
	}
	if l.wrongKey {
		wr.RemoteQKey++
	}
	if l.n <= 200 && p.rand.IntN(2) == 0 {
		wr.Flags |= wq.SendInline
		wr.Inline, wr.SGList = append([]byte(nil), b.mem[slot*letterSlot:][:l.n]...), nil
	}
	b.post(p.net.Now(), wr)
	p.letters[l.id] = l
	b.sending = append(b.sending, l)
}

// send hands out everything.
func (p *postOffice) send(b *letterBox) {
	for {
		n, _ := b.qp.PollTransmit(p.net.Now(), b.buf[:])
		if n == 0 {
			break
		}
		p.sendPacket(b, b.buf[:n])
		if p.runs && p.rand.IntN(3) > 0 && len(b.sending) > 0 {
			k, _ := b.qp.PollMiddles(p.net.Now(), p.buf[:], 1+p.rand.IntN(8))
			for i, size := 0, b.qp.MiddleLen(); i < k; i++ {
				p.sendPacket(b, p.buf[i*size:][:size])
			}
			p.sent += k
		}
	}
	for _, wc := range b.sendCQ.wcs {
		if len(b.done) == 0 || uint64(b.done[0].id) != wc.WRID || wc.Status != cq.Success || int(wc.ByteLen) != b.done[0].n {
			p.fail("end %d: completion %s", b.index, wcText(&wc))
			return
		}
		b.done = b.done[1:]
	}
	if len(b.done)+len(b.sending) > 0 {
		p.fail("end %d: %d letters are handed out and not done, %d are not handed out", b.index, len(b.done), len(b.sending))
	}
	b.sendCQ.take0()
}

func (p *postOffice) sendPacket(b *letterBox, pkt []byte) {
	l := b.sending[0]
	p.now = l
	b.byPSN[bth.BTH(pkt).PSN()] = l
	if bth.Opcode(pkt[0]).Info().Position.Ends() {
		b.sending, b.done = b.sending[1:], append(b.done, l)
	}
	p.net.Send(b.index, l.to, pkt)
}

// deliver hands packets to their ends and looks at what comes of them.
func (p *postOffice) deliver() {
	for p.look(0) && p.err == nil {
		d := p.ahead[0]
		p.ahead = p.ahead[1:]
		b, from := p.boxes[d.To], p.boxes[d.From]
		pkt := &b.parsed
		pkt.Src, pkt.Dst = from.gid, b.gid
		if !p.proven(&d) || pkt.Parse(d.Data) != nil {
			continue
		}
		l := from.byPSN[pkt.BTH().PSN()]
		if d.Damaged && p.strict {
			l.lost-- // only what the ICRC does not cover changed
		}
		v := b.qp.HandlePacket(p.net.Now(), pkt)
		if v == transport.Accepted && pkt.Info.Op == bth.OpWrite && pkt.Info.Position.Ends() {
			p.checkWrite(b, l)
		}
		p.harvest(b)
		if v == transport.Accepted && p.runs {
			p.takeRun(b, &d)
		}
		if out, _ := b.qp.PollTransmit(p.net.Now(), b.buf[:]); out != 0 {
			p.fail("end %d answers", b.index)
		}
	}
}

// look says whether there is a packet k places behind the next one.
func (p *postOffice) look(k int) bool {
	for len(p.ahead) <= k {
		d, ok := p.net.Take()
		if !ok {
			return false
		}
		d.Data = append([]byte(nil), d.Data...)
		p.ahead = append(p.ahead, d)
	}
	return true
}

// proven says whether a packet's ICRC is right.
func (p *postOffice) proven(d *simnet.Datagram) bool {
	h := bth.NetHeader{Src: p.boxes[d.From].gid, Dst: p.boxes[d.To].gid, SrcPort: worldPort, DstPort: 4791}
	n := len(d.Data) - bth.ICRCLen
	return n >= bth.BTHLen && bth.ICRC(h.Seed(len(d.Data)), d.Data[:n]) == binary.LittleEndian.Uint32(d.Data[n:])
}

// takeRun hands the Middle packets behind d, which was taken, on as a run.
func (p *postOffice) takeRun(b *letterBox, d *simnet.Datagram) {
	info := bth.Opcode(d.Data[0]).Info()
	if info.Position != bth.First && info.Position != bth.Middle {
		return
	}
	op := middleOf[info.Op] | bth.Opcode(info.Class)<<5
	first, size, k := bth.BTH(d.Data).PSN().Add(1), b.qp.MiddleLen(), 0
	var run []byte
	for most := p.rand.IntN(10); k < most && p.look(k); k++ {
		x := &p.ahead[k]
		if x.To != d.To || x.From != d.From || len(x.Data) != size || bth.Opcode(x.Data[0]) != op ||
			bth.BTH(x.Data).PSN() != first.Add(uint32(k)) || x.Damaged || !p.proven(x) {
			break
		}
		run = append(run, x.Data...)
	}
	took := b.qp.HandleMiddles(p.net.Now(), op, first, run, size)
	p.ahead = p.ahead[took:]
	p.taken += took
}

// harvest looks at the letters that an end was told of.
func (p *postOffice) harvest(b *letterBox) {
	for i := range b.recvCQ.wcs {
		wc := &b.recvCQ.wcs[i]
		b.posted--
		p.arrived(b, wc)
	}
	b.recvCQ.take0()
	p.postRecvs(b)
}

func (p *postOffice) arrived(b *letterBox, wc *cq.WC) {
	grh := 0
	if p.typ == qpstate.UD {
		grh = 40
	}
	got := b.mem[letterRecv+int(wc.WRID%letterSlots)*letterSlot+grh:]
	id := wc.ImmData
	if wc.Flags&cq.WithImm == 0 {
		id = binary.BigEndian.Uint32(got)
	}
	l := p.letters[id]
	if wc.Status != cq.Success || l == nil {
		p.fail("end %d: receive %s, of letter %#x", b.index, wcText(wc), id)
		return
	}
	if l.code == wq.RDMAWriteWithImm {
		p.checkWrite(b, l)
	} else {
		want := make([]byte, l.n)
		if l.fill(want); !bytes.Equal(got[:l.n], want) {
			p.fail("end %d: letter %#x of %d bytes: data differs", b.index, id, l.n)
		}
	}
	switch {
	case int(wc.ByteLen) != l.n+grh, l.to != b.index, (l.code == wq.Send) != (wc.Flags&cq.WithImm == 0), l.wrongKey,
		p.typ == qpstate.UD && (wc.SrcQP != p.boxes[l.from].qpn || wc.Flags&cq.GRH == 0):
		p.fail("end %d: letter %+v: %+v", b.index, l, wc)
	case p.strict && (l.delivered || l.lost > 0 || l.id <= b.heard[l.from]):
		p.fail("end %d: letter %+v comes after %#x", b.index, l, b.heard[l.from])
	}
	l.delivered = true
	b.heard[l.from] = l.id
}

// checkWrite: a WRITE whose last packet was taken is whole.
func (p *postOffice) checkWrite(b *letterBox, l *letter) {
	want := make([]byte, l.n)
	l.fill(want)
	if got := b.mem[letterWrite+int(l.id>>2%letterSlots)*letterSlot:][:l.n]; !bytes.Equal(got, want) {
		p.fail("end %d: letter %#x, a WRITE of %d bytes: data differs", b.index, l.id, l.n)
	}
}

// run lets every end write so many letters.
func (p *postOffice) run(each int) error {
	for left := each; p.err == nil && (left > 0 || p.net.Flying() > 0); {
		for _, b := range p.boxes {
			for k := p.rand.IntN(letterSlots); k > 0 && left > 0 && p.err == nil; k-- {
				p.write(b)
			}
			p.send(b)
		}
		left -= min(left, 3)
		at, ok := p.net.Next()
		if !ok {
			continue
		}
		p.net.Advance(at)
		p.deliver()
	}
	if p.err == nil {
		p.checkEnd()
	}
	return p.err
}

// checkEnd: what was not lost was delivered, and nothing else was touched.
func (p *postOffice) checkEnd() {
	for _, l := range p.letters {
		if p.strict && l.told() && l.delivered != (l.lost == 0 && !l.wrongKey) {
			p.fail("letter %+v", l)
		}
	}
	for _, b := range p.boxes {
		if b.qp.State() != qpstate.RTS || !b.qp.NextTimeout().IsZero() {
			p.fail("end %d: state %v, timeout %v", b.index, b.qp.State(), b.qp.NextTimeout())
		}
		for i := letterGuard; i < letterMemory; i++ {
			if b.mem[i] != byte(i*7+i>>8)+128*byte(b.index) {
				p.fail("end %d: byte %#x changed", b.index, i)
				return
			}
		}
	}
}

// TestSimulatedLetters: unreliable connections and datagrams over a network that
// loses. Where it keeps the order, exactly what lost a packet is missing, and the
// rest comes once and in order; where it does not, what comes is whole.
func TestSimulatedLetters(t *testing.T) {
	seeds := *simSeeds / 4
	if testing.Short() {
		seeds = (seeds + 9) / 10
	}
	for _, typ := range []qpstate.Type{qpstate.UC, qpstate.UD} {
		for _, strict := range []bool{true, false} {
			sent, lost, delivered, runs, taken := 0, 0, 0, 0, 0
			for seed := *simFrom; seed < *simFrom+uint64(seeds); seed++ {
				p := newPostOffice(t, typ, seed, strict, nil)
				if err := p.run(100); err != nil {
					t.Errorf("%v, strict %v, seed %d: %v (again: go test -run TestSimulatedLetters -seed %d -seeds 4)", typ, strict, seed, err, seed)
				}
				for _, l := range p.letters {
					sent++
					if l.lost > 0 {
						lost++
					}
					if l.delivered {
						delivered++
					}
				}
				runs += p.sent
				taken += p.taken
			}
			t.Logf("%v, order kept %v: %d seeds, %d letters, %d hit by the network, %d delivered; %d packets sent and %d handled in runs", typ, strict, seeds, sent, lost, delivered, runs, taken)
			if typ == qpstate.UC && (runs == 0 || taken == 0) {
				t.Error("no runs")
			}
			if delivered == 0 || strict && lost == 0 {
				t.Error("nothing was lost, or nothing came")
			}
		}
	}
}

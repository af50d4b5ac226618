package adapter_test

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

// A storm is packets with a right ICRC from the very address of a connected
// peer, whose every field is chosen to be nearly right.
type storm struct {
	*rand.Rand
	raw   *rawPeer
	p     *program
	psn   bth.PSN // what is expected, or was sent
	never bool    // not this very PSN
	qpns  []bth.QPN
}

func (s *storm) pick(vs ...uint64) uint64 { return vs[s.IntN(len(vs))] }

func (s *storm) nearPSN() bth.PSN {
	psn := s.psn.Add(s.Uint32N(9) - 4)
	if s.IntN(8) == 0 {
		psn = bth.PSN(s.Uint32()) & bth.PSNMask
	}
	if s.never && psn == s.psn {
		psn = psn.Add(1)
	}
	return psn
}

// packet is one of them.
func (s *storm) packet() []byte {
	mr := s.p.mr
	va := mr.Addr() + s.pick(0, 1, 8, 4088, uint64(mr.Len())-8, uint64(mr.Len())-1, uint64(mr.Len()), 1<<63, -mr.Addr(), -mr.Addr()-8)
	key := uint32(mr.RKey())
	if s.IntN(4) == 0 {
		key ^= 1 << s.UintN(32)
	}
	n := uint32(s.pick(0, 1, 7, 8, 256, 4096, 5000, uint64(mr.Len()), 1<<31, 1<<31+1, 1<<32-1))
	op := bth.Opcode(s.UintN(0x18))
	if s.IntN(16) == 0 {
		op = bth.Opcode(s.UintN(256))
	}
	h := bth.Headers{
		BTH: bth.BTHFields{
			Opcode: op, PSN: s.nearPSN(), AckReq: s.IntN(2) == 0, Solicited: s.IntN(2) == 0, DestQP: s.qpns[s.IntN(len(s.qpns))],
		},
		RETH:      bth.RETHFields{VA: va, RKey: key, Length: n},
		AETH:      bth.AETHFields{Syndrome: bth.Syndrome(s.Uint32()), MSN: s.Uint32() & 0xFFFFFF},
		AtomicETH: bth.AtomicETHFields{VA: va, RKey: key, Swap: s.Uint64(), Compare: s.Uint64()},
	}
	payload := make([]byte, s.pick(0, 1, 3, 4, 255, 256, 1024, 4096))
	if s.IntN(3) == 0 && n <= 4096 {
		payload = make([]byte, n)
	}
	pad := -1
	if s.IntN(8) == 0 {
		pad = s.IntN(4)
	}
	return s.raw.packet(h, payload, pad)
}

// send sends n of them, and sees now and then that a neighbour's connection
// works.
func (s *storm) send(n int, neighbour func()) {
	for i := range n {
		s.raw.send(s.packet())
		if i%50 == 49 {
			neighbour()
		}
	}
}

// busy posts one request of each kind, so that answers are awaited.
func (s *storm) busy() {
	s.psn = s.p.psn
	for _, op := range []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRRDMARead, verbs.WRSend, verbs.WRAtomicFetchAdd} {
		s.p.post(verbs.SendWR{
			Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{s.p.mr.SGE(0, 8)}, RemoteAddr: 0x1000, RKey: 1,
		})
	}
}

// behindAndAhead sends packets of every PSN but the expected one, and of every
// kind: repetitions of what was executed, gaps, answers to nothing. None may
// change memory, and the connection goes on.
func (s *storm) behindAndAhead(t *testing.T, neighbour func()) {
	p, raw := s.p, s.raw
	good := func(psn bth.PSN) { // a SEND: its completion orders what follows
		t.Helper()
		p.recv(uint64(psn), 0, 16)
		var wcs [1]verbs.WC
		eventually(t, "a good SEND completes its receive", func() bool {
			raw.send(raw.packet(bth.Headers{BTH: bth.BTHFields{Opcode: bth.RCSendOnly, PSN: psn}}, []byte{byte(psn)}, -1))
			n, err := p.cq.Poll(wcs[:])
			must(t, err)
			return n == 1
		})
		if wcs[0].Status != verbs.WCSuccess || p.mr.Bytes()[0] != byte(psn) {
			t.Fatalf("PSN %v: %+v, byte %d", psn, wcs[0], p.mr.Bytes()[0])
		}
	}
	for i := range bth.PSN(3) {
		raw.send(raw.write(100+i, p.mr.Addr(), p.mr.RKey(), []byte{9, byte(i)}))
	}
	good(103)
	want := bytes.Clone(p.mr.Bytes())
	s.psn, s.never = 104, true
	s.send(400, neighbour)
	good(104)
	want[0] = 104
	if !bytes.Equal(p.mr.Bytes(), want) {
		t.Fatal("a repetition, or a packet beyond a gap, changed memory")
	}
}

// Forged packets of every kind, from a connected peer's own address: the
// queue pairs they are for may end, and nothing else. What they may not touch
// stays as it is, the connection beside them works, and nothing grows.
func TestStormOfForgedPackets(t *testing.T) {
	h := start(t, nil)
	x, y := h.open(t, shape{}), start(t, nil).open(t, shape{})
	connect(x, y, verbs.RCConfig{})
	neighbour := func() { alive(x, y) }
	dev, err := h.Open()
	must(t, err)
	t.Cleanup(func() { must(t, dev.Close()) })
	raw := newRawPeer(t, h, 0)
	rng := rand.New(rand.NewPCG(4791, 17))
	const rounds, settled = 45, 15
	var before int64
	came, goroutines := h.workers().Stats.PacketsIn, runtime.NumGoroutine()
	for round := range rounds {
		p := h.openOn(t, dev, shape{size: 16 << 10})
		local, err := p.pd.AllocMR(16<<10, verbs.AccessLocalWrite)
		must(t, err)
		fill(local.Bytes(), round)
		want := bytes.Clone(local.Bytes())
		raw.qpn = p.qp.Num()
		p.connectTo(verbs.RCPeer{QPN: rawQPN, PSN: 100, GID: bth.GIDFromAddr(raw.addr)}, verbs.RCConfig{})
		s := &storm{Rand: rng, raw: raw, p: p, psn: 100, qpns: []bth.QPN{raw.qpn, raw.qpn, raw.qpn, raw.qpn, x.qp.Num()}}
		switch round % 3 {
		case 0:
			s.send(400, neighbour)
		case 1:
			s.behindAndAhead(t, neighbour)
		case 2:
			s.busy()
			s.send(400, neighbour)
		}
		if !bytes.Equal(local.Bytes(), want) {
			t.Fatalf("round %d: memory without remote rights changed", round)
		}
		for _, end := range []func() error{p.qp.Destroy, p.cq.Destroy, p.mr.Dereg, local.Dereg, p.pd.Dealloc} {
			must(t, end())
		}
		if round == settled {
			before = heap()
		}
	}
	neighbour()
	if grown := heap() - before; grown > 4<<20 {
		t.Errorf("the heap grew by %d bytes in %d rounds", grown, rounds-settled)
	}
	if n := h.workers().Stats.PacketsIn - came; n < rounds*200 {
		t.Errorf("only %d packets came in", n)
	}
	eventually(t, "as many goroutines as before", func() bool { return runtime.NumGoroutine() <= goroutines })
	verdicts := 0
	for _, n := range h.workers().Transport.Verdicts {
		if n > 0 {
			verdicts++
		}
	}
	if verdicts < 10 {
		t.Errorf("%d kinds of verdict: the storm is no good", verdicts)
	}
}

// heap is the bytes of live objects.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

package cases

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

var atomicCases = []suite.Case{
	{ID: "ATM-01", Run: func(t *suite.T) { fetchAdd(t, 1000, 5, 0) }},
	{ID: "ATM-02", Run: func(t *suite.T) { cmpSwap(t, true) }},
	{ID: "ATM-03", Run: func(t *suite.T) { cmpSwap(t, false) }},
	{ID: "ATM-04", Run: func(t *suite.T) { fetchAdd(t, ^uint64(2), 5, 0) }},
	{ID: "ATM-05", Run: func(t *suite.T) { fetchAdd(t, 7, 1, 0xDEADBEEF12345678) }},
	{ID: "ATM-06", Run: func(t *suite.T) { p := cell(t, 0); refusedAtomic(p, 4, bth.NAKInvalidRequest) }},
	{ID: "ATM-07", Run: func(t *suite.T) {
		p := t.Connect(suite.Options{MRAccess: []string{"LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ"}})
		refusedAtomic(p, 0, bth.NAKRemoteAccess)
	}},
	{ID: "ATM-08", Run: func(t *suite.T) {
		p := t.Connect(suite.Options{Access: []string{"REMOTE_WRITE", "REMOTE_READ"}})
		refusedAtomic(p, 0, bth.NAKInvalidRequest, bth.NAKRemoteAccess)
	}},
	{ID: "ATM-09", Run: lastCell},
	{ID: "ATM-10", Run: hammer},
	{ID: "ATM-11", Run: atomicAckFields},
	{ID: "ATM-12", Run: repeatedAtomic},
	{ID: "ATM-13", Run: forgottenAtomic},
	{ID: "ATM-14", Run: flushUnsupported},
	{ID: "ATM-15", Needs: []string{agent.FeatureFlush}, Run: flushes},
	{ID: "ATM-16", Needs: []string{agent.FeatureFlush}, Run: flushNotAllowed},
	{ID: "ATM-17", Needs: []string{agent.FeatureAtomicWrite}, Run: atomicWrite},
	{ID: "ATM-18", Needs: []string{agent.FeatureAtomicWrite}, Run: badAtomicWrite},
}

// number is a value as the target's memory holds it: in its byte order, little endian on every machine that RDMA runs on
// today.
func number(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

// cell makes a queue pair whose region's first 8 bytes are a number.
func cell(t *suite.T, v uint64) *suite.Peer {
	p := t.Connect(suite.Options{})
	p.Fill(0, number(v))
	return p
}

// original sends an atomic and compares what it returns.
func original(p *suite.Peer, w *wire.Packet, want uint64) {
	p.Request(w)
	originalIs(p, w.BTH.PSN, want)
}

func originalIs(p *suite.Peer, psn bth.PSN, want uint64) {
	if got := p.AtomicAck(psn); got != want {
		p.T.Failed(fmt.Sprintf("the original value %#x", want), fmt.Sprintf("%#x", got))
	}
}

func fetchAdd(t *suite.T, v, add, compare uint64) {
	p := cell(t, v)
	w := p.FetchAdd(0, add)
	w.AtomicETH.Compare = compare
	original(p, w, v)
	p.Holds(0, append(number(v+add), make([]byte, 8)...))
}

func cmpSwap(t *suite.T, equal bool) {
	v, swap := t.Rand.Uint64(), t.Rand.Uint64()
	p := cell(t, v)
	compare, after := v, swap
	if !equal {
		compare, after = v+1, v
	}
	original(p, p.CmpSwap(0, compare, swap), v)
	p.Holds(0, number(after))
}

func refusedAtomic(p *suite.Peer, off int, syndromes ...bth.Syndrome) {
	before := p.Memory(0, 16)
	refused(p, p.FetchAdd(off, 1), syndromes...)
	p.Holds(0, before)
}

func lastCell(t *suite.T) {
	p := t.Connect(suite.Options{Length: 8192})
	p.Fill(8184, number(41))
	original(p, p.FetchAdd(8184, 1), 41)
	p.Holds(8184, number(42))
	refused(p, p.FetchAdd(8192, 1), bth.NAKRemoteAccess)
}

func hammer(t *suite.T) {
	a := cell(t, 0)
	b := t.Connect(suite.Options{Share: a})
	seen := map[uint64]bool{}
	for range 25 {
		for _, p := range []*suite.Peer{a, b} {
			p.Request(p.FetchAdd(0, 1))
		}
		for _, p := range []*suite.Peer{a, b} {
			seen[p.AtomicAck(p.PSN.Add(^uint32(0)))] = true
		}
	}
	for i := range uint64(50) {
		if !seen[i] {
			t.Failed(fmt.Sprintf("one of 50 additions to return %d", i), "none")
		}
	}
	a.Holds(0, number(50))
}

func atomicAckFields(t *suite.T) {
	p := cell(t, 0)
	w := p.FetchAdd(0, 1)
	p.Request(w)
	f := p.Next("an atomic acknowledge")
	if f.RoCE.Opcode != bth.RCAtomicAcknowledge || !f.RoCE.AETH().Syndrome().IsACK() || f.RoCE.BTH().PSN() != w.BTH.PSN ||
		len(f.Roce) != bth.BTHLen+bth.AETHLen+bth.AtomicAckETHLen+bth.ICRCLen {
		t.Failed(fmt.Sprintf("an atomic acknowledge with an ACK syndrome, PSN %v and no payload", w.BTH.PSN), suite.Describe(f))
	}
	msnIs(t, f, 1)
}

func repeatedAtomic(t *suite.T) {
	p := cell(t, 10)
	w := p.FetchAdd(0, 5)
	original(p, w, 10)
	p.Put(w)
	originalIs(p, w.BTH.PSN, 10)
	p.Holds(0, number(15))
	p.Alive()
}

func forgottenAtomic(t *suite.T) {
	p := t.Connect(suite.Options{DestRdAtomic: new(1)})
	first := p.FetchAdd(0, 1)
	original(p, first, 0)
	for i := range uint64(8) {
		original(p, p.FetchAdd(0, 1), i+1)
	}
	p.Dropped(first)
	p.Holds(0, number(9))
}

// flush makes a FLUSH of a range with this placement type.
func flush(p *suite.Peer, placement uint8) *wire.Packet {
	w := p.Packet(bth.RCFlush)
	w.FETH = bth.FETHFields{PLT: placement, Sel: bth.FlushRange}
	return w
}

func flushUnsupported(t *suite.T) {
	if t.Has(agent.FeatureFlush) {
		t.Skipf("the target has FLUSH")
	}
	p := t.Connect(suite.Options{})
	refused(p, flush(p, bth.FlushGlobal), bth.NAKInvalidRequest)
}

// flushing are the rights of a queue pair and a region that a FLUSH for global visibility needs.
func flushing() suite.Options {
	qp := slices.Concat(suite.AllRemote, []string{"FLUSH_GLOBAL"})
	return suite.Options{Access: qp, MRAccess: slices.Concat(qp, []string{"LOCAL_WRITE"})}
}

func flushes(t *suite.T) {
	p := t.Connect(flushing())
	data := t.Bytes(8)
	p.Request(p.Write(0, data))
	p.Ack(p.PSN.Add(^uint32(0)))
	w := flush(p, bth.FlushGlobal)
	p.Request(w)
	p.ReadResponse(w.BTH.PSN, 0)
	p.Holds(0, data)
}

func flushNotAllowed(t *suite.T) {
	for _, o := range []func(*suite.Options){
		func(o *suite.Options) { o.Access = nil },   // not on the queue pair
		func(o *suite.Options) { o.MRAccess = nil }, // not on the region
	} {
		options := flushing()
		o(&options)
		p := t.Connect(options)
		refused(p, flush(p, bth.FlushGlobal), bth.NAKInvalidRequest, bth.NAKRemoteAccess)
	}
	p := t.Connect(flushing())
	refused(p, flush(p, bth.FlushGlobal|bth.FlushPersistent), bth.NAKInvalidRequest, bth.NAKRemoteAccess)
}

func atomicWrite(t *suite.T) {
	p := t.Connect(suite.Options{})
	w := p.Packet(bth.RCAtomicWrite)
	w.Payload = t.Bytes(8)
	p.Request(w)
	p.ReadResponse(w.BTH.PSN, 0)
	p.Holds(0, w.Payload)
}

func badAtomicWrite(t *suite.T) {
	p := t.Connect(suite.Options{})
	w := p.Packet(bth.RCAtomicWrite)
	w.Payload = t.Bytes(8)
	w.RETH.VA += 4
	refused(p, w, bth.NAKInvalidRequest)
	p = t.Connect(suite.Options{})
	w = p.Packet(bth.RCAtomicWrite)
	w.Payload, w.RETH.Length = t.Bytes(4), 4
	refused(p, w, bth.NAKInvalidRequest)
}

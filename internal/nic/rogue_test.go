package nic

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// A program with queue pairs of every type, shared receive queues, windows, fast
// regions, address handles and groups posts what it likes, most of it nearly
// right, scribbles over its rings, and has its objects resized, changed and ended
// meanwhile. Another program's transfers go on, and nothing is left.
func TestRogueOfEveryKind(t *testing.T) {
	if inOwnProcess(t) {
		return // real mappings, as for the scribbler
	}
	for _, workers := range []int{1, 3} {
		t.Run(fmt.Sprint("workers ", workers), func(t *testing.T) {
			a := startAdapter(t, func(c *Config) { c.Workers = workers })
			t.Run("programs", func(t *testing.T) { rogueBesideOthers(t, a) })
			waitPrograms(t, a, 0)
			wantNothingLeft(t, a)
			var got transport.Counters
			for _, w := range a.Snapshot().Workers {
				for i, n := range w.Transport.Verdicts {
					got.Verdicts[i] += n
				}
			}
			t.Logf("verdicts %v", got.Verdicts)
		})
	}
}

func rogueBesideOthers(t *testing.T, a *Adapter) {
	rounds := 300
	if testing.Short() {
		rounds = 60
	}
	ctx := within(t)
	x, y := newEndpoint(t, openDevice(t, a), 1<<15), newEndpoint(t, openDevice(t, a), 1<<15)
	connectPair(t, x, y)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := byte(0); !stop.Load(); n++ {
			if err := transfer(ctx, x, y, n); err != nil {
				t.Errorf("the other program, round %d: %v", n, err)
				return
			}
		}
	})
	for seed := range uint64(3) {
		r := newRogue(t, a, seed)
		for range rounds {
			r.round()
		}
		if r.took == 0 || r.refused == 0 {
			t.Errorf("seed %d: %d calls, %d refused: the generator is no good", seed, r.took, r.refused)
		}
		_ = r.c.Close() // with all that it has under way
	}
	stop.Store(true)
	wg.Wait()
}

// A rogue is a scribbler that knows all there is.
type rogue struct {
	*scribbler
	*rand.Rand
	a       *Adapter
	pds     [2]uint32
	cqs     []uapi.CreateCQReply
	srqs    []uapi.CreateSRQReply
	types   map[uint32]qpstate.Type // by handle
	mrs     []uapi.RegMRReply
	fast    []uapi.RegMRReply
	mws     []uapi.AllocMWReply
	ahs     []uint32
	gid     bth.GID
	took    int
	refused int
}

func newRogue(t *testing.T, a *Adapter, seed uint64) *rogue {
	r := &rogue{scribbler: newScribbler(t, a), Rand: rand.New(rand.NewPCG(seed, 41)), a: a, types: map[uint32]qpstate.Type{}}
	r.gid, _, _ = a.gid(0)
	r.pds = [2]uint32{r.pd(), r.pd()}
	for v := range uint32(2) {
		var cq uapi.CreateCQReply
		if r.try(uapi.OpCreateCQ, &uapi.CreateCQRequest{CQE: 256, Vector: v % a.numCompVectors()}, &cq) {
			r.cqs = append(r.cqs, cq)
		}
	}
	for range 2 {
		var s uapi.CreateSRQReply
		if r.try(uapi.OpCreateSRQ, &uapi.CreateSRQRequest{PD: r.pds[0], Attr: uapi.SRQAttr{MaxWR: 32, MaxSGE: 2}}, &s) {
			r.srqs = append(r.srqs, s)
		}
	}
	r.qps = nil // nobody polls for those
	for i, typ := range []qpstate.Type{qpstate.RC, qpstate.UC, qpstate.UD, qpstate.RC, qpstate.UC, qpstate.UD, qpstate.UD} {
		m := rcRequest(r.pds[0], r.cqs[i%2].Handle)
		m.Type, m.Cap = typ, qpstate.Cap{MaxSendWR: 32, MaxRecvWR: 8, MaxSendSGE: 3, MaxRecvSGE: 2, MaxInlineData: 64}
		if i%2 == 0 {
			m.SRQ = r.srqs[i/2%2].Handle
		}
		var q uapi.CreateQPReply
		if r.try(uapi.OpCreateQP, m, &q) {
			r.qps, r.types[q.Handle] = append(r.qps, q), typ
		}
	}
	for range 4 {
		r.newMemory()
		r.newAH()
	}
	return r
}

// try calls; a success is decoded, and the segments that came are mapped.
func (r *rogue) try(op uapi.Op, m uapi.Body, reply interface{ Decode([]byte) error }) bool {
	got := r.call(op, m)
	r.took++
	if got.errno != 0 {
		r.refused++
		return false
	}
	if op == uapi.OpCreateSRQ || op == uapi.OpCreateQP || op == uapi.OpCreateCQ || op == uapi.OpResizeCQ || op == uapi.OpModifySRQ {
		r.take(got)
	}
	if reply != nil {
		if err := reply.Decode(got.body); err != nil {
			r.t.Errorf("%v: %v", op, err)
		}
	}
	return true
}

func (r *rogue) newMemory() {
	var mr uapi.RegMRReply
	fd := memfd(r.t, 1<<16, unix.F_SEAL_SHRINK)
	got := r.call(uapi.OpRegMR, &uapi.RegMRRequest{
		PD: r.pds[0], Kind: uapi.MRShared, Length: 1 << 16, IOVA: 1 << 16,
		Access: mrtable.AccessLocalWrite | mrtable.AccessRemoteWrite | mrtable.AccessRemoteRead | mrtable.AccessRemoteAtomic | mrtable.AccessMWBind,
	}, fd)
	if got.errno == 0 && mr.Decode(got.body) == nil {
		r.mrs = append(r.mrs, mr)
	}
	if r.try(uapi.OpAllocMR, &uapi.AllocMRRequest{PD: r.pds[r.IntN(8)/7], MaxPages: 1 + r.Uint32N(4)}, &mr) {
		r.fast = append(r.fast, mr)
	}
	var mw uapi.AllocMWReply
	if r.try(uapi.OpAllocMW, &uapi.AllocMWRequest{PD: r.pds[r.IntN(8)/7], Type: mrtable.WindowType(1 + r.IntN(2))}, &mw) {
		r.mws = append(r.mws, mw)
	}
}

func (r *rogue) newAH() {
	var h uapi.HandleReply
	m := &uapi.CreateAHRequest{PD: r.pds[r.IntN(8)/7], Attr: qpstate.AHAttr{DGID: r.gid, IsGlobal: true, PortNum: 1, FlowLabel: r.Uint32N(4)}}
	if r.IntN(3) == 0 {
		m.Attr.DGID = groupOf(r.a)
	}
	if r.try(uapi.OpCreateAH, m, &h) {
		r.ahs = append(r.ahs, h.Handle)
	}
}

// one is any of a list, and now and then a value of no meaning.
func one[T any](r *rogue, list []T) (v T) {
	if len(list) > 0 {
		v = list[r.IntN(len(list))]
	}
	return v
}

// key is one of the program's keys, or nearly.
func (r *rogue) key() uint32 {
	k := one(r, r.mrs).RKey
	switch r.IntN(4) {
	case 0:
		k = one(r, r.mws).RKey
	case 1:
		k = one(r, r.fast).RKey
	}
	switch r.IntN(6) {
	case 0:
		return uint32(k) ^ r.Uint32N(256)
	case 1:
		return uint32(k) + r.Uint32N(3)
	case 2:
		return r.Uint32()
	}
	return uint32(k)
}

// size is a length of any kind.
func (r *rogue) size() uint64 {
	switch r.IntN(8) {
	case 0:
		return r.Uint64()
	case 1:
		return 1<<32 - 1 - r.Uint64N(4)
	case 2:
		return 0
	case 3:
		return 4096 << r.IntN(3)
	}
	return r.Uint64N(9000)
}

func (r *rogue) addr() uint64 {
	if r.IntN(8) == 0 {
		return -r.Uint64N(1 << 17)
	}
	return 1<<16 + r.Uint64N(1<<12)*uint64(1+7*r.IntN(2))
}

// element is a buffer, as a rule a right one.
func (r *rogue) element() wq.SGE {
	if r.IntN(12) > 0 {
		return wq.SGE{Addr: 1<<16 + r.Uint64N(1<<14), Length: r.Uint32N(3000), LKey: r.plain()}
	}
	return wq.SGE{Addr: r.addr(), Length: uint32(r.size()), LKey: mrtable.LKey(r.key())}
}

// plain is the key of a region that was registered.
func (r *rogue) plain() mrtable.LKey { return one(r, r.mrs).LKey }

var rogueOpcodes = map[qpstate.Type][]wq.Opcode{
	qpstate.RC: {
		wq.Send, wq.SendWithImm, wq.SendWithInv, wq.RDMAWrite, wq.RDMAWriteWithImm, wq.RDMARead, wq.AtomicCmpAndSwp, wq.AtomicFetchAndAdd,
		wq.BindMW, wq.BindMW, wq.LocalInv, wq.RegMR, wq.RegMR,
	},
	qpstate.UC: {wq.Send, wq.SendWithImm, wq.RDMAWrite, wq.RDMAWriteWithImm, wq.BindMW, wq.LocalInv},
	qpstate.UD: {wq.Send, wq.SendWithImm},
}

// request is a send request that a queue pair of a type may have, but for some.
func (r *rogue) request(typ qpstate.Type) *wq.SendWR {
	wr := &wq.SendWR{
		WRID: r.Uint64(), Opcode: one(r, rogueOpcodes[typ]), RemoteAddr: r.addr(),
		RKey: mrtable.RKey(r.key()), CompareAdd: r.Uint64(), Swap: r.Uint64(), AH: one(r, r.ahs),
		RemoteQPN: one(r, r.qps).QPN, RemoteQKey: testQKey, InvalidateRKey: mrtable.RKey(r.key()),
	}
	if r.IntN(2) == 0 {
		wr.Flags = wq.SendSignaled
	}
	if r.IntN(4) == 0 {
		wr.RemoteQPN = bth.MulticastQPN
	}
	wr.Bind = wq.Bind{RKey: mrtable.RKey(r.key() ^ r.Uint32N(256)), MR: r.plain(), Addr: 1<<16 + r.Uint64N(1<<15), Length: r.Uint64N(1 << 14), Access: 0x1F}
	if r.IntN(8) == 0 {
		wr.Bind.Addr, wr.Bind.Length, wr.Bind.Access = r.addr(), r.size(), mrtable.Access(r.IntN(64))
	}
	switch wr.Opcode {
	case wq.BindMW, wq.LocalInv:
	case wq.AtomicCmpAndSwp, wq.AtomicFetchAndAdd:
		s := r.element()
		s.Length = 8
		wr.SGList, wr.RemoteAddr = []wq.SGE{s}, wr.RemoteAddr&^7
	case wq.RegMR:
		wr.Bind.RKey = mrtable.RKey(uint32(one(r, r.fast).RKey) ^ r.Uint32N(4))
		for range 1 + r.IntN(3) {
			wr.SGList = append(wr.SGList, wq.SGE{Addr: 1<<16 + 4096*r.Uint64N(8), Length: 4096, LKey: r.plain()})
		}
	case wq.Send, wq.SendWithImm, wq.SendWithInv, wq.RDMAWrite, wq.RDMAWriteWithImm, wq.RDMARead:
		for range r.IntN(4) {
			wr.SGList = append(wr.SGList, r.element())
		}
	}
	if r.IntN(40) == 0 { // one that no library lets through
		wr.Opcode, wr.Flags = wq.Opcode(r.IntN(16)), wq.SendFlags(r.IntN(32))&^wq.SendInline
	}
	return wr
}

// post puts requests into a queue pair's rings and rings for them.
func (r *rogue) post(q *uapi.CreateQPReply) {
	sq, err := uapi.NewSQProducer(r.segs[q.SQ.Segment], q.SQ)
	if err != nil {
		r.t.Fatal(err)
	}
	sq.Reset()
	for range 1 + r.IntN(6) {
		if sq.Put(r.request(r.types[q.Handle])) != nil {
			break
		}
	}
	sq.Publish()
	if q.RQ.Slots > 0 {
		r.receives(q.RQ)
	}
	bells, word := int(q.Worker)*uapi.DoorbellBlock, q.DoorbellIndex/64
	r.bell.Word64(bells + bellWords + 8*int(word)).Or(1 << (q.DoorbellIndex % 64))
	r.bell.Word64(bells + bellSummary + 8*int(word/64)).Or(1 << (word % 64))
	r.bell.Word32(bells).Store(1)
	r.wake[q.Worker].Ring()
}

func (r *rogue) receives(ref uapi.RingRef) {
	rq, err := uapi.NewRQProducer(r.segs[ref.Segment], ref)
	if err != nil {
		r.t.Fatal(err)
	}
	rq.Reset()
	for range r.IntN(8) {
		wr := &wq.RecvWR{}
		for range r.IntN(3) {
			wr.SGList = append(wr.SGList, r.element())
		}
		if rq.Put(wr) != nil {
			break
		}
	}
	rq.Publish()
}

// ready brings a queue pair to life again, connected to any of the program's.
func (r *rogue) ready(q *uapi.CreateQPReply) {
	modify := func(m qpstate.Mask, attr qpstate.Attr) {
		r.try(uapi.OpModifyQP, &uapi.ModifyQPRequest{Handle: q.Handle, Mask: m | qpstate.MaskState, Attr: attr}, nil)
	}
	modify(0, qpstate.Attr{State: qpstate.Reset})
	peer := *q
	if p := one(r, r.qps); r.IntN(2) == 0 && r.types[p.Handle] == r.types[q.Handle] {
		peer = p
	}
	const rights = uint32(mrtable.AccessRemoteWrite | mrtable.AccessRemoteRead | mrtable.AccessRemoteAtomic)
	if r.types[q.Handle] == qpstate.UD {
		modify(qpstate.MaskPKeyIndex|qpstate.MaskPort|qpstate.MaskQKey, qpstate.Attr{State: qpstate.Init, PortNum: 1, QKey: testQKey})
		modify(0, qpstate.Attr{State: qpstate.RTR})
		modify(qpstate.MaskSQPSN, qpstate.Attr{State: qpstate.RTS})
		return
	}
	to := qpstate.MaskAV | qpstate.MaskPathMTU | qpstate.MaskDestQPN | qpstate.MaskRQPSN
	up := qpstate.MaskSQPSN
	if r.types[q.Handle] == qpstate.RC {
		to |= qpstate.MaskMaxDestRDAtomic | qpstate.MaskMinRNRTimer
		up |= qpstate.MaskTimeout | qpstate.MaskRetryCnt | qpstate.MaskRNRRetry | qpstate.MaskMaxQPRDAtomic
	}
	modify(qpstate.MaskPKeyIndex|qpstate.MaskPort|qpstate.MaskAccessFlags, qpstate.Attr{State: qpstate.Init, PortNum: 1, AccessFlags: rights})
	modify(to, qpstate.Attr{
		State: qpstate.RTR, PathMTU: bth.MTU1024, DestQPN: peer.QPN, MinRNRTimer: 1, MaxDestRDAtomic: 4,
		AH: qpstate.AHAttr{DGID: r.gid, IsGlobal: true, PortNum: 1},
	})
	modify(up, qpstate.Attr{State: qpstate.RTS, Timeout: 10, RetryCnt: 1, RNRRetry: 1, MaxRDAtomic: 4})
}

func (r *rogue) round() {
	q := &r.qps[r.IntN(len(r.qps))]
	if r.IntN(3) == 0 {
		r.ready(q)
	}
	if r.IntN(256) == 0 {
		r.scribble(r.Rand)
	}
	for _, s := range r.srqs {
		if r.IntN(4) == 0 {
			r.receives(s.Ring)
		}
	}
	r.post(q)
	r.control(q)
	for _, c := range r.cqs { // polls all
		seg, off := r.segs[c.Ring.Segment], int(c.Ring.Offset)
		seg.Word32(off + ringConsumer).Store(seg.Word32(off + ringProducer).Load())
	}
}

// control changes one object.
func (r *rogue) control(q *uapi.CreateQPReply) {
	switch r.IntN(12) {
	case 0:
		i := r.IntN(len(r.srqs))
		s := &r.srqs[i]
		var m uapi.ModifySRQReply
		if r.try(uapi.OpModifySRQ, &uapi.ModifySRQRequest{
			Handle: s.Handle, Mask: uapi.SRQMask(r.IntN(4)), Attr: uapi.SRQAttr{MaxWR: 1 + r.Uint32N(200), Limit: r.Uint32N(16)},
		}, &m) && m.Ring.Slots > 0 {
			s.Ring = m.Ring
		}
	case 1:
		c := &r.cqs[r.IntN(len(r.cqs))]
		r.try(uapi.OpResizeCQ, &uapi.ResizeCQRequest{Handle: c.Handle, CQE: 100 + r.Uint32N(300)}, c)
	case 2, 3:
		if len(r.mrs) < 24 {
			r.newMemory()
		}
	case 4:
		if len(r.mws) > 0 {
			i := r.IntN(len(r.mws))
			r.try(uapi.OpDeallocMW, &uapi.HandleRequest{Handle: r.mws[i].Handle}, nil)
			r.mws[i] = r.mws[len(r.mws)-1]
			r.mws = r.mws[:len(r.mws)-1]
		}
	case 5, 6:
		if i := r.IntN(len(r.mrs)); r.IntN(2) == 0 && len(r.mrs) > 4 {
			if r.try(uapi.OpDeregMR, &uapi.HandleRequest{Handle: r.mrs[i].Handle}, nil) {
				r.mrs[i] = r.mrs[len(r.mrs)-1]
				r.mrs = r.mrs[:len(r.mrs)-1]
			}
		} else {
			r.try(uapi.OpReregMR, &uapi.ReregMRRequest{
				Handle: r.mrs[i].Handle, Flags: uapi.ReregAccess << r.IntN(2) & (uapi.ReregAccess | uapi.ReregPD),
				MR: uapi.RegMRRequest{PD: r.pds[r.IntN(2)], Access: mrtable.Access(0x1F)},
			}, &r.mrs[i])
		}
	case 7:
		if len(r.ahs) > 8 {
			i := r.IntN(len(r.ahs))
			r.try(uapi.OpDestroyAH, &uapi.HandleRequest{Handle: r.ahs[i]}, nil)
			if r.IntN(2) == 0 { // else it goes on to be named
				r.ahs[i] = r.ahs[len(r.ahs)-1]
				r.ahs = r.ahs[:len(r.ahs)-1]
			}
		} else {
			r.newAH()
		}
	case 8:
		r.try(uapi.OpAttachMcast, &uapi.McastRequest{QP: q.Handle, GID: groupOf(r.a)}, nil)
	case 9:
		r.try(uapi.OpDetachMcast, &uapi.McastRequest{QP: q.Handle, GID: groupOf(r.a)}, nil)
	case 10:
		r.try(uapi.OpListResources, &uapi.ListResourcesRequest{Kind: uapi.ResourceKind(r.IntN(9))}, nil)
	case 11:
		states := []qpstate.State{qpstate.SQD, qpstate.Err, qpstate.RTS}
		r.try(uapi.OpModifyQP, &uapi.ModifyQPRequest{Handle: q.Handle, Mask: qpstate.MaskState, Attr: qpstate.Attr{State: states[r.IntN(3)]}}, nil)
	}
}

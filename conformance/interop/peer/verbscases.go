package main

import (
	"encoding/binary"
	"math"
)

// A verbsCase is played once from each end.
type verbsCase struct {
	name  string
	about string
	setup setup
	run   func(l *link)
	// connections is how many links the case has at once, 0 for one; runMany plays on all of them then.
	connections int
	runMany     func(ls []*link)
	// impaired cases run while the guest drops, doubles and reorders packets both ways, as impairment says or as loss does.
	impaired bool
	loss     string
	// ours: the responder must be softroce, rxe 6.1 does not have it.
	ours bool
	// shows is what the capture of the case must hold at least: see wire.count.
	shows map[string]int
}

// lengths of messages around everything that matters: nothing, padding, the path MTU of 1024.
var lengths = []int{0, 1, 2, 3, 4, 5, 63, 64, 65, 1023, 1024, 1025, 2048, 3079, 9219}

var verbsCases = []verbsCase{
	{name: "send", about: "SEND of every kind of length", run: caseSend},
	{name: "send-imm", about: "SEND with immediate", run: caseSendImm},
	{name: "write", about: "RDMA WRITE to odd addresses", run: caseWrite},
	{name: "write-imm", about: "RDMA WRITE with immediate", run: caseWriteImm},
	{name: "read", about: "RDMA READ from odd addresses", run: caseRead},
	{name: "reads-outstanding", about: "twelve READs posted together, four outstanding", run: caseReads},
	{name: "read-one-outstanding", about: "READs with max_rd_atomic 1", setup: setup{rdAtomic: 1}, run: caseReads},
	{name: "cmp-swap", about: "compare and swap that matches and that does not", run: caseCmpSwap},
	{name: "fetch-add", about: "fetch and add with wrap-around, several outstanding", run: caseFetchAdd},
	{name: "fence", about: "a SEND of what a READ brought, fenced", run: caseFence},
	{name: "pipelined", about: "all verbs in one batch, some unsignaled", run: casePipelined},
	{name: "both-ways", about: "both ends request at the same time", run: caseBothWays},
	{name: "sges", about: "gather from and scatter to several pieces", run: caseSGEs},
	{name: "inline", about: "inline data", setup: setup{inline: 64}, run: caseInline},
	{name: "foreign-memory", about: "all verbs, softroce's region is the program's own memory", setup: setup{foreign: true}, run: casePipelined},
	{name: "foreign-large", about: "1 MiB each, in the program's own memory", setup: setup{foreign: true, mtu: 4096, size: 4 << 20}, run: caseLarge},
	{name: "ipv6", about: "all verbs between IPv6 GIDs", setup: setup{ipv6: true}, run: casePipelined},
	{name: "mtu-256", about: "all verbs at path MTU 256", setup: setup{mtu: 256}, run: casePipelined, shows: map[string]int{"payload 256": 1}},
	{name: "mtu-512", about: "all verbs at path MTU 512", setup: setup{mtu: 512}, run: casePipelined, shows: map[string]int{"payload 512": 1}},
	{name: "mtu-2048", about: "all verbs at path MTU 2048", setup: setup{mtu: 2048}, run: casePipelined, shows: map[string]int{"payload 2048": 1}},
	{name: "mtu-4096", about: "all verbs at path MTU 4096", setup: setup{mtu: 4096}, run: casePipelined, shows: map[string]int{"payload 4096": 1}},
	{
		name: "psn-wrap", about: "PSNs run over 0xffffff", setup: setup{psn: 0xfffffa}, run: casePipelined,
		shows: map[string]int{"psn 0xffffff": 1, "psn 0x000000": 1},
	},
	{name: "large", about: "1 MiB each of SEND, WRITE and READ", setup: setup{mtu: 4096, size: 4 << 20}, run: caseLarge},
	{name: "bulk", about: "64 KiB WRITEs and READs, many outstanding", setup: setup{mtu: 4096, size: 4 << 20}, run: caseBulk},
	{name: "connections", about: "eight connections at once", connections: 8, runMany: caseConnections},
	{name: "receive-too-small", about: "a SEND larger than its receive", run: caseReceiveTooSmall},
	{
		name: "rnr", about: "receives posted late", setup: setup{rnrTimer: 20}, run: caseRNR,
		shows: map[string]int{"rnr nak": 1},
	},
	{
		name: "rnr-exhausted", about: "no receive, rnr_retry 1", setup: setup{rnrTimer: 20, rnrRetry: 1}, run: caseRNRExhausted,
		shows: map[string]int{"rnr nak": 2},
	},
	{name: "retry-exceeded", about: "the responder is in the error state", setup: setup{timeout: 12, retry: 2}, run: caseRetryExceeded},
	refused("bad-rkey-write", setup{}, func(s *side) sendWR { return badKey(s.writeWR(s.take(2500))) }),
	refused("bad-rkey-read", setup{}, func(s *side) sendWR { return badKey(s.readWR(100)) }),
	refused("bad-rkey-atomic", setup{}, func(s *side) sendWR { return badKey(s.fetchAddWR(s.peer.take8()[0], 1)) }),
	refused("out-of-range", setup{}, func(s *side) sendWR {
		return s.to(s.signaled(opWrite, s.take(100)), len(s.peer.mem)-50)
	}),
	refused("no-write-right", setup{access: accessLocal | accessRead}, func(s *side) sendWR {
		return s.writeWR(s.take(10))
	}),
	refused("no-read-right", setup{access: accessLocal | accessWrite}, func(s *side) sendWR {
		return s.readWR(10)
	}),
	{name: "loss-send", about: "SENDs under loss, duplication and reordering", setup: underLoss, run: caseManySends, impaired: true},
	{name: "loss-write", about: "WRITEs under loss, duplication and reordering", setup: underLoss, run: caseManyWrites, impaired: true},
	{name: "loss-read", about: "READs under loss, duplication and reordering", setup: underLoss, run: caseManyReads, impaired: true},
	{name: "loss-atomic", about: "200 fetch and adds under loss, each exactly once", setup: underLoss, run: caseManyAtomics, impaired: true},
	{
		name: "loss-ipv6", about: "all verbs between IPv6 GIDs under loss", run: caseManyMixed, impaired: true,
		setup: setup{ipv6: true, size: 1 << 20, patience: 60000},
	},
}

var underLoss = setup{size: 1 << 20, patience: 60000}

func caseSend(l *link) {
	for _, n := range lengths {
		l.resp.recv(l.resp.take(n + n%3)) // a receive may be larger than the message
	}
	for _, n := range lengths {
		l.req.post(l.req.sendWR(l.req.take(n)))
	}
	l.settle()
}

func caseSendImm(l *link) {
	for _, n := range lengths {
		l.resp.recv(l.resp.take(n))
	}
	for i, n := range lengths {
		w := l.req.sendImmWR(0x11223344+uint32(i), l.req.take(n))
		w.Flags |= flagSolicited * (i & 1)
		l.req.post(w)
	}
	l.settle()
}

func caseWrite(l *link) {
	for _, n := range lengths {
		l.req.post(l.req.writeWR(l.req.take(n)))
	}
	l.settle()
}

func caseWriteImm(l *link) {
	for range lengths {
		l.resp.recv() // no buffer: the payload goes where the request says
	}
	for i, n := range lengths {
		w := l.req.writeWR(l.req.take(n))
		w.Op, w.Imm = opWriteImm, 0xfedcba98-uint32(i)
		l.req.post(w)
	}
	l.settle()
}

func caseRead(l *link) {
	for _, n := range lengths {
		l.req.post(l.req.readWR(n))
	}
	l.settle()
}

func caseReads(l *link) {
	var batch []sendWR
	for i := range 12 {
		batch = append(batch, l.req.readWR(700*i+1))
	}
	l.req.post(batch...)
	l.settle()
}

func caseCmpSwap(l *link) {
	word := l.resp.take8()[0]
	first := l.req.cmpSwapWR(word, 0x0123456789abcdef, 1) // does not match
	l.req.post(first)
	l.settle()
	now := binary.LittleEndian.Uint64(l.resp.mem[word:])
	l.req.post(
		l.req.cmpSwapWR(word, now, 0x1122334455667788),
		l.req.cmpSwapWR(word, now, 0x99), // not any more
		l.req.cmpSwapWR(word, 0x1122334455667788, math.MaxUint64))
	l.settle()
}

func caseFetchAdd(l *link) {
	word, other := l.resp.take8()[0], l.resp.take8()[0]
	var batch []sendWR
	for i := range 8 {
		batch = append(batch, l.req.fetchAddWR(word, math.MaxUint64>>1+uint64(i)), l.req.fetchAddWR(other, 1<<uint(8*i)))
	}
	l.req.post(batch...)
	l.settle()
}

func caseFence(l *link) {
	r := l.req.readWR(5000)
	a := l.req.fetchAddWR(l.resp.take8()[0], 7)
	l.resp.recv(l.resp.take(5000))
	l.resp.recv(l.resp.take(8))
	s1, s2 := l.req.sendWR(r.SGEs...), l.req.sendWR(a.SGEs...)
	s1.Flags |= flagFence
	s2.Flags |= flagFence
	l.req.post(r, s1, a, s2)
	l.settle()
}

// mixed makes rounds of all verbs with their receives; only every second request is signaled, and the last one is.
func mixed(from *side, rounds int) []sendWR {
	var recvs []recvWR
	var batch []sendWR
	word := from.peer.take8()[0]
	for i := range rounds {
		n := 311*i + 1
		for _, size := range []int{3*n + 9, n, 0, i} {
			recvs = append(recvs, recvWR{SGEs: []span{from.peer.take(size)}})
		}
		writeImm := from.writeWR(from.take(2 * n))
		writeImm.Op, writeImm.Imm = opWriteImm, uint32(i)
		batch = append(batch, from.sendWR(from.take(3*n)), from.writeWR(from.take(n+2)), from.readWR(3*n),
			from.fetchAddWR(word, uint64(n)), from.sendImmWR(uint32(n), from.take(n)), writeImm,
			from.cmpSwapWR(word, uint64(i), 1), from.sendWR(from.take(i)))
	}
	from.peer.recvBatch(recvs)
	for i := range batch[:len(batch)-1] {
		if i%2 == 1 {
			batch[i].Flags &^= flagSignaled
		}
	}
	return batch
}

func casePipelined(l *link) {
	l.req.post(mixed(l.req, 6)...)
	l.settle()
}

func caseBothWays(l *link) {
	a, b := mixed(l.req, 4), mixed(l.resp, 4)
	for len(a) > 0 {
		l.req.post(a[:4]...)
		l.resp.post(b[:4]...)
		a, b = a[4:], b[4:]
	}
	l.settle()
}

func caseSGEs(l *link) {
	q, r := l.req, l.resp
	r.recv(r.take(1000), r.take(1), r.take(2047), r.take(3))
	q.post(q.sendWR(q.take(3), q.take(1021), q.take(1), q.take(2026)))
	write := q.signaled(opWrite, q.take(7), q.take(1500), q.take(2), q.take(1111))
	read := q.signaled(opRead, q.take(5), q.take(1500), q.take(1), q.take(1111))
	q.post(q.to(write, r.take(total(write.SGEs))[0]), q.to(read, r.take(total(read.SGEs))[0]))
	l.settle()
}

func caseInline(l *link) {
	q, r := l.req, l.resp
	for _, n := range []int{0, 1, 7, 32, 64} {
		r.recv(r.take(n))
		s, w := q.sendWR(q.take(n)), q.writeWR(q.take(n))
		s.Flags |= flagInline
		w.Flags |= flagInline
		q.post(s, w)
	}
	l.settle()
}

func caseLarge(l *link) {
	const n = 1<<20 + 1
	l.resp.recv(l.resp.take(n))
	l.req.post(l.req.sendWR(l.req.take(n)), l.req.writeWR(l.req.take(n)), l.req.readWR(n))
	l.settle()
}

func caseBulk(l *link) {
	for range 3 {
		l.req.next, l.resp.next = 0, 0
		var batch []sendWR
		for range 24 {
			batch = append(batch, l.req.writeWR(l.req.take(65536)), l.req.readWR(65536))
		}
		l.req.post(batch...)
		l.req.collect()
	}
	l.settle()
}

func caseConnections(ls []*link) {
	batches := make([][]sendWR, len(ls))
	for i, l := range ls {
		batches[i] = mixed(l.req, 4)
	}
	for part := range 4 {
		for i, l := range ls {
			l.req.post(batches[i][8*part:][:8]...)
		}
	}
	for _, l := range ls {
		l.settle()
	}
}

// caseReceiveTooSmall: rxe answers NAK 0x63 (remote operational error), where the specification has 0x61, so the statuses
// depend on who responds.
func caseReceiveTooSmall(l *link) {
	l.resp.recv(l.resp.take(100))
	r := l.resp.recvs[0]
	l.resp.recv(l.resp.take(100))
	l.resp.recvs = l.resp.recvs[1:]
	sender, receiver := statusRemInvReq, statusLocLen
	if l.resp.isRxe() {
		sender, receiver = statusRemOp, statusLocQPOp
	}
	l.req.postRefused(l.req.sendWR(l.req.take(101)), sender)
	l.resp.want = append(l.resp.want, completion{ID: r.ID, Status: receiver})
	l.resp.flushed()
	l.settle()
	l.req.mustBeBroken()
	l.resp.mustBeBroken()
}

// noneYet fails when a completion comes within ms although none can.
func (s *side) noneYet(ms int) {
	if early, err := s.end.Poll(1, ms); err != nil || len(early) > 0 {
		failf("%s: a completion before it was possible: %v %v", s.name, early, err)
	}
}

func caseRNR(l *link) {
	q, r := l.req, l.resp
	sends := []sendWR{q.sendWR(q.take(100)), q.sendImmWR(0x77, q.take(3000)), q.sendWR(q.take(5))}
	q.hand(sends)
	q.noneYet(50)
	r.recvBatch([]recvWR{{SGEs: []span{r.take(100)}}, {SGEs: []span{r.take(3000)}}, {SGEs: []span{r.take(5)}}})
	for _, w := range sends {
		q.play(w)
	}
	l.settle()
}

func caseRNRExhausted(l *link) {
	l.req.postRefused(l.req.sendWR(l.req.take(100)), statusRNRRetryExc)
	l.settle()
	l.req.mustBeBroken()
}

func caseRetryExceeded(l *link) {
	must(l.resp.end.Break())
	l.req.postRefused(l.req.sendWR(l.req.take(100)), statusRetryExc)
	l.settle()
	l.req.mustBeBroken()
}

// mustBeBroken checks that the queue pair is in the error state and flushes what is posted now.
func (s *side) mustBeBroken() {
	state, err := s.end.State()
	must(err)
	if state != stateErr {
		failf("%s: the queue pair is in state %d, want %d (error)", s.name, state, stateErr)
	}
	s.postRefused(s.sendWR(s.take(8)), statusFlushed)
	s.l.settle()
}

func badKey(w sendWR) sendWR {
	w.RKey ^= 0x55
	return w
}

// refused makes a case of one request that the responder must refuse with NAK 0x62: the requester completes with
// REM_ACCESS_ERR, both queue pairs end in error and flush, no byte changes.
func refused(name string, s setup, request func(*side) sendWR) verbsCase {
	return verbsCase{
		name: name, about: "a request to be refused", setup: s,
		shows: map[string]int{nakName(0x62): 1},
		run: func(l *link) {
			l.resp.recv(l.resp.take(64))
			l.req.postRefused(request(l.req), statusRemAccess)
			l.resp.flushed()
			l.settle()
			l.req.mustBeBroken()
			l.resp.mustBeBroken()
		},
	}
}

// rounds posts batches and waits for each, so that no queue overflows and losses fall everywhere.
func rounds(l *link, n int, batch func(i int) []sendWR) {
	for i := range n {
		l.req.next, l.resp.next = 0, 0
		l.req.post(batch(i)...)
		l.req.collect()
		l.resp.collect()
	}
	l.settle()
}

func caseManySends(l *link) {
	rounds(l, 8, func(int) (batch []sendWR) {
		for i := range 16 {
			n := []int{3000, 100, 1024, 20000}[i%4]
			l.resp.recv(l.resp.take(n))
			batch = append(batch, l.req.sendImmWR(uint32(i), l.req.take(n)))
		}
		return batch
	})
}

func caseManyWrites(l *link) {
	rounds(l, 8, func(int) (batch []sendWR) {
		for i := range 12 {
			batch = append(batch, l.req.writeWR(l.req.take([]int{6000, 100, 1024, 65536}[i%4])))
		}
		return batch
	})
}

func caseManyReads(l *link) {
	rounds(l, 8, func(int) (batch []sendWR) {
		for i := range 12 {
			batch = append(batch, l.req.readWR([]int{6000, 100, 1024, 16384}[i%4]))
		}
		return batch
	})
}

func caseManyAtomics(l *link) {
	word := l.resp.take8()[0]
	for range 10 {
		var batch []sendWR
		for range 20 {
			batch = append(batch, l.req.fetchAddWR(word, 1))
		}
		l.req.post(batch...)
		l.req.collect()
	}
	l.settle()
}

func caseManyMixed(l *link) {
	for range 4 {
		l.req.next, l.resp.next = 0, 0
		l.req.post(mixed(l.req, 6)...)
		l.req.collect()
		l.resp.collect()
	}
	l.settle()
}

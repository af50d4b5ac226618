package main

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
)

// A link is a connection between two ends, or what they send each other in datagrams, together with a model of it: what every
// byte of both regions must be and which completions must come, in order, if both ends keep the specification and nothing is
// lost. A case posts work; settle compares.
//
// Its methods end the case by a panic with a failure, which runCase turns into the verdict.
type link struct {
	req, resp *side // the end that a one-sided case requests from, and the other
	log       logf
	rng       *rand.Rand
	patience  int // milliseconds that settle waits for a completion
	typ       int // of the queue pairs
}

// A side is one end with the model of its region and of its completion queue.
type side struct {
	name string
	end  End
	id   identity
	peer *side
	l    *link

	mem    []byte       // what the region must hold
	next   int          // first offset that take has not given out
	lastID uint64       // of a work request
	recvs  []recvWR     // posted, not consumed, in order
	want   []completion // due; in order among requests and among receives

	shared  bool                  // the receives are those of a shared receive queue
	due     map[uint32][]delivery // then, by queue pair: messages that must come, in order
	ah      int                   // address handle to the peer
	headers []headerDue           // header areas of datagrams, to be judged once they are there
}

// isRxe says that the end is the kernel's.
func (s *side) isRxe() bool { return strings.HasPrefix(s.name, "guest") }

// failure is the reason why a case failed.
type failure struct{ text string }

func failf(format string, args ...any) { panic(failure{fmt.Sprintf(format, args...)}) }

func must(err error) {
	if err != nil {
		failf("%v", err)
	}
}

// A setup says how a case's link is made; zero values mean what newLink puts there.
type setup struct {
	typ      int // of the queue pairs; typeRC
	qps      int // queue pairs of each end, connected one to one; 1
	srq      int // receives that the responder's queue pairs share; 0: none
	ipv6     bool
	mtu      int // bytes; 1024
	size     int // bytes of each region; 128 KiB
	access   int // rights of the responder's region; all and binding windows
	inline   int
	foreign  bool
	psn      uint32 // first PSN of the requester; the responder's is one more; 0x100
	rdAtomic int    // READs and atomics outstanding; 4
	timeout  int    // code of the ACK timeout; 14 (67 ms)
	retry    int    // 7
	rnrRetry int    // 7 (without end)
	rnrTimer int    // 12 (0.64 ms)
	patience int    // ms to wait for a completion; 20,000
}

func orElse(v, otherwise int) int {
	if v == 0 {
		return otherwise
	}
	return v
}

// newLink opens, connects and fills both ends.
func newLink(name string, s setup, req, resp *side, log logf) *link {
	h := fnv.New64()
	_, _ = h.Write([]byte(name))
	l := &link{req: req, resp: resp, log: log, rng: rand.New(rand.NewPCG(h.Sum64(), 1)), patience: orElse(s.patience, 20000)}
	l.typ = orElse(s.typ, typeRC)
	req.peer, resp.peer = resp, req
	for _, side := range []*side{req, resp} {
		side.open(l, s)
	}
	if l.typ == typeUD {
		for _, side := range []*side{req, resp} {
			var err error
			side.ah, err = side.end.Handle(side.peer.id.GID)
			must(err)
		}
		return l
	}
	l.connect(s)
	return l
}

// open makes the end's things and fills its region.
func (s *side) open(l *link, set setup) {
	s.l = l
	o := openRequest{
		IPv6: set.ipv6, Size: orElse(set.size, 1<<17), Access: accessAll, Inline: set.inline, Foreign: set.foreign, Type: l.typ,
		QPs: orElse(set.qps, 1), QKey: rightQKey,
	}
	if s == l.resp {
		o.Access, o.SRQ = orElse(set.access, accessAll|accessBind), set.srq
		s.shared, s.due = o.SRQ > 0, map[uint32][]delivery{}
	}
	var err error
	s.id, err = s.end.Open(o)
	must(err)
	l.log("%s: qpn %#x gid %s addr %#x rkey %#x", s.name, s.id.QPNs, s.id.GID, s.id.Addr, s.id.RKey)
	s.mem = l.random(o.Size)
	must(s.end.WriteMem(0, s.mem))
}

// connect connects each queue pair with the peer's of the same index.
func (l *link) connect(s setup) {
	req, resp := l.req, l.resp
	psn := map[*side]uint32{req: 0x100, resp: 0x101}
	if s.psn != 0 {
		psn[req], psn[resp] = s.psn, s.psn+1
	}
	for _, side := range []*side{resp, req} {
		for i, qpn := range side.peer.id.QPNs {
			must(side.end.Connect(connectRequest{
				QP: i, QPN: qpn, GID: side.peer.id.GID, SQPSN: psn[side], RQPSN: psn[side.peer],
				MTU: mtuCode[orElse(s.mtu, 1024)], RDAtomic: orElse(s.rdAtomic, 4), Timeout: orElse(s.timeout, 14),
				Retry: orElse(s.retry, 7), RNRRetry: orElse(s.rnrRetry, 7), RNRTimer: orElse(s.rnrTimer, 12),
			}))
		}
	}
}

func (l *link) random(n int) []byte {
	b := make([]byte, n+7)
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], l.rng.Uint64())
	}
	return b[:n]
}

// take gives out n bytes of the region that no other piece overlaps, at an offset that is odd whatever n is.
func (s *side) take(n int) span {
	off := s.next | 1
	s.next = off + n + 2
	if s.next > len(s.mem) {
		failf("the case needs a region larger than %d bytes", len(s.mem))
	}
	return span{off, n}
}

// take8 gives out eight aligned bytes, as an atomic wants them.
func (s *side) take8() span {
	off := (s.next + 15) &^ 7
	s.next = off + 8
	return span{off, 8}
}

// recvID marks the id of a receive.
const recvID = 1 << 40

func (s *side) id64() uint64 {
	s.lastID++
	return s.lastID
}

// recv posts a receive into the spans.
func (s *side) recv(sges ...span) { s.recvBatch([]recvWR{{SGEs: append([]span{}, sges...)}}) }

func (s *side) recvBatch(wrs []recvWR) {
	for i := range wrs {
		wrs[i].ID = s.id64() | recvID
	}
	must(s.end.PostRecv(wrs))
	s.recvs = append(s.recvs, wrs...)
}

func (s *side) signaled(op int, local ...span) sendWR {
	return sendWR{Op: op, Flags: flagSignaled, SGEs: local}
}

func (s *side) sendWR(local ...span) sendWR { return s.signaled(opSend, local...) }

func (s *side) sendImmWR(imm uint32, local ...span) sendWR {
	w := s.signaled(opSendImm, local...)
	w.Imm = imm
	return w
}

// to aims a request at an offset of the peer's region.
func (s *side) to(w sendWR, off int) sendWR {
	w.Addr, w.RKey = s.peer.id.Addr+uint64(off), s.peer.id.RKey
	return w
}

// writeWR writes the local piece to a new piece of the peer's region.
func (s *side) writeWR(local span) sendWR {
	return s.to(s.signaled(opWrite, local), s.peer.take(local[1])[0])
}

// readWR reads n bytes of a new piece of the peer's region into a new piece here.
func (s *side) readWR(n int) sendWR {
	return s.to(s.signaled(opRead, s.take(n)), s.peer.take(n)[0])
}

func (s *side) cmpSwapWR(remote int, compare, swap uint64) sendWR {
	w := s.to(s.signaled(opCmpSwap, s.take8()), remote)
	w.CompareAdd, w.Swap = compare, swap
	return w
}

func (s *side) fetchAddWR(remote int, add uint64) sendWR {
	w := s.to(s.signaled(opFetchAdd, s.take8()), remote)
	w.CompareAdd = add
	return w
}

// post hands the requests to the end together and plays them on the model.
func (s *side) post(wrs ...sendWR) {
	s.hand(wrs)
	for _, w := range wrs {
		s.play(w)
	}
}

// postRefused posts one request that must complete with one of the statuses and change nothing.
func (s *side) postRefused(w sendWR, status int) {
	s.hand([]sendWR{w})
	s.want = append(s.want, completion{ID: s.lastID, Status: status})
}

func (s *side) hand(wrs []sendWR) {
	for i := range wrs {
		wrs[i].ID = s.id64()
		if s.l.typ == typeUD && wrs[i].RemoteQPN == 0 {
			wrs[i].AH, wrs[i].RemoteQPN, wrs[i].QKey = s.ah, s.peer.id.QPNs[0], rightQKey
		}
	}
	must(s.end.PostSend(wrs))
}

// play does on the model what a request must do, in the order of posting: that is the order in which a responder executes.
func (s *side) play(w sendWR) {
	remote := int(w.Addr - s.peer.id.Addr)
	switch w.Op {
	case opSend, opSendImm, opSendInv:
		s.peer.consume(w, s.gather(w.SGEs))
	case opWrite, opWriteImm:
		copy(s.peer.mem[min(remote, len(s.peer.mem)):], s.gather(w.SGEs))
		if w.imm() {
			s.peer.consume(w, nil)
		}
	case opRead:
		s.scatter(w.SGEs, s.peer.mem[remote:][:total(w.SGEs)])
	case opCmpSwap, opFetchAdd:
		word := s.peer.mem[remote:][:8]
		old := binary.LittleEndian.Uint64(word)
		if w.Op == opFetchAdd {
			binary.LittleEndian.PutUint64(word, old+w.CompareAdd)
		} else if old == w.CompareAdd {
			binary.LittleEndian.PutUint64(word, w.Swap)
		}
		s.scatter(w.SGEs, binary.LittleEndian.AppendUint64(nil, old))
	}
	if w.Flags&flagSignaled != 0 {
		s.want = append(s.want, completion{ID: w.ID, Op: wcOpcode[w.Op], QPN: s.id.QPNs[w.QP]})
	}
}

// A delivery is an incoming request that takes a receive; payload is nil for a WRITE.
type delivery struct {
	w       sendWR
	payload []byte
	qpn     uint32 // that it comes to
	to      string // GID that it was sent to
}

// consume completes the oldest receive by an incoming request. Of a shared receive queue, which one it takes is told by its
// completion.
func (s *side) consume(w sendWR, payload []byte) {
	d := delivery{w: w, payload: payload, qpn: s.id.QPNs[w.QP], to: s.id.GID}
	if s.shared {
		s.due[d.qpn] = append(s.due[d.qpn], d)
		return
	}
	if len(s.recvs) == 0 {
		failf("the case posted too few receives")
	}
	r := s.recvs[0]
	s.recvs = s.recvs[1:]
	s.want = append(s.want, s.deliver(r, d))
}

// deliver fills a receive with a message; its completion.
func (s *side) deliver(r recvWR, d delivery) completion {
	c := completion{ID: r.ID, Op: wcRecv, Len: total(d.w.SGEs), QPN: d.qpn}
	if s.l.typ == typeUD {
		s.headers = append(s.headers, headerDue{r.SGEs[0][0], s.peer.id.GID, d.to})
		c.Len += headerArea
		c.Flags, c.SrcQP = wcFlagGRH, s.peer.id.QPNs[d.w.QP]
		r.SGEs = behindHeader(r.SGEs)
	}
	s.scatter(r.SGEs, d.payload)
	switch d.w.Op {
	case opSendImm, opWriteImm:
		c.Flags, c.Imm = c.Flags|wcFlagImm, d.w.Imm
	case opSendInv:
		c.Flags, c.Inv = c.Flags|wcFlagInv, d.w.Inv
	}
	if d.w.Op == opWriteImm {
		c.Op = wcRecvImm
	}
	return c
}

func (s *side) gather(sges []span) []byte {
	var b []byte
	for _, g := range sges {
		b = append(b, s.mem[g[0]:g[0]+g[1]]...)
	}
	return b
}

func (s *side) scatter(sges []span, b []byte) {
	for _, g := range sges {
		b = b[copy(s.mem[g[0]:g[0]+g[1]], b):]
	}
}

// flushed says that the receives still posted must now complete as flushed.
func (s *side) flushed() {
	for _, r := range s.recvs {
		s.want = append(s.want, completion{ID: r.ID, Status: statusFlushed})
	}
	s.recvs = nil
}

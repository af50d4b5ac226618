package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
)

// A link is a reliable connection between two ends together with a model of it: what every byte of both regions must be
// and which completions must come, in order, if both ends keep the specification. A case posts work; settle compares.
//
// Its methods end the case by a panic with a failure, which runCase turns into the verdict.
type link struct {
	req, resp *side // the end that a one-sided case requests from, and the other
	log       logf
	rng       *rand.Rand
	patience  int // milliseconds that settle waits for a completion
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
}

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
	ipv6     bool
	mtu      int // bytes; 1024
	size     int // bytes of each region; 128 KiB
	access   int // rights of the responder's region; all
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
	req.peer, resp.peer = resp, req
	for _, side := range []*side{req, resp} {
		side.l = l
		o := openRequest{IPv6: s.ipv6, Size: orElse(s.size, 1<<17), Access: accessAll, Inline: s.inline, Foreign: s.foreign}
		if side == resp {
			o.Access = orElse(s.access, accessAll)
		}
		var err error
		side.id, err = side.end.Open(o)
		must(err)
		log("%s: qpn %#x gid %s addr %#x rkey %#x", side.name, side.id.QPN, side.id.GID, side.id.Addr, side.id.RKey)
		side.mem = l.random(o.Size)
		must(side.end.WriteMem(0, side.mem))
	}
	psn := map[*side]uint32{req: 0x100, resp: 0x101}
	if s.psn != 0 {
		psn[req], psn[resp] = s.psn, s.psn+1
	}
	for _, side := range []*side{resp, req} {
		must(side.end.Connect(connectRequest{
			QPN: side.peer.id.QPN, GID: side.peer.id.GID, SQPSN: psn[side], RQPSN: psn[side.peer],
			MTU: mtuCode[orElse(s.mtu, 1024)], RDAtomic: orElse(s.rdAtomic, 4), Timeout: orElse(s.timeout, 14),
			Retry: orElse(s.retry, 7), RNRRetry: orElse(s.rnrRetry, 7), RNRTimer: orElse(s.rnrTimer, 12),
		}))
	}
	return l
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
	}
	must(s.end.PostSend(wrs))
}

// play does on the model what a request must do, in the order of posting: that is the order in which a responder executes.
func (s *side) play(w sendWR) {
	remote := int(w.Addr - s.peer.id.Addr)
	switch w.Op {
	case opSend, opSendImm:
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
		s.want = append(s.want, completion{ID: w.ID, Op: wcOpcode[w.Op]})
	}
}

// consume completes the oldest receive by an incoming request; payload is nil for a WRITE.
func (s *side) consume(w sendWR, payload []byte) {
	if len(s.recvs) == 0 {
		failf("the case posted too few receives")
	}
	r := s.recvs[0]
	s.recvs = s.recvs[1:]
	s.scatter(r.SGEs, payload)
	c := completion{ID: r.ID, Op: wcRecv, Len: total(w.SGEs)}
	if w.imm() {
		c.Flags, c.Imm = wcFlagImm, w.Imm
	}
	if w.Op == opWriteImm {
		c.Op = wcRecvImm
	}
	s.want = append(s.want, c)
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

// settle waits for everything that is due on both sides and compares completions and memory with the model.
func (l *link) settle() {
	for _, s := range []*side{l.req, l.resp} {
		s.collect()
	}
	for _, s := range []*side{l.req, l.resp} {
		if more, err := s.end.Poll(1, 0); err != nil || len(more) > 0 {
			failf("%s: one completion too many: %v %v", s.name, more, err)
		}
		s.compareMemory()
	}
}

func (s *side) collect() {
	var got []completion
	for len(got) < len(s.want) {
		more, err := s.end.Poll(len(s.want)-len(got), s.l.patience)
		must(err)
		if len(more) == 0 {
			break
		}
		got = append(got, more...)
	}
	requests, receives := split(s.want)
	gotRequests, gotReceives := split(got)
	s.compare("request", gotRequests, requests)
	s.compare("receive", gotReceives, receives)
	s.want = nil
}

// isRecv: a failed completion does not tell what it was, but a receive's id does.
func isRecv(c completion) bool { return c.ID&recvID != 0 }

func split(cs []completion) (requests, receives []completion) {
	for _, c := range cs {
		if isRecv(c) {
			receives = append(receives, c)
		} else {
			requests = append(requests, c)
		}
	}
	return requests, receives
}

func (s *side) compare(what string, got, want []completion) {
	for i, w := range want {
		if i == len(got) {
			failf("%s: %d of %d %s completions did not come within %d ms, the next is %v", s.name, len(want)-i, len(want), what,
				s.l.patience, w)
		}
		if !w.matches(got[i], s.id.QPN) {
			failf("%s: %s completion %d is %v (qpn %#x), want %v", s.name, what, i+1, got[i], got[i].QPN, w)
		}
	}
	if len(got) > len(want) {
		failf("%s: %s completion %v was not due", s.name, what, got[len(want)])
	}
}

// matches compares what the verbs manual defines: of a failure only id, status and QPN; length and immediate of receives.
func (c completion) matches(got completion, qpn uint32) bool {
	if got.ID != c.ID || got.Status != c.Status || got.QPN != qpn {
		return false
	}
	if c.Status != statusSuccess {
		return true
	}
	if got.Op != c.Op || c.Op < wcRecv {
		return got.Op == c.Op
	}
	return got.Len == c.Len && got.Flags&wcFlagImm == c.Flags&wcFlagImm && (c.Flags&wcFlagImm == 0 || got.Imm == c.Imm)
}

func (s *side) compareMemory() {
	got, err := s.end.ReadMem(0, len(s.mem))
	must(err)
	if bytes.Equal(got, s.mem) {
		return
	}
	first, wrong := -1, 0
	for i := range s.mem {
		if i >= len(got) || got[i] != s.mem[i] {
			if wrong++; first < 0 {
				first = i
			}
		}
	}
	end := min(first+8, len(s.mem), len(got))
	failf("%s: %d of %d bytes of the region are wrong, the first at offset %d: % x, want % x", s.name, wrong, len(s.mem),
		first, got[first:end], s.mem[first:end])
}

package main

import "bytes"

// caseUCDrops sends without a receive: the message is gone, and its sender does not know.
func caseUCDrops(l *link) {
	q, r := l.req, l.resp
	q.postLost(q.sendWR(q.take(3000)))
	l.settle()
	r.noneYet(100)
	for range 2 {
		r.recv(r.take(2500))
		q.post(q.sendWR(q.take(2500)))
		l.settle()
	}
}

// caseUCWrite ends with a SEND: nothing else tells when the WRITEs are there.
func caseUCWrite(l *link) {
	l.resp.recv()
	var batch []sendWR
	for _, n := range lengths {
		batch = append(batch, l.req.writeWR(l.req.take(n)))
	}
	l.req.post(append(batch, l.req.sendWR())...)
	l.settle()
}

func caseUCMixed(l *link) {
	q, r := l.req, l.resp
	var batch []sendWR
	for i := range 8 {
		n := 700*i + 1
		r.recv(r.take(n))
		r.recv()
		imm := q.writeWR(q.take(n))
		imm.Op, imm.Imm = opWriteImm, uint32(i)
		batch = append(batch, q.sendImmWR(uint32(i), q.take(n)), q.writeWR(q.take(n)), imm)
	}
	for i := range batch[:len(batch)-1] {
		batch[i].Flags &^= flagSignaled * (i & 1)
	}
	q.post(batch...)
	l.settle()
}

// A losable message is one of a series of which some do not arrive.
type losable struct {
	data []byte
	off  int // of a WRITE, in the receiver's region
}

// lossy sends a series of messages over an unreliable connection. What arrives is whole and in order, the sender completes
// all, and where nothing arrived there is what was there before or the beginning of what was lost. A queue pair of rxe takes
// nothing more once a WRITE was cut, so it gets WRITEs of one packet.
func (l *link) lossy(write bool) {
	q, r := l.req, l.resp
	const rounds, each, most = 2, 60, 5000
	var arrived, sent int
	for range rounds {
		q.next, r.next = 0, 0
		var series []losable
		var batch []sendWR
		for range each {
			if write {
				r.recv()
			} else {
				r.recv(r.take(most))
			}
		}
		sizes := []int{most, 100, 1025, 3000, 1024}
		if write && r.isRxe() {
			sizes = []int{1024, 100, 1, 0, 1000}
		}
		for i := range each {
			piece := q.take(sizes[i%5])
			w, m := q.sendImmWR(uint32(i), piece), losable{data: q.gather([]span{piece})}
			if write {
				m.off = r.take(piece[1])[0]
				w = q.to(w, m.off)
				w.Op = opWriteImm
			}
			series, batch = append(series, m), append(batch, w)
		}
		q.hand(batch)
		for i := range batch {
			q.want = append(q.want, completion{ID: batch[i].ID, Op: wcOpcode[batch[i].Op]})
		}
		q.collect()
		got := r.arrivals(each)
		r.judgeLossy(series, got, write)
		arrived, sent = arrived+len(got), sent+each
		r.recvs = r.recvs[len(got):]
		l.log("%d of %d messages arrived", len(got), each)
		// The rest of the receives is used up, so that the next round has its own.
		l.drain()
	}
	if arrived == 0 || arrived == sent {
		failf("%d of %d messages arrived: there was no loss, or nothing else", arrived, sent)
	}
}

// arrivals are the receive completions that come before a second without any.
func (s *side) arrivals(most int) (got []completion) {
	for len(got) < most {
		more, err := s.end.Poll(most-len(got), 1000)
		must(err)
		if len(more) == 0 {
			break
		}
		got = append(got, more...)
	}
	return got
}

// drain sends single packets until each receive is used up; what they bring is not looked at but for being whole.
func (l *link) drain() {
	q, r := l.req, l.resp
	for tries := 0; len(r.recvs) > 0; tries++ {
		if tries == 1000 {
			failf("%s: %d receives are not used up by %d messages", r.name, len(r.recvs), tries)
		}
		w := q.sendWR(span{0, 1})
		if len(r.recvs[0].SGEs) == 0 {
			w = q.sendWR()
		}
		q.postLost(w)
		q.collect()
		got, err := r.end.Poll(1, 50)
		must(err)
		for _, c := range got {
			if c.ID != r.recvs[0].ID || c.Status != statusSuccess {
				failf("%s: completion %v, want receive %d", r.name, c, r.recvs[0].ID)
			}
			r.recvs = r.recvs[1:]
		}
	}
	mem, err := r.end.ReadMem(0, len(r.mem))
	must(err)
	r.mem = bytes.Clone(mem)
}

// judgeLossy compares what arrived of a series with the model: which message it was, its immediate says.
func (s *side) judgeLossy(series []losable, got []completion, write bool) {
	mem, err := s.end.ReadMem(0, len(s.mem))
	must(err)
	next := 0
	for i, c := range got {
		if int(c.Imm) < next || int(c.Imm) >= len(series) {
			failf("%s: message %d of %d arrived where at least %d was due", s.name, c.Imm, len(series), next)
		}
		want := completion{ID: s.recvs[i].ID, Op: wcRecv, Len: len(series[c.Imm].data), Flags: wcFlagImm, Imm: c.Imm, QPN: s.id.QPNs[0]}
		if write {
			want.Op = wcRecvImm
		}
		if !want.matches(c) {
			failf("%s: completion %v, want %v", s.name, c, want)
		}
		lost := series[next:c.Imm]
		if write {
			s.judgeWrites(mem, lost, series[c.Imm])
		} else {
			s.judgeReceive(mem, s.recvs[i].SGEs[0], lost, series[c.Imm].data)
		}
		next = int(c.Imm) + 1
	}
	if lost := series[next:]; write {
		s.judgeWrites(mem, lost, losable{})
	} else if len(got) < len(s.recvs) {
		s.judgeReceive(mem, s.recvs[len(got)].SGEs[0], lost, nil)
	}
	s.compareMemory() // all else is as it was
}

// judgeReceive looks at the buffer that a message came to: behind it may be the beginning of one that was lost.
func (s *side) judgeReceive(mem []byte, at span, lost []losable, data []byte) {
	for i := range at[1] {
		b := mem[at[0]+i]
		ok := b == s.mem[at[0]+i]
		if i < len(data) {
			ok = b == data[i]
		} else {
			for _, m := range lost {
				ok = ok || i < len(m.data) && b == m.data[i]
			}
		}
		if !ok {
			failf("%s: byte %d of the receive at offset %d is %#x, of no message", s.name, i, at[0], b)
		}
	}
	copy(s.mem[at[0]:][:at[1]], mem[at[0]:])
}

// judgeWrites looks at where lost messages and the one that came were to go.
func (s *side) judgeWrites(mem []byte, lost []losable, came losable) {
	if !bytes.Equal(mem[came.off:][:len(came.data)], came.data) {
		failf("%s: the WRITE to offset %d completed and is not there", s.name, came.off)
	}
	copy(s.mem[came.off:], came.data)
	for _, m := range lost {
		for i, w := range m.data {
			if b := mem[m.off+i]; b != w && b != s.mem[m.off+i] {
				failf("%s: byte %d of the lost WRITE to offset %d is %#x, neither old nor new", s.name, i, m.off, b)
			}
		}
		copy(s.mem[m.off:][:len(m.data)], mem[m.off:])
	}
}

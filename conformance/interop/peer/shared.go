package main

import "slices"

// compareShared compares the completions of a shared receive queue. Each queue pair gets its messages in order; which of them
// takes a receive first is free, but a receive is taken once, and none before an older one.
func (s *side) compareShared(got []completion) {
	var newest uint64
	for _, c := range got {
		i := slices.IndexFunc(s.recvs, func(r recvWR) bool { return r.ID == c.ID })
		if i < 0 {
			failf("%s: completion %v of a receive that does not wait", s.name, c)
		}
		due := s.due[c.QPN]
		if len(due) == 0 {
			failf("%s: completion %v, but no message is due at queue pair %#x", s.name, c, c.QPN)
		}
		if want := s.deliver(s.recvs[i], due[0]); !want.matches(c) {
			failf("%s: queue pair %#x completed %v (flags %#x), want %v", s.name, c.QPN, c, c.Flags, want)
		}
		s.due[c.QPN] = due[1:]
		s.recvs = slices.Delete(s.recvs, i, i+1)
		newest = max(newest, c.ID)
	}
	for qpn, due := range s.due {
		if len(due) > 0 {
			failf("%s: %d messages to queue pair %#x did not come within %d ms", s.name, len(due), qpn, s.l.patience)
		}
	}
	if len(s.recvs) > 0 && len(got) > 0 && s.recvs[0].ID < newest {
		failf("%s: receive %d waits although the later %d was taken", s.name, s.recvs[0].ID, newest)
	}
}

// recvMany posts n receives of a size.
func (s *side) recvMany(n, size int) {
	for range n {
		s.recv(s.take(size))
	}
}

// event waits for the limit event, or that it does not come.
func (s *side) limitEvent(due bool) {
	ms := 300
	if due {
		ms = s.l.patience
	}
	for {
		event, err := s.end.Event(ms)
		must(err)
		switch {
		case event == eventSRQLimit && due || event < 0 && !due:
			return
		case event == eventSRQLimit:
			failf("%s: the limit event came before fewer receives than the limit waited, or twice", s.name)
		case event < 0:
			failf("%s: the limit event did not come", s.name)
		}
	}
}

// caseSharedRC has three connections take from one queue of receives, several packets a message, all at once.
func caseSharedRC(l *link) {
	q, r := l.req, l.resp
	r.recvMany(36, 5000)
	var batch []sendWR
	for i := range 36 {
		w := q.sendImmWR(uint32(i), q.take([]int{10, 5000, 1025, 0}[i%4]))
		w.QP = i % 3
		batch = append(batch, w)
	}
	q.post(batch...)
	l.settle()
	l.caseLimit(func(i int) sendWR {
		w := q.sendWR(q.take(64))
		w.QP = i % 3
		return w
	}, 64)
	// Nothing waits now: the message is tried again until something does.
	late := q.sendWR(q.take(300))
	late.QP = 2
	q.hand([]sendWR{late})
	r.noneYet(50)
	r.recvMany(1, 300)
	late.ID = q.lastID
	q.play(late)
	l.settle()
}

// caseLimit empties a queue of eight receives whose limit is five.
func (l *link) caseLimit(message func(i int) sendWR, size int) {
	l.resp.recvMany(8, size)
	must(l.resp.end.Limit(5))
	for i := range 8 {
		l.req.post(message(i))
		l.settle()
		switch i {
		case 2, 7: // five wait; the event came already
			l.resp.limitEvent(false)
		case 3: // four wait
			l.resp.limitEvent(true)
		}
	}
}

// caseSharedUD receives datagrams from a shared receive queue.
func caseSharedUD(l *link) {
	q, r := l.req, l.resp
	r.recvMany(len(datagramLengths), headerArea+4096)
	for i, n := range datagramLengths {
		q.post(q.sendImmWR(uint32(i), q.take(n)))
	}
	l.settle()
	l.caseLimit(func(int) sendWR { return q.sendWR(q.take(200)) }, headerArea+200)
	q.postLost(q.sendWR(q.take(10))) // nothing waits
	l.settle()
	r.noneYet(100)
	r.recvMany(1, headerArea+20)
	q.post(q.sendWR(q.take(20)))
	l.settle()
}

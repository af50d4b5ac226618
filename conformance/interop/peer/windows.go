package main

// bind opens a piece of the region by a window; the key.
func (s *side) bind(mw int, piece span, access int) uint32 {
	b := bindWR{ID: s.id64(), MW: mw, Off: piece[0], Len: piece[1], Access: access, Flags: flagSignaled}
	key, err := s.end.Bind(b)
	must(err)
	s.want = append(s.want, completion{ID: b.ID, Op: wcBindMW})
	s.l.settle()
	return key
}

// window allocates a window and binds it; the key it is bound by.
func (s *side) window(typ int, piece span, access int) (mw int, key uint32) {
	mw, first, err := s.end.Window(typ)
	must(err)
	if key = s.bind(mw, piece, access); key == first {
		failf("%s: the window's key is %#x before and after the bind", s.name, key)
	}
	return mw, key
}

// via aims a request at an offset of the peer's region by a key.
func (s *side) via(w sendWR, off int, key uint32) sendWR {
	w = s.to(w, off)
	w.RKey = key
	return w
}

func (s *side) writeVia(n, off int, key uint32) sendWR {
	return s.via(s.signaled(opWrite, s.take(n)), off, key)
}

func (s *side) readVia(n, off int, key uint32) sendWR {
	return s.via(s.signaled(opRead, s.take(n)), off, key)
}

// refuse posts a request that the responder must refuse with NAK 0x62.
func (l *link) refuse(w sendWR) {
	l.resp.recv(l.resp.take(64))
	l.req.postRefused(w, statusRemAccess)
	l.resp.flushed()
	l.settle()
	l.req.mustBeBroken()
	l.resp.mustBeBroken()
}

const accessReadWrite = accessRead | accessWrite

// windowOnly are the rights of a region that peers reach by windows alone.
const windowOnly = accessLocal | accessBind

// use reads and writes all of the piece and its ends by the key. A WRITE may overtake what a READ before it reads, unless it is
// fenced.
func (l *link) use(piece span, key uint32) {
	q, off, n := l.req, piece[0], piece[1]
	fenced := q.writeVia(1, off, key)
	fenced.Flags |= flagFence
	q.post(q.writeVia(n, off, key), q.readVia(n, off, key), fenced, q.writeVia(1, off+n-1, key), q.readVia(1, off+n-1, key))
	l.settle()
}

// caseWindow1 binds a window of type 1, binds it elsewhere while it is bound, and unbinds it.
func caseWindow1(ls []*link) {
	r := ls[0].resp
	piece, other := r.take(3000), r.take(500)
	mw, key := r.window(window1, piece, accessReadWrite)
	ls[0].use(piece, key)
	again := r.bind(mw, other, accessReadWrite)
	ls[0].use(other, again)
	ls[0].refuse(ls[0].req.writeVia(100, piece[0], key)) // not any more

	r = ls[1].resp
	piece = r.take(100)
	_, key = r.window(window1, piece, accessRead)
	ls[1].req.post(ls[1].req.readVia(100, piece[0], key))
	ls[1].settle()
	ls[1].refuse(ls[1].req.writeVia(100, piece[0], key)) // no right

	r = ls[2].resp
	piece = r.take(100)
	mw, key = r.window(window1, piece, accessReadWrite)
	ls[2].use(piece, key)
	r.bind(mw, span{piece[0], 0}, 0)
	ls[2].refuse(ls[2].req.writeVia(1, piece[0], key)) // not bound

	outside(ls[3], window1)
}

// outside writes into the region over the window's end: rxe looks at the region's end only.
func outside(l *link, typ int) {
	piece := l.resp.take(100)
	l.resp.take(100)
	_, key := l.resp.window(typ, piece, accessReadWrite)
	if w := l.req.writeVia(100, piece[0]+50, key); l.resp.isRxe() {
		l.req.post(w)
		l.settle()
	} else {
		l.refuse(w)
	}
}

// caseWindow2 binds windows of type 2, several at once.
func caseWindow2(ls []*link) {
	r := ls[0].resp
	pieces := []span{r.take(3000), r.take(1), r.take(2049)}
	var keys []uint32
	for _, p := range pieces {
		_, key := r.window(window2, p, accessReadWrite)
		keys = append(keys, key)
	}
	for i, p := range pieces {
		ls[0].use(p, keys[i])
	}
	word := r.take8()
	_, key := r.window(window2, word, accessAtomic)
	ls[0].req.post(ls[0].req.via(ls[0].req.fetchAddWR(word[0], 3), word[0], key))
	ls[0].settle()
	ls[0].refuse(ls[0].req.writeVia(8, word[0], key)) // no right

	r = ls[1].resp
	_, key, err := r.end.Window(window2)
	must(err)
	piece := r.take(100)
	ls[1].refuse(ls[1].req.writeVia(1, piece[0], key)) // not bound, the window's first key

	// A window belongs to the queue pair that bound it.
	r = ls[2].resp
	_, key = r.window(window2, piece, accessReadWrite)
	ls[2].use(piece, key)
	w := ls[2].req.writeVia(10, piece[0], key)
	w.QP = 1
	ls[2].req.hand([]sendWR{w})
	ls[2].req.want = append(ls[2].req.want, completion{ID: ls[2].req.lastID, Status: statusRemAccess, QPN: ls[2].req.id.QPNs[1]})
	ls[2].settle()
	ls[2].use(piece, key)

	outside(ls[3], window2)
}

// caseSendInv has the requester withdraw the key that it used, with its last message.
func caseSendInv(l *link) {
	q, r := l.req, l.resp
	piece, other := r.take(2500), r.take(40)
	_, key := r.window(window2, piece, accessReadWrite)
	_, stays := r.window(window2, other, accessReadWrite)
	l.use(piece, key)
	r.recv(r.take(2000))
	r.recv(r.take(0))
	inv := q.signaled(opSendInv, q.take(1500))
	inv.Inv = key
	q.post(q.writeVia(100, piece[0], key), inv, q.sendWR())
	l.settle()
	l.use(other, stays)
	l.refuse(q.writeVia(1, piece[0], key))
}

// caseLocalInv has the responder withdraw it.
func caseLocalInv(l *link) {
	q, r := l.req, l.resp
	piece := r.take(2500)
	_, key := r.window(window2, piece, accessReadWrite)
	l.use(piece, key)
	inv := r.signaled(opLocalInv)
	inv.Inv = key
	r.post(inv)
	l.settle()
	_, next := r.window(window2, piece, accessReadWrite)
	l.use(piece, next)
	l.refuse(q.readVia(1, piece[0], key))
}

// caseRereg takes rights from a region and gives them back: the keys that the end names afterwards are good, those from before
// only where they are the same.
func caseRereg(ls []*link) {
	for i, l := range ls {
		q, r := l.req, l.resp
		piece, before := r.take(500), r.id.RKey
		l.use(piece, before)
		key, err := r.end.Rereg(accessLocal | accessRead)
		must(err)
		q.post(q.readVia(500, piece[0], key))
		l.settle()
		if i == 0 {
			l.refuse(q.writeVia(1, piece[0], key))
			continue
		}
		key, err = r.end.Rereg(accessAll)
		must(err)
		l.use(piece, key)
		if key != before {
			l.refuse(q.readVia(1, piece[0], before))
		}
	}
}

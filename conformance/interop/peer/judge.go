package main

import "bytes"

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
	due := len(s.want)
	for _, ds := range s.due {
		due += len(ds)
	}
	for len(got) < due {
		more, err := s.end.Poll(due-len(got), s.l.patience)
		must(err)
		if len(more) == 0 {
			break
		}
		got = append(got, more...)
	}
	if s.isRxe() {
		invFlagOfRxe(got)
	}
	requests, receives := split(s.want)
	gotRequests, gotReceives := split(got)
	for _, qpn := range s.id.QPNs { // there is no order between queue pairs
		s.compare("request", s.of(qpn, gotRequests), s.of(qpn, requests))
	}
	s.want = nil
	if s.shared {
		s.compareShared(gotReceives)
		return
	}
	s.compare("receive", gotReceives, receives)
}

// of are the completions of a queue pair; one that names none is the first's.
func (s *side) of(qpn uint32, cs []completion) (its []completion) {
	for _, c := range cs {
		if c.QPN == qpn || c.QPN == 0 && qpn == s.id.QPNs[0] {
			its = append(its, c)
		}
	}
	return its
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
		if w.QPN == 0 {
			w.QPN = s.id.QPNs[0]
		}
		if !w.matches(got[i]) {
			failf("%s: %s completion %d is %v (qpn %#x, flags %#x), want %v", s.name, what, i+1, got[i], got[i].QPN, got[i].Flags, w)
		}
	}
	if len(got) > len(want) {
		failf("%s: %s completion %v was not due", s.name, what, got[len(want)])
	}
}

// invFlagOfRxe: rxe tells that a key was invalidated by the kernel's own number for it, which is another flag in the verbs API.
func invFlagOfRxe(cs []completion) {
	const ofKernel = 4
	for i := range cs {
		if cs[i].Flags&ofKernel != 0 {
			cs[i].Flags ^= ofKernel | wcFlagInv
		}
	}
}

// matches compares what the verbs manual defines: of a failure only id, status and QPN; of receives the length, the immediate
// or the key that was invalidated, and of datagrams the sender.
func (c completion) matches(got completion) bool {
	if got.ID != c.ID || got.Status != c.Status || got.QPN != c.QPN {
		return false
	}
	if c.Status != statusSuccess {
		return true
	}
	if got.Op != c.Op || c.Op < wcRecv {
		return got.Op == c.Op
	}
	const told = wcFlagImm | wcFlagInv
	switch {
	case got.Len != c.Len || got.Flags&told != c.Flags&told:
		return false
	case c.Flags&wcFlagImm != 0 && got.Imm != c.Imm || c.Flags&wcFlagInv != 0 && got.Inv != c.Inv:
		return false
	}
	return c.Flags&wcFlagGRH == 0 || got.Flags&wcFlagGRH != 0 && got.SrcQP == c.SrcQP
}

func (s *side) compareMemory() {
	got, err := s.end.ReadMem(0, len(s.mem))
	must(err)
	s.judgeHeaders(got)
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

package rdmanet

import "github.com/softroce/softroce/pkg/verbs"

// staging is a ring of memory that data is sent from: filled bytes were sent in
// all, of which the first done ones are free again. It is guarded by the
// connection's mu; the bytes of next belong to who fills them.
type staging struct {
	mr           *verbs.MR
	filled, done uint64
}

// free is how many bytes next has.
func (s *staging) free() uint64 {
	size := uint64(s.mr.Len())
	return min(size-(s.filled-s.done), size-s.filled%size, chunk)
}

// next is where the next bytes go.
func (s *staging) next() []byte {
	at := s.filled % uint64(s.mr.Len())
	return s.mr.Bytes()[at : at+s.free()]
}

// put takes the next n bytes, to be sent.
func (s *staging) put(n int) verbs.SGE {
	at := s.filled % uint64(s.mr.Len())
	s.filled += uint64(n)
	return s.mr.SGE(int(at), n)
}

// loans are memory of a connection's in the hands of a reader or writer of the
// program's, who may be slow. Close does not wait for them: who gives back last
// frees the memory. They are guarded by the connection's mu.
type loans struct {
	e            *Endpoint
	direct, recv bool // ReadFrom's, and what WriteTo writes
	closed       bool
}

// end frees the memory of a connection that is closed, or leaves it to who has some
// of it.
func (l *loans) end() error {
	l.closed = true
	return l.free()
}

func (l *loans) free() error {
	if !l.closed || l.direct || l.recv {
		return nil
	}
	return l.e.freeMemory()
}

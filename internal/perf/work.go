package perf

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/softroce/softroce/pkg/verbs"
)

// ErrData says that bytes arrived which were not sent.
var ErrData = errors.New("the data that arrived is not what was sent")

// Marks of requests: what it is, the queue pair, and for a send how many
// requests its completion stands for, for a receive its target area.
const (
	recvMark  = 1 << 63
	qpShift   = 32
	qpMask    = 0xFFFF
	countMask = 0xFFFFFFFF
)

func mark(qp int, v int) uint64 { return uint64(qp)<<qpShift | uint64(v) }

func unmark(id uint64) (qp, v int) { return int(id >> qpShift & qpMask), int(id & countMask) }

// postRecv posts a receive into a target area.
func (s *session) postRecv(qp, slot int) error {
	_, err := s.qps[qp].PostRecv(verbs.RecvWR{
		WRID: recvMark | mark(qp, slot), SGList: []verbs.SGE{s.mr.SGE(s.lay.target(qp, slot), int(s.lay.stride))},
	})
	return err
}

// request is the request of one operation; the caller adds mark and signal.
func (s *session) request(qp, size int) verbs.SendWR {
	wr := verbs.SendWR{
		SGList:     []verbs.SGE{s.mr.SGE(s.lay.local(qp), size)},
		RemoteAddr: s.peer.Addr + uint64(s.lay.target(qp, 0)), RKey: verbs.RKey(s.peer.RKey),
	}
	switch s.p.Op {
	case Write:
		wr.Opcode = verbs.WRRDMAWrite
		if s.p.Imm {
			wr.Opcode = verbs.WRRDMAWriteWithImm
		}
	case Read:
		wr.Opcode = verbs.WRRDMARead
	case Send:
		wr.Opcode, wr.RemoteAddr, wr.RKey = verbs.WRSend, 0, 0
	case Atomic:
		wr.Opcode, wr.CompareAdd = verbs.WRAtomicFetchAdd, 1
		if s.p.CompareSwap {
			wr.Opcode = verbs.WRAtomicCmpAndSwp
		}
	}
	if s.p.Op.inlines() && size <= s.p.Inline {
		wr.Flags |= verbs.SendInline
	}
	return wr
}

// number makes request n of its queue pair out of the common one: each
// compare-and-swap counts the cell on.
func (s *session) number(wr *verbs.SendWR, n int64) {
	if wr.Opcode == verbs.WRAtomicCmpAndSwp {
		wr.CompareAdd, wr.Swap = uint64(n), uint64(n)+1
	}
}

// wait returns with completions. It polls, or sleeps until an event. It ends
// with ctx's cause.
func (s *session) wait(ctx context.Context, wcs []verbs.WC) (int, error) {
	for polls := 1; ; polls++ {
		n, err := s.cq.Poll(wcs)
		if err != nil {
			return 0, err
		}
		if n > 0 {
			return n, good(wcs[:n])
		}
		switch {
		case s.ch != nil && polls%2 == 1: // arm, then poll once more
			if err := s.cq.ReqNotify(false); err != nil {
				return 0, err
			}
		case s.ch != nil:
			if _, err := s.ch.Get(ctx); err != nil {
				if ctx.Err() != nil {
					err = context.Cause(ctx)
				}
				return 0, err
			}
			s.cq.AckEvents(1)
		case polls%64 == 0 && ctx.Err() != nil:
			return 0, context.Cause(ctx)
		}
	}
}

// ErrCompletion is wrapped by the error of a completion that was no success.
var ErrCompletion = errors.New("failed")

// good fails on the first completion that is not a success.
func good(wcs []verbs.WC) error {
	for i := range wcs {
		if st := wcs[i].Status; st != verbs.WCSuccess {
			what := "request"
			if wcs[i].WRID&recvMark != 0 {
				what = "receive"
			}
			qp, _ := unmark(wcs[i].WRID)
			return fmt.Errorf("%s on queue pair %d %w: %v: %s", what, qp, ErrCompletion, st, st.Explain())
		}
	}
	return nil
}

// received looks at a completed receive, and posts its area again.
func (s *session) received(wc *verbs.WC, size int, index byte) error {
	qp, slot := unmark(wc.WRID)
	if int(wc.ByteLen) != size {
		return fmt.Errorf("%w: a message of %d bytes came, not %d", ErrData, wc.ByteLen, size)
	}
	if s.p.Check && s.p.Op == Send {
		b := s.mr.Bytes()[s.lay.target(qp, slot):][:size]
		if err := compare(b, seed(qp, index), "a message"); err != nil {
			return err
		}
		clear(b)
	}
	return s.postRecv(qp, slot)
}

// seed tells the data of queue pairs and sizes apart.
func seed(qp int, index byte) byte { return byte(qp) + index*31 + 1 }

// fill writes the data of a seed.
func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i*7+i>>8) + seed
	}
}

var patterns = sync.Pool{New: func() any { return new([]byte) }}

// compare fails at the first byte that is not of the seed's data.
func compare(b []byte, seed byte, what string) error {
	p, _ := patterns.Get().(*[]byte)
	defer patterns.Put(p)
	if cap(*p) < len(b) {
		*p = make([]byte, len(b))
	}
	want := (*p)[:len(b)]
	fill(want, seed)
	if bytes.Equal(b, want) {
		return nil
	}
	for i := range b {
		if b[i] != want[i] {
			return fmt.Errorf("%w: byte %d of %d of %s is %#02x, not %#02x", ErrData, i, len(b), what, b[i], want[i])
		}
	}
	return nil
}

// prepare writes the data of a size, and clears where data will come.
func (s *session) prepare(index int) {
	size := s.p.Sizes[index]
	s.index = byte(index)
	for q := range s.qps {
		local := s.mr.Bytes()[s.lay.local(q):][:size]
		target := s.mr.Bytes()[s.lay.target(q, 0):][:size]
		switch {
		case s.p.Op == Atomic: // cells count from zero
			clear(target)
		case s.p.Op == Write && s.p.Latency:
			fill(local, seed(q, byte(index)))
			clear(target) // the peer counts from 1, in the last byte
		case !s.p.Check:
		case s.p.Op == Read:
			clear(local)
			fill(target, seed(q, byte(index)))
		default:
			fill(local, seed(q, byte(index)))
			if s.p.Op != Send {
				clear(target)
			}
		}
	}
}

// verify compares, after a size was measured, the data that no completion
// showed: what was written into the memory of the server, read into that of
// the client, and counted in the cells of atomics.
func (s *session) verify(index int, counts []int64) error {
	if !s.p.Check {
		return nil
	}
	size := s.p.Sizes[index]
	for q := range s.qps {
		local := s.mr.Bytes()[s.lay.local(q):][:size]
		target := s.mr.Bytes()[s.lay.target(q, 0):][:size]
		var err error
		switch {
		case s.p.Op == Read && !s.server():
			err = compare(local, seed(q, byte(index)), "what was read")
		case s.p.polled():
			err = compare(target[:size-1], seed(q, byte(index)), "what was written")
		case s.p.Op == Write && (s.server() || s.p.Latency):
			err = compare(target, seed(q, byte(index)), "what was written")
		case s.p.Op == Atomic && s.server():
			if n := binary.NativeEndian.Uint64(target); n != uint64(counts[q]) {
				err = fmt.Errorf("%w: the cell of queue pair %d is %d after %d operations", ErrData, q, n, counts[q])
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

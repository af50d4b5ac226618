package transport

import (
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/wq"
)

// copySegment fills dst from off bytes into a segment, which key and addr name,
// and continues the CRC over the copy.
func (q *QP) copySegment(key uint32, addr uint64, seg *mrtable.Segment, off uint64, dst []byte, reg *register) error {
	if b := seg.Bytes(off, uint64(len(dst))); b != nil {
		reg.copy(dst, b)
		return nil
	}
	var err error
	if q.cfg.Stage != nil && !q.path.Near {
		err = q.cfg.Stage.read(key, addr, seg, off, dst)
	} else {
		err = seg.ReadAt(dst, off)
	}
	if err != nil {
		return err
	}
	reg.add(dst)
	return nil
}

// remote checks a range that the peer names.
func (q *QP) remote(rkey uint32, va, n uint64, need mrtable.Access) (mrtable.Segment, error) {
	seg, err := q.cfg.Keys.Remote(mrtable.RKey(rkey), q.cfg.PD, uint32(q.cfg.QPN), va, n, need)
	if err != nil {
		q.doubtful(rkey, va, n, need, err)
	}
	return seg, err
}

// invalidateFor closes a key because the peer's SEND with Invalidate asks for it:
// behind the message's data, before its completion (IBTA Vol 1 §9.4.1.1.3). A
// duplicate of the packet does nothing.
func (q *QP) invalidateFor(rkey uint32) error {
	return q.cfg.Keys.InvalidateRemote(mrtable.RKey(rkey), q.cfg.PD, uint32(q.cfg.QPN))
}

// store writes data at off bytes into a segment; the end of a message with its
// last bytes last, since programs poll on them.
func store(seg *mrtable.Segment, off uint64, data []byte, end bool) error {
	if end {
		return seg.WriteTailLast(data, off)
	}
	return seg.WriteAt(data, off)
}

// scatter stores data at offset off of a list of buffers, each checked as a
// whole. end: data ends its message. The error is a local protection error.
func (q *QP) scatter(list []wq.SGE, off uint64, data []byte, end bool) error {
	for i := range list {
		s := &list[i]
		if off >= uint64(s.Length) {
			off -= uint64(s.Length)
			continue
		}
		if len(data) == 0 {
			return nil
		}
		seg, err := q.cfg.Keys.Local(s.LKey, q.cfg.PD, s.Addr, uint64(s.Length), mrtable.AccessLocalWrite)
		if err != nil {
			q.doubtful(uint32(s.LKey), s.Addr, uint64(s.Length), mrtable.AccessLocalWrite, err)
			return err
		}
		n := min(uint64(len(data)), uint64(s.Length)-off)
		if err := store(&seg, off, data[:n], end && n == uint64(len(data))); err != nil {
			q.doubtful(uint32(s.LKey), s.Addr, uint64(s.Length), mrtable.AccessLocalWrite, err)
			return err
		}
		data, off = data[n:], 0
	}
	if len(data) > 0 {
		q.past().because(WhyShortList)
		return mrtable.ErrBounds
	}
	return nil
}

// checkWritable says whether all buffers of a list may be written: before a
// READ or an atomic is asked for, whose answer could not be stored.
func (q *QP) checkWritable(list []wq.SGE) error {
	for i := range list {
		s := &list[i]
		if _, err := q.cfg.Keys.Local(s.LKey, q.cfg.PD, s.Addr, uint64(s.Length), mrtable.AccessLocalWrite); err != nil {
			q.doubtful(uint32(s.LKey), s.Addr, uint64(s.Length), mrtable.AccessLocalWrite, err)
			return err
		}
	}
	return nil
}

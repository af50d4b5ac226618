package capture

import (
	"bytes"
	"encoding/binary"
	"sync"
)

// Queue is a capture on its way to a reader that may be slow: whole pcapng blocks,
// as many as fit. Whoever puts packets in never waits; what does not fit is lost,
// counted, and noted in the next packet's comment. Methods may be called from
// several goroutines.
type Queue struct {
	mu    sync.Mutex
	limit int
	buf   []byte // not taken yet
	note  []byte // scratch for one comment
	fresh uint64 // lost since the last packet that was put
	stats QueueStats
	ended bool
	wake  chan struct{}
}

// QueueStats count the packets of a Queue.
type QueueStats struct{ Written, Lost uint64 }

// NewQueue makes a queue of about limit bytes that begins with the head of a
// file. name is the interface's name in it.
func NewQueue(name string, limit int, opts WriterOptions) (*Queue, error) {
	var head bytes.Buffer
	w, err := NewWriter(&head, name, opts)
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		return nil, err
	}
	q := &Queue{limit: limit, buf: head.Bytes(), wake: make(chan struct{}, 1)}
	q.signal()
	return q, nil
}

// Put adds a packet with its note. A packet that cannot be written as one is
// passed over, as WritePacket does.
func (q *Queue) Put(p Packet, n Note) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended || p.normalise() != nil {
		return
	}
	if len(q.buf) > q.limit {
		q.fresh++
		q.stats.Lost++
		return
	}
	n.Lost = q.fresh
	q.note = p.complete(n.Append(q.note[:0]))
	empty := len(q.buf) == 0
	q.buf = appendPacketBlock(q.buf, &p, q.note)
	q.fresh = 0
	q.stats.Written++
	if empty {
		q.signal()
	}
}

// Wake gets a value when Take may have something anew.
func (q *Queue) Wake() <-chan struct{} { return q.wake }

func (q *Queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Take hands over what there is and goes on in the memory of spare. ended says
// that nothing will come after it.
func (q *Queue) Take(spare []byte) (blocks []byte, ended bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	blocks, q.buf = q.buf, spare[:0]
	return blocks, q.ended
}

// Stats returns what was counted so far.
func (q *Queue) Stats() QueueStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.stats
}

// End ends the capture: the last block says how many packets were written and
// lost.
func (q *Queue) End() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return
	}
	q.ended = true
	q.buf = appendStatistics(q.buf, q.stats)
	q.signal()
}

// pcapng numbers of an interface statistics block (draft-ietf-opsawg-pcapng §4.6).
const (
	blockStatistics = 5
	optReceived     = 4
	optIfDropped    = 5
)

// appendStatistics appends an interface statistics block. Its time is 0: whoever
// ends a capture has no clock here.
func appendStatistics(b []byte, s QueueStats) []byte {
	le := binary.LittleEndian
	start := len(b)
	b = le.AppendUint32(b, blockStatistics)
	b = le.AppendUint32(b, 0)
	b = append(b, make([]byte, 12)...) // interface 0, time
	for _, o := range []struct {
		code uint16
		v    uint64
	}{{optReceived, s.Written + s.Lost}, {optIfDropped, s.Lost}} {
		b = le.AppendUint16(b, o.code)
		b = le.AppendUint16(b, 8)
		b = le.AppendUint64(b, o.v)
	}
	b = le.AppendUint32(b, optEnd)
	total := uint32(len(b) - start + 4)
	b = le.AppendUint32(b, total)
	le.PutUint32(b[start+4:], total)
	return b
}

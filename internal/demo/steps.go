package demo

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// patience is how long a step may wait for a completion.
const patience = 10 * time.Second

// errData says that bytes arrived which were not sent.
var errData = errors.New("the data that arrived is not what was sent")

// The steps, in order. Each fills its row.
var steps = []struct {
	verb, what string
	run        func(ctx context.Context, a, b *side, row *Row) error
}{
	{"SEND", "a message into a posted receive", stepSend},
	{"SEND_WITH_IMM", "the same, with 4 bytes of immediate data", stepSendImm},
	{"SEND inline", "48 bytes copied at post time", stepInline},
	{"RDMA_WRITE", "100,000 bytes in 25 packets at 4096, to an odd address", stepWrite},
	{"RDMA_WRITE_WITH_IMM", "a write that wakes the peer's receive", stepWriteImm},
	{"RDMA_READ", "100,000 bytes out of the peer's memory", stepRead},
	{"ATOMIC_CMP_AND_SWP", "8 bytes, compared and swapped", stepCompareSwap},
	{"ATOMIC_FETCH_AND_ADD", "1,000 times 1 to a counter", stepFetchAdd},
	{"RDMA_WRITE stream", "1 MiB writes, 16 in flight", stepStream},
	{"SEND ping-pong", "8 bytes there and back", stepPingPong},
}

// fill writes a pattern that differs by seed.
func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i*7+i>>8) + seed
	}
}

// wait takes one completion of s, and fails when it is not a success.
func (s *side) wait(ctx context.Context, each func(*verbs.WC)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var wcs [1]verbs.WC
	for polls := 1; ; polls++ {
		n, err := s.cq.Poll(wcs[:])
		switch {
		case err != nil:
			return err
		case n == 0 && polls&0xFF == 0 && ctx.Err() != nil:
			return fmt.Errorf("a completion is missing: %w", ctx.Err())
		case n == 0:
			continue
		case wcs[0].Status != verbs.WCSuccess:
			return fmt.Errorf("completion %d: %v: %s", wcs[0].WRID, wcs[0].Status, wcs[0].Status.Explain())
		}
		if each != nil {
			each(&wcs[0])
		}
		return nil
	}
}

func (s *side) post(wr verbs.SendWR) error {
	wr.Flags |= verbs.SendSignaled
	_, err := s.qp.PostSend(wr)
	return err
}

func (s *side) recv(off, n int) error {
	_, err := s.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{s.mr.SGE(off, n)}})
	return err
}

// both waits for one completion on each side.
func both(ctx context.Context, a, b *side, atB func(*verbs.WC)) error {
	if err := a.wait(ctx, nil); err != nil {
		return err
	}
	return b.wait(ctx, atB)
}

func message(ctx context.Context, a, b *side, wr verbs.SendWR, n int, row *Row) error {
	src, dst := a.mr.Bytes()[:n], b.mr.Bytes()[4096:4096+n]
	fill(src, 3)
	clear(dst)
	if err := b.recv(4096, n); err != nil {
		return err
	}
	wr.SGList = []verbs.SGE{a.mr.SGE(0, n/2), a.mr.SGE(n/2, n-n/2)}
	if err := a.post(wr); err != nil {
		return err
	}
	imm := uint32(0)
	if err := both(ctx, a, b, func(wc *verbs.WC) { imm = wc.ImmData }); err != nil {
		return err
	}
	if !bytes.Equal(src, dst) || imm != wr.ImmData {
		return errData
	}
	row.Bytes, row.Count, row.Checked = n, 1, true
	return nil
}

func stepSend(ctx context.Context, a, b *side, row *Row) error {
	return message(ctx, a, b, verbs.SendWR{Opcode: verbs.WRSend}, 10001, row)
}

func stepSendImm(ctx context.Context, a, b *side, row *Row) error {
	return message(ctx, a, b, verbs.SendWR{Opcode: verbs.WRSendWithImm, ImmData: 0xCAFED00D}, 5000, row)
}

func stepInline(ctx context.Context, a, b *side, row *Row) error {
	data := make([]byte, 48)
	fill(data, 9)
	if err := b.recv(0, len(data)); err != nil {
		return err
	}
	if err := a.post(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendInline, Inline: data}); err != nil {
		return err
	}
	want := bytes.Clone(data)
	clear(data) // ours again as soon as it is posted
	if err := both(ctx, a, b, nil); err != nil {
		return err
	}
	if !bytes.Equal(want, b.mr.Bytes()[:len(data)]) {
		return errData
	}
	row.Bytes, row.Count, row.Checked = len(data), 1, true
	return nil
}

const bulk = 100_000

func stepWrite(ctx context.Context, a, b *side, row *Row) error {
	src, dst := a.mr.Bytes()[:bulk], b.mr.Bytes()[1:1+bulk]
	fill(src, 21)
	clear(dst)
	err := a.post(verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{a.mr.SGE(0, bulk)}, RemoteAddr: b.mr.Addr() + 1, RKey: b.mr.RKey(),
	})
	if err != nil {
		return err
	}
	if err := a.wait(ctx, nil); err != nil {
		return err
	}
	if !bytes.Equal(src, dst) {
		return errData
	}
	row.Bytes, row.Count, row.Checked = bulk, 1, true
	return nil
}

func stepWriteImm(ctx context.Context, a, b *side, row *Row) error {
	const n = 3000
	src, dst := a.mr.Bytes()[:n], b.mr.Bytes()[:n]
	fill(src, 77)
	clear(dst)
	if _, err := b.qp.PostRecv(verbs.RecvWR{}); err != nil {
		return err
	}
	err := a.post(verbs.SendWR{
		Opcode: verbs.WRRDMAWriteWithImm, SGList: []verbs.SGE{a.mr.SGE(0, n)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(), ImmData: 42,
	})
	if err != nil {
		return err
	}
	ok := false
	if err := both(ctx, a, b, func(wc *verbs.WC) { ok = wc.ImmData == 42 && wc.ByteLen == n }); err != nil {
		return err
	}
	if !ok || !bytes.Equal(src, dst) {
		return errData
	}
	row.Bytes, row.Count, row.Checked = n, 1, true
	return nil
}

func stepRead(ctx context.Context, a, b *side, row *Row) error {
	src, dst := b.mr.Bytes()[:bulk], a.mr.Bytes()[3:3+bulk]
	fill(src, 99)
	clear(dst)
	err := a.post(verbs.SendWR{
		Opcode: verbs.WRRDMARead, SGList: []verbs.SGE{a.mr.SGE(3, bulk)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	})
	if err != nil {
		return err
	}
	if err := a.wait(ctx, nil); err != nil {
		return err
	}
	if !bytes.Equal(src, dst) {
		return errData
	}
	row.Bytes, row.Count, row.Checked = bulk, 1, true
	return nil
}

// Cells of atomics are in the host's byte order.
func stepCompareSwap(ctx context.Context, a, b *side, row *Row) error {
	cell, old := b.mr.Bytes()[:8], a.mr.Bytes()[:8]
	binary.NativeEndian.PutUint64(cell, 1234)
	err := a.post(verbs.SendWR{
		Opcode: verbs.WRAtomicCmpAndSwp, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
		CompareAdd: 1234, Swap: 5678,
	})
	if err != nil {
		return err
	}
	if err := a.wait(ctx, nil); err != nil {
		return err
	}
	if binary.NativeEndian.Uint64(cell) != 5678 || binary.NativeEndian.Uint64(old) != 1234 {
		return errData
	}
	row.Bytes, row.Count, row.Checked = 8, 1, true
	return nil
}

func stepFetchAdd(ctx context.Context, a, b *side, row *Row) error {
	const n = 1000
	cell, old := b.mr.Bytes()[:8], a.mr.Bytes()[:8]
	binary.NativeEndian.PutUint64(cell, 41)
	err := a.stream(ctx, n, 16, func(int) verbs.SendWR {
		return verbs.SendWR{
			Opcode: verbs.WRAtomicFetchAdd, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(), CompareAdd: 1,
		}
	})
	if err != nil {
		return err
	}
	if binary.NativeEndian.Uint64(cell) != 41+n || binary.NativeEndian.Uint64(old) != 40+n {
		return errData
	}
	row.Bytes, row.Count, row.Checked = 8*n, n, true
	return nil
}

// stream posts n requests and keeps depth of them in flight.
func (s *side) stream(ctx context.Context, n, depth int, wr func(i int) verbs.SendWR) error {
	posted := 0
	for done := 0; done < n; done++ {
		for posted < n && posted-done < depth {
			if err := s.post(wr(posted)); err != nil {
				return err
			}
			posted++
		}
		if err := s.wait(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

func stepStream(ctx context.Context, a, b *side, row *Row) error {
	const n, size = 64, 1 << 20
	fill(a.mr.Bytes(), 5)
	clear(b.mr.Bytes())
	t := time.Now()
	err := a.stream(ctx, n, 16, func(i int) verbs.SendWR {
		off := i % (regionSize / size) * size
		return verbs.SendWR{
			Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{a.mr.SGE(off, size)}, RemoteAddr: b.mr.Addr() + uint64(off), RKey: b.mr.RKey(),
		}
	})
	row.Elapsed = time.Since(t)
	if err != nil {
		return err
	}
	if !bytes.Equal(a.mr.Bytes(), b.mr.Bytes()) {
		return errData
	}
	row.Bytes, row.Count, row.Checked = n*size, n, true
	return nil
}

func stepPingPong(ctx context.Context, a, b *side, row *Row) error {
	const n, size = 1000, 8
	t := time.Now()
	for i := range n {
		for _, x := range [][2]*side{{a, b}, {b, a}} {
			from, to := x[0], x[1]
			// Not a plain counter: packet analysers take a payload that begins like
			// an Ethernet type for one.
			ball := uint64(i)<<32 | 0x5AFECAFE
			binary.NativeEndian.PutUint64(from.mr.Bytes(), ball)
			if err := to.recv(64, size); err != nil {
				return err
			}
			if err := from.post(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{from.mr.SGE(0, size)}}); err != nil {
				return err
			}
			if err := both(ctx, to, from, nil); err != nil {
				return err
			}
			if binary.NativeEndian.Uint64(to.mr.Bytes()[64:]) != ball {
				return errData
			}
		}
	}
	row.Elapsed = time.Since(t)
	row.Bytes, row.Count, row.Checked = 2*n*size, n, true
	return nil
}

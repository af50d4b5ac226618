package transport

import (
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/wq"
)

// rocePort is RoCEv2's UDP destination port (Annex A17).
const rocePort = 4791

// seedCache remembers the CRC register after the IP and UDP headers of a few
// packet lengths; on one path nothing else in them changes.
type seedCache [4]struct {
	length int
	seed   uint32
}

// seed is the CRC register after the headers below the BTH, for a UDP payload
// of length bytes.
func (q *QP) seed(length int) uint32 {
	c := &q.seeds[length>>2&3]
	if c.length != length {
		h := bth.NetHeader{Src: q.path.Src, Dst: q.path.Dst, SrcPort: q.path.SrcPort, DstPort: rocePort}
		c.length, c.seed = length, h.Seed(length)
	}
	return c.seed
}

// header appends a BTH to the peer. M is 1: a queue pair that never migrates
// is in state MIGRATED (IBTA Vol 1 §17.2.8).
func (q *QP) header(b []byte, op bth.Opcode, psn bth.PSN, payload int, ackReq, solicited bool) []byte {
	f := bth.BTHFields{
		Opcode: op, Solicited: solicited, MigReq: true, Pad: bth.PadLen(payload),
		PKey: bth.DefaultPKey, DestQP: q.attr.DestQPN, AckReq: ackReq, PSN: psn,
	}
	return f.Append(b)
}

// body starts the CRC of a packet whose headers are hdr: it returns the place
// of the payload behind them and the register.
func (q *QP) body(hdr []byte, payload int) (place []byte, state uint32) {
	n := len(hdr) + payload
	length := n + int(bth.PadLen(payload)) + bth.ICRCLen
	return hdr[len(hdr):n], bth.HeaderState(q.seed(length), hdr)
}

// seal pads and closes a packet of n bytes in buf, state being the register
// over them, and returns its length and ICRC.
func seal(buf []byte, n, payload int, state uint32) (int, uint32) {
	if pad := int(bth.PadLen(payload)); pad > 0 {
		p := buf[n : n+pad]
		clear(p)
		state = bth.UpdateCRC(state, p)
		n += pad
	}
	icrc := bth.FinishICRC(state)
	bth.PutICRC(buf[n:n+bth.ICRCLen], icrc)
	return n + bth.ICRCLen, icrc
}

// gather copies a part of a request's payload, from off on, into dst and
// continues the CRC over the copy: memory is read once, so that the two agree
// even while the program changes it. The error is a local protection error.
func (q *QP) gather(e *wq.WQE, off uint64, dst []byte, state uint32) (uint32, error) {
	if e.Flags&wq.SendInline != 0 {
		return bth.CopyICRC(state, dst, e.Inline[off:]), nil
	}
	for i := range e.SGList {
		s := &e.SGList[i]
		if off >= uint64(s.Length) {
			off -= uint64(s.Length)
			continue
		}
		if len(dst) == 0 {
			break
		}
		seg, err := q.cfg.Keys.Local(s.LKey, q.cfg.PD, s.Addr, uint64(s.Length), 0)
		if err != nil {
			return 0, err
		}
		n := min(uint64(len(dst)), uint64(s.Length)-off)
		if state, err = copySegment(&seg, off, dst[:n], state); err != nil {
			return 0, err
		}
		dst, off = dst[n:], 0
	}
	return state, nil
}

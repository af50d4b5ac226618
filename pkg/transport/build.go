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

// OmitICRC says that packets built from now on need no ICRC (omit), or do: it
// is then 0, and the payload is only copied. It is for packets that never leave
// the process: HandlePacket looks at no ICRC. Modify with a path sets it anew,
// to the path's NoICRC.
func (q *QP) OmitICRC(omit bool) { q.path.NoICRC = omit }

// immDt is immediate data as it stands on the wire.
func immDt(v uint32) bth.ImmDt { return bth.ImmDt{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)} }

// A register is the CRC over the part of a packet that was built. It is
// not kept when the path needs no ICRC.
type register struct {
	state uint32
	omit  bool
}

// copy copies src to dst, which is as long, and takes in what was copied.
func (r *register) copy(dst, src []byte) {
	if r.omit {
		copy(dst, src)
		return
	}
	r.state = bth.CopyICRC(r.state, dst, src)
}

// add takes in b.
func (r *register) add(b []byte) {
	if !r.omit {
		r.state = bth.UpdateCRC(r.state, b)
	}
}

// icrc is the packet's ICRC.
func (r *register) icrc() uint32 {
	if r.omit {
		return 0
	}
	return bth.FinishICRC(r.state)
}

// body starts the CRC of a packet whose headers are hdr: it returns the place
// of the payload behind them and the register.
func (q *QP) body(hdr []byte, payload int) (place []byte, reg register) {
	n := len(hdr) + payload
	if q.path.NoICRC {
		return hdr[len(hdr):n], register{omit: true}
	}
	length := n + int(bth.PadLen(payload)) + bth.ICRCLen
	return hdr[len(hdr):n], register{state: bth.HeaderState(q.seed(length), hdr)}
}

// seal pads and closes a packet of n bytes in buf, reg being the register
// over them, and returns its length and ICRC.
func seal(buf []byte, n, payload int, reg register) (int, uint32) {
	if pad := int(bth.PadLen(payload)); pad > 0 {
		p := buf[n : n+pad]
		clear(p)
		reg.add(p)
		n += pad
	}
	icrc := reg.icrc()
	bth.PutICRC(buf[n:n+bth.ICRCLen], icrc)
	return n + bth.ICRCLen, icrc
}

// gather copies a part of a request's payload, from off on, into dst and
// continues the CRC over the copy: memory is read once, so that the two agree
// even while the program changes it. The error is a local protection error.
func (q *QP) gather(e *wq.WQE, off uint64, dst []byte, reg *register) error {
	if e.Flags&wq.SendInline != 0 {
		reg.copy(dst, e.Inline[off:])
		return nil
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
			q.doubtful(uint32(s.LKey), s.Addr, uint64(s.Length), 0, err)
			return err
		}
		n := min(uint64(len(dst)), uint64(s.Length)-off)
		if err = q.copySegment(uint32(s.LKey), s.Addr+off, &seg, off, dst[:n], reg); err != nil {
			q.doubtful(uint32(s.LKey), s.Addr, uint64(s.Length), 0, err)
			return err
		}
		dst, off = dst[n:], 0
	}
	return nil
}

package scenario

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// commands are what a line may begin with, beside connect.
var commands = map[string]func(*script, []string) error{
	"in": (*script).in, "post": (*script).post, "recv": (*script).postRecv, "wait": (*script).wait,
	"modify": (*script).modify, "mem": (*script).showMem, "set": (*script).setMem, "mem64": (*script).showCell,
	"set64": (*script).setCell, "dereg": (*script).dereg, "window": (*script).allocWindow, "fast": (*script).allocFast, "poll": (*script).poll, "fatal": (*script).fatal,
}

// held parts the word "hold", behind which a command's effects stay in the queue
// pair until another command asks.
func held(fields []string) (bool, []string) {
	if len(fields) > 0 && fields[0] == "hold" {
		return true, fields[1:]
	}
	return false, fields
}

// in gives the queue pair a packet.
func (s *script) in(fields []string) error {
	hold, fields := held(fields)
	line := ""
	for _, f := range fields {
		line += f + " "
	}
	b, err := Peer{DestQP: s.e.qpn, Key: s.key}.Craft(line)
	if err != nil {
		return err
	}
	p := &transport.Packet{Src: peerGID, Dst: ownGID, TTL: 64}
	if err := p.Parse(b); err != nil {
		return err
	}
	s.say(s.e, "%v", s.e.qp.HandlePacket(s.now, p))
	if hold {
		return nil
	}
	return s.flush()
}

// operations are the words for what can be posted.
var operations = map[string]wq.Opcode{
	"send": wq.Send, "sendimm": wq.SendWithImm, "write": wq.RDMAWrite, "writeimm": wq.RDMAWriteWithImm,
	"read": wq.RDMARead, "fadd": wq.AtomicFetchAndAdd, "cas": wq.AtomicCmpAndSwp, "sendinv": wq.SendWithInv,
	"localinv": wq.LocalInv, "bind": wq.BindMW, "regmr": wq.RegMR,
}

// post posts a send request.
func (s *script) post(fields []string) error {
	hold, fields := held(fields)
	if len(fields) == 0 {
		return fmt.Errorf("no operation")
	}
	op, ok := operations[fields[0]]
	if !ok {
		return fmt.Errorf("no operation %q", fields[0])
	}
	w := parseWords(fields[1:])
	p := Peer{Key: s.key}
	wr := wq.SendWR{
		WRID: w.num("id", 0), Opcode: op, Flags: wq.SendSignaled, ImmData: uint32(w.num("imm", 0)),
		RemoteAddr: w.num("va", 0), RKey: mrtable.RKey(p.key(w, "key", "0")), InvalidateRKey: mrtable.RKey(p.key(w, "inv", "0")),
		CompareAdd: w.num("add", 0) + w.num("cmp", 0), Swap: w.num("swap", 0),
	}
	if w.flag("unsignaled") {
		wr.Flags = 0
	}
	if w.flag("se") {
		wr.Flags |= wq.SendSolicited
	}
	if w.flag("fence") {
		wr.Flags |= wq.SendFence
	}
	off, n := w.num("off", 0), w.num("len", 0)
	if op == wq.AtomicCmpAndSwp || op == wq.AtomicFetchAndAdd {
		n = 8
	}
	wr.SGList = s.sgl(w, off, n)
	if w.flag("inline") {
		if off+n > memSize {
			return fmt.Errorf("inline: beyond the memory")
		}
		wr.Flags |= wq.SendInline
		wr.Inline, wr.SGList = s.mem[off:off+n], nil
	}
	s.bind(&wr, w)
	s.address(&wr, w)
	if err := w.done(); err != nil {
		return err
	}
	if err := s.e.qp.PostSend(s.now, &wr); err != nil {
		s.say(s.e, "%v", err)
	}
	if hold {
		return nil
	}
	return s.flush()
}

// sgl is a list of one element of the scenario's memory, with the word lkey for
// another key.
func (s *script) sgl(w *words, off, n uint64) []wq.SGE {
	lkey := Peer{Key: s.key}.key(w, "lkey", "good")
	return []wq.SGE{{Addr: memBase + off, Length: uint32(n), LKey: mrtable.LKey(lkey)}}
}

// postRecv posts a receive.
func (s *script) postRecv(fields []string) error {
	w := parseWords(fields)
	wr := wq.RecvWR{WRID: w.num("id", 0), SGList: s.sgl(w, w.num("off", 0), w.num("len", 0))}
	if err := w.done(); err != nil {
		return err
	}
	if err := s.e.recv.Push(&wr); err != nil {
		return err
	}
	s.e.qp.PostRecv(s.now)
	return s.flush()
}

// modify moves the queue pair to a state.
func (s *script) modify(fields []string) error {
	if len(fields) == 0 {
		return fmt.Errorf("no state")
	}
	st, ok := states[fields[0]]
	if !ok {
		return fmt.Errorf("no state %q", fields[0])
	}
	w := parseWords(fields[1:])
	a, m := qpstate.Attr{State: st}, qpstate.MaskState
	if w.flag("notify") {
		a.EnSQDAsyncNotify = true
		m |= qpstate.MaskEnSQDAsyncNotify
	}
	if err := w.done(); err != nil {
		return err
	}
	if err := s.e.qp.Modify(s.now, &a, m, nil); err != nil {
		s.say(s.e, "%v", err)
	}
	return s.flush()
}

// wait lets time pass and serves the deadlines on the way.
func (s *script) wait(fields []string) error {
	if len(fields) != 1 {
		return fmt.Errorf("want a time")
	}
	d, err := time.ParseDuration(fields[0])
	if err != nil {
		return err
	}
	until := s.now.Add(d)
	for range 1000 {
		t := s.deadline()
		if t.IsZero() || t.After(until) {
			break
		}
		if err := s.passTo(t); err != nil {
			return err
		}
	}
	return s.passTo(until)
}

// deadline is the next of any queue pair.
func (s *script) deadline() (t time.Time) {
	for _, e := range s.endpoints {
		if d := e.qp.NextTimeout(); t.IsZero() || !d.IsZero() && d.Before(t) {
			t = d
		}
	}
	return t
}

func (s *script) passTo(t time.Time) error {
	s.now = t
	for _, e := range s.endpoints {
		e.qp.HandleTimeout(t)
	}
	return s.flush()
}

// numbers reads arguments that are plain numbers, the first an offset of a piece
// of memory with room for n bytes.
func numbers(fields []string, count int, room uint64) ([]uint64, error) {
	if len(fields) != count {
		return nil, fmt.Errorf("want %d numbers", count)
	}
	v := make([]uint64, count)
	for i, f := range fields {
		var err error
		if v[i], err = strconv.ParseUint(f, 0, 64); err != nil {
			return nil, err
		}
	}
	if v[0] > memSize-room {
		return nil, fmt.Errorf("offset %#x is beyond the memory", v[0])
	}
	return v, nil
}

func (s *script) showMem(fields []string) error {
	v, err := numbers(fields, 2, 0)
	if err != nil {
		return err
	}
	if v[1] > memSize-v[0] {
		return fmt.Errorf("%d bytes are beyond the memory", v[1])
	}
	s.say(s.e, "%x", []byte(s.mem[v[0]:v[0]+v[1]]))
	return nil
}

func (s *script) setMem(fields []string) error {
	v, err := numbers(fields, 2, 1)
	if err == nil {
		s.mem[v[0]] = byte(v[1])
	}
	return err
}

func (s *script) showCell(fields []string) error {
	v, err := numbers(fields, 1, 8)
	if err == nil {
		s.say(s.e, "%#x", binary.NativeEndian.Uint64(s.mem[v[0]:]))
	}
	return err
}

func (s *script) setCell(fields []string) error {
	v, err := numbers(fields, 2, 8)
	if err == nil {
		binary.NativeEndian.PutUint64(s.mem[v[0]:], v[1])
	}
	return err
}

func (s *script) poll([]string) error { return s.flush() }

func (s *script) fatal([]string) error {
	s.e.qp.Fatal(s.now)
	return s.flush()
}

// poll gives the next packet, nil when there is none. What every packet must be
// is checked here, not shown: the ICRC, the header's fixed fields, the pad.
func (e *endpoint) poll(now time.Time) ([]byte, error) {
	n, tx := e.qp.PollTransmit(now, e.buf[:])
	if n == 0 {
		return nil, nil
	}
	b := e.buf[:n]
	var p bth.Packet
	if err := p.Parse(b); err != nil {
		return nil, fmt.Errorf("sent a packet that does not parse: %w", err)
	}
	h := bth.NetHeader{Src: tx.Path.Src, Dst: tx.Path.Dst, SrcPort: tx.Path.SrcPort, DstPort: 4791}
	if want := bth.ICRC(h.Seed(n), p.Covered()); p.ICRC() != want || tx.ICRC != want {
		return nil, fmt.Errorf("sent %v with ICRC %#x, told %#x, want %#x", p.Opcode, p.ICRC(), tx.ICRC, want)
	}
	f := p.BTH().Fields()
	if !f.MigReq || f.PKey != bth.DefaultPKey || f.FECN || f.BECN || f.Resv6 != 0 || f.Resv7 != 0 || f.TVer != 0 || !p.Aligned() {
		return nil, fmt.Errorf("sent header fields %+v", f)
	}
	for _, c := range p.PadBytes() {
		if c != 0 {
			return nil, fmt.Errorf("sent pad %x", p.PadBytes())
		}
	}
	if tx.Opcode != p.Opcode || tx.PSN != f.PSN || e.typ != qpstate.UD && f.DestQP != e.peer {
		return nil, fmt.Errorf("told %v %v, built %v %v to %v", tx.Opcode, tx.PSN, p.Opcode, f.PSN, f.DestQP)
	}
	return b, nil
}

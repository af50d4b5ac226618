package cases

import (
	"bytes"
	"fmt"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

var requestCases = []suite.Case{
	{ID: "REQ-01", Run: requestSend},
	{ID: "REQ-02", Run: requestWrite},
	{ID: "REQ-03", Run: requestReadSend},
	{ID: "REQ-04", Run: requestNothing},
	{ID: "REQ-05", Run: requestSolicited},
	{ID: "REQ-06", Run: requestWriteSolicited},
	{ID: "REQ-07", Run: requestOneRead},
	{ID: "REQ-08", Run: requestBehindReads},
	{ID: "REQ-09", Run: requestFenced},
	{ID: "REQ-10", Run: requestUnfenced},
	{ID: "REQ-11", Run: requestWindow},
	{ID: "REQ-12", Run: requestInline},
	{ID: "REQ-13", Run: requestImmediate},
	{ID: "REQ-14", Run: requestTooEarly},
	{ID: "REQ-15", Run: requestTooManySGEs},
	{ID: "REQ-16", Run: requestNotOfType},
}

// requested takes packets with these opcodes and consecutive PSNs from the target.
func requested(p *suite.Peer, ops ...bth.Opcode) []*wire.Frame {
	out := make([]*wire.Frame, len(ops))
	for i, op := range ops {
		out[i] = p.Requested(op)
	}
	return out
}

// acked acknowledges n messages of the target, of which this is the last packet.
func acked(p *suite.Peer, last *wire.Frame, n int) {
	p.MSN += uint32(n)
	p.PutAck(last.RoCE.BTH().PSN())
}

// answered answers a READ request of the target with the data.
func answered(p *suite.Peer, read *wire.Frame, data []byte) {
	p.MSN++
	p.Put(p.Response(read.RoCE.BTH().PSN(), data)...)
}

// carried fails unless packets carry the data, each but the last a whole path MTU of it, and the last no more pad bytes than
// it takes.
func carried(p *suite.Peer, frames []*wire.Frame, data []byte) {
	t := p.T
	var got []byte
	for i, f := range frames {
		n, pad := len(f.RoCE.Payload), f.RoCE.Pad
		if last := i == len(frames)-1; !last && (n != p.MTU || pad != 0) || last && pad != -n&3 {
			t.Failed(fmt.Sprintf("packet %d of %d with a whole path MTU unless it is the last, and pad to a multiple of 4",
				i+1, len(frames)), fmt.Sprintf("%d bytes and %d pad bytes", n, pad))
		}
		got = append(got, f.RoCE.Payload...)
	}
	t.Same("the payload", data, got)
}

func requestSend(t *suite.T) {
	p := t.Connect(suite.Options{})
	data := t.Bytes(3*p.MTU + 1)
	p.Fill(0, data)
	p.PostSend(p.SendWR(1, "SEND", 0, len(data)))
	frames := requested(p, bth.RCSendFirst, bth.RCSendMiddle, bth.RCSendMiddle, bth.RCSendLast)
	carried(p, frames, data)
	if !frames[3].RoCE.BTH().AckReq() {
		t.Failed("AckReq in the last packet", suite.Describe(frames[3]))
	}
	acked(p, frames[3], 1)
	p.Sent(1)
}

func requestWrite(t *suite.T) {
	p := t.Connect(suite.Options{})
	data := t.Bytes(2 * p.MTU)
	p.Fill(0, data)
	wr := p.SendWR(1, "RDMA_WRITE", 0, len(data))
	p.PostSend(wr)
	frames := requested(p, bth.RCWriteFirst, bth.RCWriteLast)
	want := bth.RETHFields{VA: wr.Addr, RKey: wr.RKey, Length: uint32(len(data))}
	reth(t, frames[0], want)
	carried(p, frames, data) // by its opcode a Last has no RETH: one would be 16 bytes more of payload
	acked(p, frames[1], 1)
	p.Sent(1)
}

// reth fails unless a packet has this RETH.
func reth(t *suite.T, f *wire.Frame, want bth.RETHFields) {
	if got := f.RoCE.RETH().Fields(); got != want {
		t.Failed(fmt.Sprintf("a RETH with VA %#x, key %#x and length %d", want.VA, want.RKey, want.Length),
			suite.Describe(f))
	}
}

func requestReadSend(t *suite.T) {
	p := t.Connect(suite.Options{})
	n := 10 * p.MTU
	p.PostSend(p.SendWR(1, "RDMA_READ", 0, n), p.SendWR(2, "SEND", 0x8000, 16))
	read := p.Requested(bth.RCReadRequest)
	if got := int(read.RoCE.RETH().Length()); got != n {
		t.Failed(fmt.Sprintf("one READ request for %d bytes", n), suite.Describe(read))
	}
	data := t.Bytes(n)
	answered(p, read, data)
	acked(p, p.Requested(bth.RCSendOnly), 1)
	p.Sent(1)
	p.Sent(2)
	p.Holds(0, data)
}

func requestNothing(t *suite.T) {
	p := t.Connect(suite.Options{})
	p.PostSend(agent.SendWR{ID: 1, Op: "SEND", Flags: suite.Signaled})
	f := p.Requested(bth.RCSendOnly)
	if len(f.RoCE.Payload) != 0 || f.RoCE.Pad != 0 {
		t.Failed("no payload and no pad bytes", fmt.Sprintf("%s, %d pad bytes", suite.Describe(f), f.RoCE.Pad))
	}
	acked(p, f, 1)
	p.Sent(1)
}

// solicited posts a request of 3 path MTUs with SOLICITED and checks which of its packets have SE.
func solicited(p *suite.Peer, op string, want ...bool) {
	wr := p.SendWR(1, op, 0, len(want)*p.MTU)
	wr.Flags = []string{"SIGNALED", "SOLICITED"}
	p.PostSend(wr)
	first := bth.RCSendFirst
	if op == "RDMA_WRITE" {
		first = bth.RCWriteFirst
	}
	frames := requested(p, first, first+1, first+2)
	for i, f := range frames {
		if f.RoCE.BTH().Solicited() != want[i] {
			p.T.Failed(fmt.Sprintf("SE %v in packet %d of %d", want[i], i+1, len(frames)), suite.Describe(f))
		}
	}
	acked(p, frames[len(frames)-1], 1)
	p.Sent(1)
}

func requestSolicited(t *suite.T) {
	p := t.Connect(suite.Options{})
	solicited(p, "SEND", false, false, true)
	p.PostSend(p.SendWR(2, "SEND", 0, 16))
	f := p.Requested(bth.RCSendOnly)
	if f.RoCE.BTH().Solicited() {
		t.Failed("no SE in a SEND without SOLICITED", suite.Describe(f))
	}
	acked(p, f, 1)
	p.Sent(2)
}

func requestWriteSolicited(t *suite.T) {
	p := t.Connect(suite.Options{})
	solicited(p, "RDMA_WRITE", false, false, false)
	wr := p.SendWR(2, "RDMA_WRITE", 0, 16)
	wr.Flags = []string{"SIGNALED", "SOLICITED"}
	p.PostSend(wr)
	f := p.Requested(bth.RCWriteOnly)
	if f.RoCE.BTH().Solicited() {
		t.Failed("no SE in a WRITE without immediate", suite.Describe(f))
	}
	acked(p, f, 1)
	p.Sent(2)
}

// slowly answers a READ of two packets one by one, and proves before each that the target sends nothing meanwhile.
func slowly(p *suite.Peer, read *wire.Frame, data []byte) {
	p.MSN++
	for _, w := range p.Response(read.RoCE.BTH().PSN(), data) {
		p.Alive()
		p.Put(w)
	}
}

func requestOneRead(t *suite.T) {
	p := t.Connect(suite.Options{RdAtomic: new(1)})
	n := 2 * p.MTU
	data := t.Bytes(3 * n)
	wrs := make([]agent.SendWR, 3)
	for i := range wrs {
		wrs[i] = p.SendWR(uint64(i+1), "RDMA_READ", i*n, n)
	}
	p.PostSend(wrs...)
	for i := range wrs {
		slowly(p, p.Requested(bth.RCReadRequest), data[i*n:(i+1)*n])
		p.Sent(uint64(i + 1))
	}
	p.Holds(0, data)
}

func requestBehindReads(t *suite.T) {
	p := t.Connect(suite.Options{RdAtomic: new(1)})
	n := 2 * p.MTU
	p.PostSend(p.SendWR(1, "RDMA_READ", 0, n), p.SendWR(2, "RDMA_READ", n, n), p.SendWR(3, "SEND", 0, 16))
	slowly(p, p.Requested(bth.RCReadRequest), t.Bytes(n))
	second := p.Requested(bth.RCReadRequest)
	answered(p, second, t.Bytes(n))
	acked(p, p.Requested(bth.RCSendOnly), 1)
	for id := range uint64(3) {
		p.Sent(id + 1)
	}
}

func requestFenced(t *suite.T) {
	p := t.Connect(suite.Options{})
	n := 2 * p.MTU
	send := p.SendWR(2, "SEND", 0, n)
	send.Flags = []string{"SIGNALED", "FENCE"}
	p.PostSend(p.SendWR(1, "RDMA_READ", 0, n), send)
	data := t.Bytes(n)
	slowly(p, p.Requested(bth.RCReadRequest), data)
	frames := requested(p, bth.RCSendFirst, bth.RCSendLast)
	carried(p, frames, data) // what a fence is for: the SEND sends on what the READ brought
	acked(p, frames[1], 1)
	p.Sent(1)
	p.Sent(2)
}

func requestUnfenced(t *suite.T) {
	p := t.Connect(suite.Options{})
	p.PostSend(p.SendWR(1, "RDMA_READ", 0, 16), p.SendWR(2, "SEND", 64, 16))
	read := p.Requested(bth.RCReadRequest)
	var send *wire.Frame
	if early := p.Meanwhile(); len(early) > 0 {
		send = early[0]
		t.Notef("the SEND leaves while the READ is unanswered")
	} else {
		t.Notef("the SEND waits for the READ's answer")
	}
	answered(p, read, t.Bytes(16))
	if send == nil {
		send = p.Next("the SEND")
	}
	if b := send.RoCE.BTH(); send.RoCE.Opcode != bth.RCSendOnly || b.PSN() != p.TargetPSN {
		t.Failed(fmt.Sprintf("%v with PSN %v", bth.RCSendOnly, p.TargetPSN), suite.Describe(send))
	}
	acked(p, send, 1)
	p.Sent(1)
	p.Sent(2)
}

// requestWindow asks for so many READs of so many bytes that they would take more than 2^23 PSNs: at the least path MTU, all
// into the same memory. That none leaves beyond the limit is proved without answering one.
func requestWindow(t *suite.T) {
	const piece = 16 << 20
	count := max(2, min(t.Hello.MaxRDAtomic, 16))
	sges := max(1, min(t.Hello.MaxSGE, 30))
	n := min(sges*piece, 1<<30)
	if count*n/256 <= 1<<23 {
		count = (1<<23)*256/n + 1
	}
	if count > max(2, t.Hello.MaxRDAtomic) {
		t.Skipf("the target cannot have READs of 2^23 packets in flight: %d of %d elements of %d bytes", t.Hello.MaxRDAtomic, sges, piece)
	}
	p := t.Connect(suite.Options{MTU: 256, Length: piece, SendSGEs: sges, RdAtomic: new(count), Timeout: new(0)})
	wr := p.SendWR(1, "RDMA_READ", 0, piece)
	for len(wr.SGEs)*piece < n {
		wr.SGEs = append(wr.SGEs, p.SGE(0, piece))
	}
	for id := range count {
		wr.ID = uint64(id + 1)
		if _, refusal := t.Try(agent.Request{Do: agent.DoSend, QP: p.QP, Sends: []agent.SendWR{wr}}); refusal != nil {
			t.Skipf("the target refuses READ %d of %d bytes: %v", id+1, n, refusal)
		}
	}
	began, most := p.TargetPSN, int32(0)
	p.Unread(p.Next("a READ request"))
	for _, f := range p.Meanwhile() {
		if f.RoCE.Opcode != bth.RCReadRequest || f.RoCE.BTH().PSN() != p.TargetPSN {
			t.Failed(fmt.Sprintf("%v with PSN %v", bth.RCReadRequest, p.TargetPSN), suite.Describe(f))
		}
		packets := max(1, (f.RoCE.RETH().Length()+255)/256)
		if int64(most)+int64(packets) > 1<<23 {
			t.Failed("at most 2^23 PSNs outstanding", fmt.Sprintf("%s, which makes %d", suite.Describe(f), int64(most)+int64(packets)))
		}
		most += int32(packets)
		p.TargetPSN = began.Add(uint32(most))
	}
	t.Notef("%d PSNs outstanding", most)
}

// requestInline overwrites the buffer while the SEND is held back by a fence: what is then sent was copied when it was posted.
func requestInline(t *suite.T) {
	most := t.Hello.MaxInline
	if most == 0 {
		t.Skipf("the target has no inline data")
	}
	n := min(most, 32)
	p := t.Connect(suite.Options{Inline: n})
	old := t.Bytes(n)
	p.Fill(64, old)
	send := p.SendWR(2, "SEND", 64, n)
	send.Flags = []string{"SIGNALED", "FENCE", "INLINE"}
	p.PostSend(p.SendWR(1, "RDMA_READ", 0, 8), send)
	read := p.Requested(bth.RCReadRequest)
	p.Fill(64, t.Bytes(n))
	answered(p, read, t.Bytes(8))
	f := p.Requested(bth.RCSendOnly)
	t.Same("the payload", old, f.RoCE.Payload)
	acked(p, f, 1)
	p.Sent(1)
	p.Sent(2)
}

func requestImmediate(t *suite.T) {
	p := t.Connect(suite.Options{})
	for i, c := range []struct {
		op   string
		want bth.Opcode
	}{{"SEND_WITH_IMM", bth.RCSendOnlyImmediate}, {"RDMA_WRITE_WITH_IMM", bth.RCWriteOnlyImmediate}} {
		wr := p.SendWR(uint64(i+1), c.op, 0, 16)
		wr.Imm = 0x01020304
		p.PostSend(wr)
		f := p.Requested(c.want)
		imm := f.RoCE.ImmDt()
		t.Same("the immediate of a "+c.op, []byte{1, 2, 3, 4}, imm[:])
		acked(p, f, 1)
		p.Sent(wr.ID)
	}
}

func requestTooEarly(t *suite.T) {
	for _, state := range []string{"INIT", "RTR"} {
		p := t.Connect(suite.Options{State: state})
		t.Refused(agent.Request{Do: agent.DoSend, QP: p.QP, Sends: []agent.SendWR{p.SendWR(1, "SEND", 0, 16)}})
		p.NothingSent()
	}
}

func requestTooManySGEs(t *suite.T) {
	most := t.Hello.MaxSGE
	if most == 0 {
		t.Skipf("the agent does not say how many elements a request may have")
	}
	p := t.Connect(suite.Options{SendSGEs: most})
	wr := p.SendWR(1, "SEND", 0, 1)
	wr.SGEs = bytesOf(p, most+1)
	t.Refused(agent.Request{Do: agent.DoSend, QP: p.QP, Sends: []agent.SendWR{wr}})
	wr.SGEs = bytesOf(p, most)
	data := t.Bytes(most)
	p.Fill(0, data)
	p.PostSend(wr)
	f := p.Requested(bth.RCSendOnly)
	t.Same("the payload of as many elements as are allowed", data, f.RoCE.Payload)
	acked(p, f, 1)
	p.Sent(1)
}

// bytesOf makes n elements of a byte each.
func bytesOf(p *suite.Peer, n int) []agent.SGE {
	out := make([]agent.SGE, n)
	for i := range out {
		out[i] = p.SGE(i, 1)
	}
	return out
}

// requestNotOfType posts what the services without answers do not have. A reliable connection has everything.
func requestNotOfType(t *suite.T) {
	if !t.Has(agent.FeatureUC) && !t.Has(agent.FeatureUD) {
		t.Skipf("the target has neither UC nor UD, and a reliable connection has every operation")
	}
	if t.Has(agent.FeatureUC) {
		for _, op := range []string{"RDMA_READ", "ATOMIC_FETCH_AND_ADD"} {
			notOfType(t, "UC", op)
		}
	}
	if t.Has(agent.FeatureUD) {
		for _, op := range []string{"RDMA_WRITE", "RDMA_READ"} {
			notOfType(t, "UD", op)
		}
	}
}

func notOfType(t *suite.T, service, op string) {
	p := t.Connect(suite.Options{Type: service})
	wr := p.SendWR(1, op, 0, 8)
	if service == "UD" {
		wr.AH = t.Do(agent.Request{Do: agent.DoAH, PD: p.PD, Path: t.Path()}).AH
		wr.RemoteQPN, wr.RemoteQKey = uint32(p.Own), p.QKey()
	}
	if _, refusal := t.Try(agent.Request{Do: agent.DoSend, QP: p.QP, Sends: []agent.SendWR{wr}}); refusal == nil {
		p.Sent(1, "LOC_QP_OP_ERR")
		t.Notef("%s on %s: taken, and completed with LOC_QP_OP_ERR", op, service)
		p.Silent()
		return
	}
	t.Notef("%s on %s: refused", op, service)
	wr.ID, wr.Op = 2, "SEND"
	p.PostSend(wr)
	f := p.Next("the SEND after the refused request")
	if !bytes.Equal(f.RoCE.Payload, p.Memory(0, 8)) || f.RoCE.BTH().PSN() != p.TargetPSN {
		t.Failed(fmt.Sprintf("a SEND with PSN %v", p.TargetPSN), suite.Describe(f))
	}
	p.Sent(2)
}

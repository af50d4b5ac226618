package transport_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/gopacket/pcapgo"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// captured is one RoCEv2 packet of a capture.
type captured struct {
	src, dst bth.GID
	ip, roce []byte // the IP header; BTH to ICRC
}

// readCapture reads the RoCEv2 packets of one of kernel rxe's captures.
func readCapture(t *testing.T, name string) (out []captured) {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "bth", "testdata", "captures", name+".pcap"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for {
		b, _, err := r.ReadPacketData()
		if err != nil {
			return out
		}
		const ethernet, udp = 14, 8
		c := captured{}
		ip := b[ethernet:]
		switch binary.BigEndian.Uint16(b[12:]) {
		case 0x0800:
			copy(c.src[10:], []byte{0xFF, 0xFF, ip[12], ip[13], ip[14], ip[15]})
			copy(c.dst[10:], []byte{0xFF, 0xFF, ip[16], ip[17], ip[18], ip[19]})
			c.ip, ip = ip[:20], ip[20:]
		case 0x86DD:
			copy(c.src[:], ip[8:24])
			copy(c.dst[:], ip[24:40])
			c.ip, ip = ip[:40], ip[40:]
		default:
			continue
		}
		c.roce = ip[udp:binary.BigEndian.Uint16(ip[4:])]
		out = append(out, c)
	}
}

// answerText is what is compared of an answer.
func answerText(p *bth.Packet) string {
	s := fmt.Sprintf("%v psn=%v", p.Opcode, p.BTH().PSN())
	if h := p.AETH(); h != nil {
		s += fmt.Sprintf(" syndrome=%#x msn=%d", uint8(h.Syndrome()), h.MSN())
	}
	if h := p.AtomicAckETH(); h != nil {
		s += fmt.Sprintf(" orig=%#x", h.Original())
	}
	return s + fmt.Sprintf(" payload=%x", p.Payload)
}

// TestKernelRXEReplay feeds the client's packets of kernel rxe's captures to our
// responder and compares each answer with what the kernel's responder said:
// opcode, PSN, syndrome, MSN, original value and data.
func TestKernelRXEReplay(t *testing.T) {
	for _, c := range []struct {
		name     string
		mtu      bth.MTU
		recvs    int
		recvSize int
		missing  int // answers to requests that the capture missed, at its end
	}{
		{name: "rc_send_small", recvs: 7, recvSize: 1 << 17},
		{name: "rc_send_multi", recvs: 4, recvSize: 1 << 17},
		{name: "rc_send_imm", recvs: 3, recvSize: 1 << 17},
		{name: "rc_write"},
		{name: "rc_write_long", missing: 1}, // the Last is not in the file
		{name: "rc_read_small"},
		{name: "rc_read_large"},
		{name: "rc_atomic"},
		{name: "rc_psn_wrap", recvs: 2, recvSize: 1 << 17},
		{name: "rc_mixed_ipv6", recvs: 2, recvSize: 1 << 17},
		{name: "rc_mtu4096", mtu: bth.MTU4096, recvs: 2, recvSize: 1 << 17},
		{name: "rc_nak_bad_rkey_write", recvs: 1, recvSize: 16},
		{name: "rc_nak_out_of_range", recvs: 1, recvSize: 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.mtu == 0 {
				c.mtu = bth.MTU1024
			}
			replayCapture(t, c.name, c.mtu, c.recvs, c.recvSize, c.missing)
		})
	}
}

// kernelMemory is what the lab's server had at the start.
func kernelMemory(n int) mrtable.HeapMemory {
	m := make(mrtable.HeapMemory, n)
	for i := range m {
		m[i] = byte(i*7 + i>>8 + 128)
	}
	return m
}

// littleEndian is memory of a little-endian host, as the captures' server was;
// an atomic works on the host's own 64-bit words.
type littleEndian struct{ mrtable.HeapMemory }

// CompareSwap implements [mrtable.Memory].
func (m littleEndian) CompareSwap(off, compare, swap uint64) (uint64, error) {
	old := binary.LittleEndian.Uint64(m.HeapMemory[off:])
	if old == compare {
		binary.LittleEndian.PutUint64(m.HeapMemory[off:], swap)
	}
	return old, nil
}

// FetchAdd implements [mrtable.Memory].
func (m littleEndian) FetchAdd(off, add uint64) (uint64, error) {
	old := binary.LittleEndian.Uint64(m.HeapMemory[off:])
	binary.LittleEndian.PutUint64(m.HeapMemory[off:], old+add)
	return old, nil
}

func replayCapture(t *testing.T, name string, mtu bth.MTU, recvs, recvSize, missing int) {
	pkts := readCapture(t, name)
	if len(pkts) == 0 {
		t.Fatal("no packets")
	}
	// The first packet is a request of the client; its peer is the server. The
	// server's key and address are those of the first good RETH; a test key has
	// to stand for the kernel's, so requests are rewritten to ours.
	client, server := pkts[0].src, pkts[0].dst
	const size = 1 << 17
	va, rkey, bad := serverMemory(t, name, pkts, client)
	e := &end{t: t, qpn: bth.BTH(pkts[0].roce).DestQP(), gid: server, keys: mrtable.New(mrtable.Config{})}
	e.mem = kernelMemory(size)
	var err error
	if e.mr, err = e.keys.Register(1, littleEndian{e.mem}, va, size, allAccess, 0); err != nil {
		t.Fatal(err)
	}
	e.recv = wq.NewRecvQueue(64)
	e.cfg = transport.Config{
		Type: qpstate.RC, QPN: e.qpn, PD: 1, Keys: e.keys, SendCQ: &e.sendCQ, RecvCQ: &e.recvCQ, Recv: e.recv,
		Cap: qpstate.Cap{MaxSendWR: 8, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4},
	}
	if e.qp, err = transport.New(e.cfg); err != nil {
		t.Fatal(err)
	}
	peer := &end{qpn: 0x99, gid: client}
	psn := bth.BTH(pkts[0].roce).PSN()
	e.to(qpstate.RTS, peer, options{mtu: mtu, psnB: psn}.withDefaults())
	for i := 0; i < recvs; i++ {
		e.postRecv(start, uint64(i), wq.SGE{Addr: va, Length: uint32(min(recvSize, size)), LKey: e.mr.LKey()})
	}
	var want, got []string
	for _, c := range pkts {
		var p bth.Packet
		if err := p.Parse(c.roce); err != nil {
			t.Fatal(err)
		}
		if c.src == server {
			want = append(want, answerText(&p))
			continue
		}
		b := append([]byte(nil), c.roce...)
		at := 0
		switch {
		case p.Has(bth.HasRETH):
			at = bth.BTHLen + 8
		case p.Has(bth.HasAtomicETH):
			at = bth.BTHLen + 8
		}
		if at != 0 && binary.BigEndian.Uint32(b[at:]) == rkey && !bad {
			binary.BigEndian.PutUint32(b[at:], uint32(e.mr.RKey()))
		}
		if v := e.handle(start, b, client); v != transport.Accepted && v != transport.Refused {
			t.Errorf("%s: %v", packetText(b), v)
		}
		for _, a := range e.pollAll(start) {
			var p bth.Packet
			if err := p.Parse(a); err != nil {
				t.Fatal(err)
			}
			got = append(got, answerText(&p))
		}
	}
	if len(got) != len(want)-missing {
		t.Errorf("%d answers, the kernel gave %d", len(got), len(want))
	}
	for i := 0; i < min(len(got), len(want)); i++ {
		if got[i] != want[i] {
			t.Errorf("answer %d:\n   got %.200s\nkernel %.200s", i, got[i], want[i])
		}
	}
}

// serverMemory finds address and key of the server's region in the requests. All
// scenarios begin at the region's start, apart from those named.
func serverMemory(t *testing.T, name string, pkts []captured, client bth.GID) (va uint64, rkey uint32, bad bool) {
	offsets := map[string]uint64{"rc_write": 5, "rc_read_small": 3, "rc_nak_out_of_range": 1<<17 - 50}
	for _, c := range pkts {
		var p bth.Packet
		if err := p.Parse(c.roce); err != nil {
			t.Fatal(err)
		}
		if c.src != client {
			continue
		}
		if h := p.RETH(); h != nil {
			return h.VA() - offsets[name], h.RKey(), name == "rc_nak_bad_rkey_write"
		}
	}
	return memBase, 0, false
}

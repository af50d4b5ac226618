package adapter_test

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

// A rawPeer is a peer that is no adapter: a UDP socket on port 4791 of a
// loopback address, whose packets are made by hand.
type rawPeer struct {
	t    testing.TB
	host *host
	conn *net.UDPConn
	addr netip.Addr
	dst  netip.Addr
	qpn  bth.QPN // of the adapter's queue pair
	buf  [8192]byte
}

// rawQPN is the queue pair number that a rawPeer has.
const rawQPN = 0x123450

func newRawPeer(t testing.TB, h *host, qpn bth.QPN) *rawPeer {
	t.Helper()
	p := &rawPeer{t: t, host: h, addr: testaddr.Take(t, 1)[0], dst: h.Addrs()[0], qpn: qpn}
	var err error
	p.conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.addr, 4791)))
	must(t, err)
	t.Cleanup(func() { p.conn.Close() })
	must(t, unnumbered(p.conn))
	return p
}

// unnumbered makes the kernel send with identification 0, as an adapter does: a
// backend that sees IP headers takes no other than the ICRC stands for.
func unnumbered(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	ctrlErr := raw.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, syscall.IP_PMTUDISC_PROBE)
	})
	return errors.Join(ctrlErr, err)
}

// rawPair connects a program of an adapter with a rawPeer. The peer's first
// PSN is 100, the program's its own.
func rawPair(t testing.TB, h *host, s shape, conf verbs.RCConfig) (*program, *rawPeer) {
	t.Helper()
	p := h.open(t, s)
	raw := newRawPeer(t, h, p.qp.Num())
	p.connectTo(verbs.RCPeer{QPN: rawQPN, PSN: 100, GID: bth.GIDFromAddr(raw.addr)}, conf)
	return p, raw
}

// packet makes a packet to the adapter's queue pair with a right ICRC. Pad
// is added when pad is negative, else pad bytes are said and none is there.
func (p *rawPeer) packet(h bth.Headers, payload []byte, pad int) []byte {
	if h.BTH.DestQP == 0 {
		h.BTH.DestQP = p.qpn
	}
	h.BTH.PKey, h.BTH.MigReq = bth.DefaultPKey, true
	if h.BTH.Pad = bth.PadLen(len(payload)); pad >= 0 {
		h.BTH.Pad = uint8(pad)
	}
	b := append(h.Append(nil), payload...)
	if pad < 0 {
		b = bth.AppendPad(b, len(payload))
	}
	return bth.AppendICRC(b, p.icrc(b))
}

// icrc is the ICRC of a packet of which b is all but the ICRC.
func (p *rawPeer) icrc(b []byte) uint32 {
	n := bth.NetHeader{Src: bth.GIDFromAddr(p.addr), Dst: bth.GIDFromAddr(p.dst), SrcPort: 4791, DstPort: 4791}
	return bth.ICRC(n.Seed(len(b)+bth.ICRCLen), b)
}

func (p *rawPeer) send(b []byte) {
	p.t.Helper()
	_, err := p.conn.WriteToUDPAddrPort(b, netip.AddrPortFrom(p.dst, 4791))
	must(p.t, err)
}

// order tells the race detector what the packets of this peer order: what the
// test did before comes before what the adapter does next, and the other way
// round.
func (p *rawPeer) order() { p.host.NIC().Snapshot() }

// recv is the next packet from the adapter, valid until the next call.
func (p *rawPeer) recv() *bth.Packet {
	p.t.Helper()
	must(p.t, p.conn.SetReadDeadline(time.Now().Add(patience)))
	n, _, err := p.conn.ReadFromUDPAddrPort(p.buf[:])
	if err != nil {
		p.t.Fatalf("no packet from the adapter: %v", err)
	}
	var pkt bth.Packet
	must(p.t, pkt.Parse(p.buf[:n]))
	p.order()
	return &pkt
}

// acked waits for an acknowledgement and checks its kind and PSN.
func (p *rawPeer) acked(psn bth.PSN, want bth.Syndrome) {
	p.t.Helper()
	pkt := p.recv()
	if pkt.Opcode != bth.RCAcknowledge || pkt.BTH().PSN() != psn {
		p.t.Fatalf("got %v PSN %v, want an acknowledgement of %v", pkt.Opcode, pkt.BTH().PSN(), psn)
	}
	got := pkt.AETH().Syndrome()
	if want == ack && got.IsACK() {
		return
	}
	if got != want {
		p.t.Fatalf("PSN %v is answered with syndrome %#x (%v), want %#x", psn, uint8(got), got, uint8(want))
	}
}

// Syndromes (IBTA Vol 1 §9.7.5.2.1, table 45).
const (
	ack              bth.Syndrome = 0x00 // and any credit count
	nakInvalid       bth.Syndrome = 0x61
	nakRemoteAccess  bth.Syndrome = 0x62
	nakSequenceError bth.Syndrome = 0x60
)

// write makes a WRITE Only of payload.
func (p *rawPeer) write(psn bth.PSN, va uint64, key verbs.RKey, payload []byte) []byte {
	return p.packet(bth.Headers{
		BTH:  bth.BTHFields{Opcode: bth.RCWriteOnly, PSN: psn, AckReq: true},
		RETH: bth.RETHFields{VA: va, RKey: uint32(key), Length: uint32(len(payload))},
	}, payload, -1)
}

// read makes a READ request of n bytes.
func (p *rawPeer) read(psn bth.PSN, va uint64, key verbs.RKey, n uint32) []byte {
	return p.packet(bth.Headers{
		BTH:  bth.BTHFields{Opcode: bth.RCReadRequest, PSN: psn, AckReq: true},
		RETH: bth.RETHFields{VA: va, RKey: uint32(key), Length: n},
	}, nil, -1)
}

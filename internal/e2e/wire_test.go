package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/internal/testnet"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

const (
	wireQPN = 0x654320 // the queue pair that the stranger has
	wirePSN = 500      // its first PSN
)

// A stranger is a RoCEv2 node on a link that is nothing but two raw sockets: it
// writes whole IP packets and sees whole IP packets.
type stranger struct {
	t        *testing.T
	host     *testnet.Host // of the adapter
	out, in  int
	src, dst netip.Addr
	lastID   uint16 // identification of the last packet that came
}

func newStranger(t *testing.T, h *testnet.Host, dst netip.Addr) *stranger {
	t.Helper()
	s := &stranger{t: t, src: h.Addr4, dst: dst}
	ipv4 := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))
	err := h.Do(func() (err error) {
		ifi, err := net.InterfaceByName(testnet.Iface)
		if err != nil {
			return err
		}
		// Somebody has the port, so that no ICMP answers.
		port, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(h.Addr4, 4791)))
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = port.Close() })
		if s.out, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW); err != nil {
			return err
		}
		t.Cleanup(func() { _ = unix.Close(s.out) })
		if s.in, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(ipv4)); err != nil {
			return err
		}
		t.Cleanup(func() { _ = unix.Close(s.in) })
		return unix.Bind(s.in, &unix.SockaddrLinklayer{Protocol: ipv4, Ifindex: ifi.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// packet is an IPv4 packet with an identification of its own and a right ICRC.
func (s *stranger) packet(id uint16, h bth.Headers, payload []byte) []byte {
	s.t.Helper()
	h.BTH.PKey, h.BTH.MigReq, h.BTH.Pad = bth.DefaultPKey, true, bth.PadLen(len(payload))
	roce := bth.AppendPad(append(h.Append(nil), payload...), len(payload))
	roce = append(roce, 0, 0, 0, 0)
	be := binary.BigEndian
	p := []byte{0x45, 0x20, 0, 0, 0, 0, 0x40, 0, 61, unix.IPPROTO_UDP, 0, 0} // DF, as kernel rxe sends
	be.PutUint16(p[2:], uint16(28+len(roce)))
	be.PutUint16(p[4:], id)
	p = append(append(p, s.src.AsSlice()...), s.dst.AsSlice()...)
	p = be.AppendUint16(be.AppendUint16(p, 0xC123), 4791)
	p = append(be.AppendUint16(p, uint16(8+len(roce))), 0, 0) // no UDP checksum
	p = append(p, roce...)
	icrc, _, err := bth.ICRCOfIPPacket(p)
	if err != nil {
		s.t.Fatal(err)
	}
	binary.LittleEndian.PutUint32(p[len(p)-bth.ICRCLen:], icrc)
	return p
}

func (s *stranger) send(p []byte) {
	s.t.Helper()
	if err := unix.Sendto(s.out, p, 0, &unix.SockaddrInet4{Addr: s.dst.As4()}); err != nil {
		s.t.Fatal(err)
	}
}

// recv is the next packet from the adapter. Its ICRC is right for the IP header
// that was on the wire, which may not be cut and whose identification is 0 or,
// for the next of a segmented send, one more than the last.
func (s *stranger) recv() (pkt bth.Packet) {
	s.t.Helper()
	for {
		fds := []unix.PollFd{{Fd: int32(s.in), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, int(limit.Milliseconds())); n == 0 && err == nil {
			s.t.Fatal("no packet from the adapter")
		} else if err != nil {
			continue // EINTR
		}
		buf := make([]byte, 9000)
		n, _, err := unix.Recvfrom(s.in, buf, 0)
		if err != nil {
			s.t.Fatal(err)
		}
		p := buf[:n]
		if n < 40 || p[9] != unix.IPPROTO_UDP || [4]byte(p[12:16]) != s.dst.As4() {
			continue
		}
		want, got, err := bth.ICRCOfIPPacket(p)
		if err != nil || want != got {
			s.t.Errorf("packet % x: ICRC %08x, want %08x, %v", p[:40], got, want, err)
		}
		id, frag := binary.BigEndian.Uint16(p[4:]), binary.BigEndian.Uint16(p[6:])
		if id != 0 && id != s.lastID+1 || frag != 0x4000 {
			s.t.Errorf("identification %d after %d, flags and offset %#04x, want 0 or the next, and DF alone", id, s.lastID, frag)
		}
		s.lastID = id
		if err := pkt.Parse(p[28:n]); err != nil {
			s.t.Fatal(err)
		}
		return pkt
	}
}

// acked waits until PSN psn is acknowledged.
func (s *stranger) acked(psn bth.PSN) {
	s.t.Helper()
	p := s.recv()
	if p.Opcode != bth.RCAcknowledge || p.BTH().PSN() != psn || !p.AETH().Syndrome().IsACK() {
		s.t.Fatalf("got %v PSN %v, want an ACK of PSN %v", p.Opcode, p.BTH().PSN(), psn)
	}
}

// wirePair connects a program on the adapter with the stranger over a link.
func wirePair(t *testing.T) (*end, *stranger) {
	t.Helper()
	x, y := testnet.Pair(t, 0)
	var a *adapter.Adapter
	err := x.Do(func() (err error) {
		a, err = adapter.Start(adapter.Config{
			Addrs: []netip.Addr{x.Addr4}, Workers: testmatrix.Workers(t, 0), Offload: testmatrix.Offload(t), Backend: testmatrix.Backend(t), TUN: testmatrix.TUN(t, nil),
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	dev, err := a.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dev.Close() })
	c, err := endOf(dev, 9)
	if err != nil {
		t.Fatal(err)
	}
	peer := verbs.RCPeer{QPN: wireQPN, PSN: wirePSN, GID: bth.GIDFromAddr(y.Addr4)}
	if err := c.qp.ConnectRC(peer, verbs.RCConfig{PSN: c.id.PSN, Timeout: 20}); err != nil {
		t.Fatal(err)
	}
	s := newStranger(t, y, x.Addr4)
	s.host = x
	return c, s
}

// A peer's identifications, which a UDP socket does not show, are learned from
// its ICRCs, whatever their order: rising by one, with jumps, over the end of the
// numbers, from a new start. What is damaged on the way is not taken, and once the
// peer's numbers are known a stray one is not either, until the next continues it. A
// backend that sees them has nothing to learn, and takes each packet that is whole.
func TestIdentificationOfAPeerIsLearned(t *testing.T) {
	c, s := wirePair(t)
	ids := []uint16{7000, 7001, 7002, 7004, 7100, 8124, 65535, 3, 4, 40000, 40001, 40001, 12, 13}
	for id := uint16(14); id < 40; id++ {
		ids = append(ids, id)
	}
	const stray = 30000
	learns := testmatrix.Backend(t) == adapter.BackendUDP
	n := 0 // requests that were taken
	for _, id := range append(ids, 900, stray, stray+1, stray+2) {
		want, psn := fmt.Sprintf("%5d", id), bth.PSN(wirePSN+n)
		p := s.packet(id, bth.Headers{
			BTH:  bth.BTHFields{Opcode: bth.RCWriteOnlyImmediate, DestQP: c.qp.Num(), PSN: psn, AckReq: true},
			RETH: bth.RETHFields{VA: c.mr.Addr() + uint64(8*n), RKey: uint32(c.mr.RKey()), Length: uint32(len(want))},
		}, []byte(want))
		bad := append([]byte(nil), p...)
		bad[28+bth.BTHLen+16+4] ^= 0x10 // the payload's first byte, behind RETH and ImmDt
		if id != stray+1 || !learns {   // the stray one's receive is still there
			if _, err := c.qp.PostRecv(verbs.RecvWR{WRID: uint64(n)}); err != nil {
				t.Fatal(err)
			}
		}
		s.send(bad)
		if s.send(p); id == stray && learns {
			continue // the next has the same PSN: were this one taken, that one's data would not be
		}
		s.acked(psn)
		c.completed(t, uint64(n))
		if got := string(c.mr.Bytes()[8*n:][:len(want)]); got != want {
			t.Errorf("identification %d: memory has %q, want %q", id, got, want)
		}
		n++
	}
}

// What an adapter sends has an identification as documented and an ICRC that is
// right for it, each packet of a long message and each acknowledgement alike.
// The link's device cuts no segmented sends, so that the packets are on the link
// one by one.
func TestPacketsOnTheWireAreRight(t *testing.T) {
	c, s := wirePair(t)
	s.host.SetFeature(t, testnet.CutsUDP, false)
	const size = 4000
	_, err := c.qp.PostSend(verbs.SendWR{
		WRID: 1, Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{c.mr.SGE(0, size)}, RemoteAddr: 0x1000, RKey: 0x77,
	})
	if err != nil {
		t.Fatal(err)
	}
	var last bth.PSN
	for got := 0; got < size; {
		p := s.recv()
		if p.BTH().DestQP() != wireQPN {
			t.Fatalf("packet to queue pair %v", p.BTH().DestQP())
		}
		got, last = got+len(p.Payload), p.BTH().PSN()
	}
	ack := bth.Headers{
		BTH:  bth.BTHFields{Opcode: bth.RCAcknowledge, DestQP: c.qp.Num(), PSN: last},
		AETH: bth.AETHFields{Syndrome: bth.AckNoCredit, MSN: 1},
	}
	s.send(s.packet(0xABCD, ack, nil))
	c.completed(t, 1)
}

// completed waits for the next completion, which is a success.
func (e *end) completed(t *testing.T, id uint64) {
	t.Helper()
	var wc [1]verbs.WC
	eventually(t, "the request completes", func() bool {
		n, err := e.cq.Poll(wc[:])
		return n > 0 || err != nil
	})
	if wc[0].Status != verbs.WCSuccess || wc[0].WRID != id {
		t.Fatalf("completion %+v, want success of request %d", wc[0], id)
	}
}

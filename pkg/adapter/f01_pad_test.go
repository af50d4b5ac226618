package adapter_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"testing"

	"github.com/google/gopacket/pcapgo"

	"github.com/softroce/softroce/internal/nic"
	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

// Field case F1: WRITE and SEND of every length 1..70 and around the path MTU,
// both ways. Bytes are equal and nothing beyond them is touched, both adapters
// accept all (strictly: the identifications are proven, too), and in the
// captures each packet's pad and ICRC are checked with the IP header.
func TestF1EveryLength(t *testing.T) {
	for _, c := range []struct {
		name  string
		mtu   verbs.MTU
		addrs func() []netip.Addr
	}{
		{"IPv4 MTU 1024", bth.MTU1024, func() []netip.Addr { return testaddr.Take(t, 2) }},
		{"IPv4 MTU 4096", bth.MTU4096, func() []netip.Addr { return testaddr.Take(t, 2) }},
	} {
		t.Run(c.name, func(t *testing.T) { everyLength(t, c.mtu, c.addrs()) })
	}
}

func everyLength(t *testing.T, mtu verbs.MTU, addrs []netip.Addr) {
	var tapes [2]bytes.Buffer
	var ends [2]*program
	var hosts [2]*host
	for i := range ends {
		h, err := tryStart(t, func(c *adapter.Config) {
			c.Addrs, c.Capture, c.StrictICRC = addrs[i:i+1], &tapes[i], true
		})
		must(t, err)
		hosts[i], ends[i] = h, h.open(t, shape{})
	}
	a, b := ends[0], ends[1]
	connect(a, b, verbs.RCConfig{MTU: mtu})
	lengths := make([]int, 0, 77)
	for n := 1; n <= 70; n++ {
		lengths = append(lengths, n)
	}
	for d := -3; d <= 3; d++ {
		lengths = append(lengths, mtu.Bytes()+d)
	}
	for _, n := range lengths {
		for _, x := range [][2]*program{{a, b}, {b, a}} {
			oneLength(t, x[0], x[1], n, verbs.WRRDMAWrite)
			oneLength(t, x[0], x[1], n, verbs.WRSend)
		}
	}
	for i, h := range hosts {
		if d := h.workers().Stats.Drops; d != [nic.NumDrops]uint64{} {
			t.Errorf("adapter %d dropped packets: %v", i, d)
		}
		must(t, ends[i].dev.Close())
		must(t, h.Close())
	}
	// 77 lengths, two operations, two directions; one packet for each, one
	// more for the three longest, and as many acknowledgements.
	for i := range tapes {
		out, in := checkTape(t, &tapes[i], addrs[i])
		if out < 77*2+3*2 || in < 77*2+3*2 {
			t.Errorf("capture %d has %d packets sent and %d received, too few", i, out, in)
		}
	}
}

// oneLength moves n bytes to an odd place and looks at what is around it.
func oneLength(t *testing.T, x, y *program, n int, op verbs.WROpcode) {
	t.Helper()
	const at, guard = 4097, 8
	src, dst := x.mr.Bytes()[1:1+n], y.mr.Bytes()[at-guard:at+n+guard]
	fill(src, n)
	for i := range dst {
		dst[i] = 0xA5
	}
	wr := x.write(y, 1, at, n)
	if wr.Opcode = op; op == verbs.WRSend {
		y.recv(uint64(n), at, n)
	}
	x.do(wr)
	if op == verbs.WRSend {
		if wc := y.status(uint64(n), verbs.WCSuccess); int(wc.ByteLen) != n {
			t.Errorf("%v of %d: byte_len %d", op, n, wc.ByteLen)
		}
	}
	edge := bytes.Repeat([]byte{0xA5}, guard)
	if !bytes.Equal(dst[guard:guard+n], src) {
		t.Errorf("%v of %d bytes: the data differ", op, n)
	}
	if !bytes.Equal(dst[:guard], edge) || !bytes.Equal(dst[guard+n:], edge) {
		t.Errorf("%v of %d bytes: bytes around it were written", op, n)
	}
}

// checkTape reads a capture of raw IP packets and checks each by itself.
func checkTape(t *testing.T, tape io.Reader, self netip.Addr) (out, in int) {
	t.Helper()
	r, err := pcapgo.NewNgReader(tape, pcapgo.DefaultNgReaderOptions)
	must(t, err)
	for {
		ip, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return out, in
		}
		must(t, err)
		src, roce, err := splitIP(ip)
		must(t, err)
		if src == self {
			out++
		} else {
			in++
		}
		want, got, err := bth.ICRCOfIPPacket(ip)
		if err != nil || want != got {
			t.Errorf("packet % x: ICRC %#x, want %#x, %v", ip[:40], got, want, err)
		}
		var p bth.Packet
		if err := p.Parse(roce); err != nil {
			t.Errorf("packet % x: %v", ip[:40], err)
			continue
		}
		if p.Pad != -len(p.Payload)&3 || !bytes.Equal(p.PadBytes(), make([]byte, p.Pad)) {
			t.Errorf("%v of %d bytes: PadCnt %d, pad % x", p.Opcode, len(p.Payload), p.Pad, p.PadBytes())
		}
		if !p.BTH().MigReq() {
			t.Errorf("%v with M bit 0 (F17)", p.Opcode)
		}
	}
}

// splitIP gives the source and the UDP payload of an IP packet.
func splitIP(ip []byte) (src netip.Addr, roce []byte, err error) {
	switch {
	case len(ip) > 28 && ip[0] == 0x45:
		return netip.AddrFrom4([4]byte(ip[12:16])), ip[28:], nil
	case len(ip) > 48 && ip[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(ip[8:24])), ip[48:], nil
	}
	return src, nil, fmt.Errorf("no IP packet: % x", ip)
}

package adapter_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/gopacket/pcapgo"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

// exchange does every verb from a to b, one request at a time and none near a
// window, so that what leaves is decided by the protocol alone and not by what
// met in a turn.
func exchange(t *testing.T, a, b *program) {
	t.Helper()
	for i, n := range []int{0, 1, 33, 1024, 1025, 9001} {
		for _, op := range []verbs.WROpcode{verbs.WRSend, verbs.WRSendWithImm, verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm, verbs.WRRDMARead} {
			fill(a.mr.Bytes()[:n], i)
			fill(b.mr.Bytes()[:n], i+7)
			wr := a.write(b, 0, 0, n)
			wr.Opcode, wr.ImmData = op, 0x01020304
			recv := op != verbs.WRRDMAWrite && op != verbs.WRRDMARead
			if recv {
				b.recv(1, 0, n)
			}
			a.do(wr)
			if recv {
				b.status(1, verbs.WCSuccess)
			}
		}
	}
	for _, op := range []verbs.WROpcode{verbs.WRAtomicFetchAdd, verbs.WRAtomicCmpAndSwp} {
		wr := a.write(b, 8, 16, 8)
		wr.Opcode, wr.CompareAdd, wr.Swap = op, 3, 4
		a.do(wr)
	}
	// A key that is none: the NAK, too.
	wr := a.write(b, 0, 0, 10)
	wr.RKey, wr.WRID, wr.Flags = 0xBAD, 9, verbs.SendSignaled
	a.post(wr)
	a.status(9, verbs.WCRemAccessErr)
}

// stream is what a capture has of one direction, one line a packet: all of it but
// queue pair numbers, keys, addresses, ports, identifications and ICRCs.
type stream []string

// streams reads a capture: the packets that left for a queue pair, and those
// that came for one. Each must have the ICRC that is right for its headers.
func streams(t *testing.T, tape []byte, routers byte) (out, in map[verbs.QPN]stream) {
	t.Helper()
	out, in = map[verbs.QPN]stream{}, map[verbs.QPN]stream{}
	var left []bool // by the comment on a packet that left
	must(t, capture.Decode(bytes.NewReader(tape), func(r capture.Record) { left = append(left, strings.HasPrefix(r.Comment, "qp 0x")) }))
	r, err := pcapgo.NewNgReader(bytes.NewReader(tape), pcapgo.DefaultNgReaderOptions)
	must(t, err)
	for n := 0; ; n++ {
		ip, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return out, in
		}
		must(t, err)
		if want, got, err := bth.ICRCOfIPPacket(ip); err != nil || want != got {
			t.Errorf("packet %d, % x: ICRC %08x, want %08x, %v", n, ip[:40], got, want, err)
		}
		_, roce, err := splitIP(ip)
		must(t, err)
		var p bth.Packet
		must(t, p.Parse(roce))
		to, ttl := out, ip[8]
		if !left[n] {
			to, ttl = in, ttl+routers
		}
		line := fmt.Sprintf("%v TOS %d TTL %d %s", p.Opcode, ip[1], ttl, hex.EncodeToString(masked(&p)))
		q := p.BTH().DestQP()
		to[q] = append(to[q], line)
	}
}

// masked is a packet without what differs between two connections.
func masked(p *bth.Packet) []byte {
	b := bytes.Clone(p.Bytes())
	copy(b[5:8], []byte{0, 0, 0}) // destination QPN
	switch h := p.Info.Headers; {
	case h.Has(bth.HasRETH), h.Has(bth.HasAtomicETH):
		clear(b[bth.BTHLen : bth.BTHLen+12]) // address and key lead either
	}
	return b[:len(b)-bth.ICRCLen]
}

// The capture of two queue pairs of one adapter is what two adapters capture of
// the same exchange over a socket: packet by packet, in either direction, as sent
// and as received, and each with a right ICRC.
func TestLocalCaptureEqualsTheWires(t *testing.T) {
	conf := verbs.RCConfig{Timeout: 20, TrafficClass: 0x62, HopLimit: 77, MTU: bth.MTU1024}
	var wireA, wireB bytes.Buffer
	x := start(t, func(c *adapter.Config) { c.Offload, c.Capture = adapter.OffloadOff, &wireA })
	y := start(t, func(c *adapter.Config) { c.Offload, c.Capture = adapter.OffloadOff, &wireB })
	a, b := x.open(t, shape{}), y.open(t, shape{})
	connect(a, b, conf)
	exchange(t, a, b)
	aq, bq := a.qp.Num(), b.qp.Num()
	must(t, x.Close())
	must(t, y.Close())
	routers := byte(0)
	if testmatrix.Backend(t) == adapter.BackendTUN {
		routers = 1 // the host
	}
	outA, inA := streams(t, wireA.Bytes(), routers)
	outB, inB := streams(t, wireB.Bytes(), routers)
	for _, together := range []bool{true, false} {
		t.Run(fmt.Sprint("one worker ", together), func(t *testing.T) {
			var local bytes.Buffer
			h := start(t, func(c *adapter.Config) { c.Workers, c.Capture = 2, &local })
			c, d := localPair(t, h, shape{}, together)
			connect(c, d, conf)
			exchange(t, c, d)
			cq, dq := c.qp.Num(), d.qp.Num()
			must(t, h.Close())
			out, in := streams(t, local.Bytes(), 0)
			sameStream(t, "requests as sent", out[dq], outA[bq])
			sameStream(t, "requests as received", in[dq], inB[bq])
			sameStream(t, "responses as sent", out[cq], outB[aq])
			sameStream(t, "responses as received", in[cq], inA[aq])
			if len(out) != 2 || len(in) != 2 {
				t.Errorf("packets for %d and %d queue pairs, want 2", len(out), len(in))
			}
		})
	}
}

func sameStream(t *testing.T, what string, local, wire stream) {
	t.Helper()
	if len(wire) < 30 {
		t.Errorf("%s: only %d packets on the wire", what, len(wire))
	}
	for i := range min(len(local), len(wire)) {
		if local[i] != wire[i] {
			t.Errorf("%s: packet %d\nlocal %.200s\nwire  %.200s", what, i, local[i], wire[i])
			return
		}
	}
	if len(local) != len(wire) {
		t.Errorf("%s: %d packets locally, %d on the wire", what, len(local), len(wire))
	}
}

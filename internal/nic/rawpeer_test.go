package nic

import (
	"net/netip"
	"runtime"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/udp4791"
	"github.com/softroce/softroce/pkg/verbs"
)

// connectRaw connects a queue pair to a peer that is no adapter.
func connectRaw(t testing.TB, e *endpoint, peer netip.Addr, psn verbs.PSN, qpn verbs.QPN) {
	t.Helper()
	to := verbs.RCPeer{QPN: qpn, PSN: psn, GID: bth.GIDFromAddr(peer)}
	if err := e.qp.ConnectRC(to, verbs.RCConfig{PSN: 3}); err != nil {
		t.Fatal(err)
	}
}

// writeOnly is a WRITE Only to a place of a queue pair's region, without its
// ICRC.
func writeOnly(e *endpoint, psn bth.PSN, off int, payload []byte) []byte {
	h := bth.Headers{
		BTH:  bth.BTHFields{Opcode: bth.RCWriteOnly, PKey: bth.DefaultPKey, MigReq: true, DestQP: e.qp.Num(), PSN: psn, AckReq: true},
		RETH: bth.RETHFields{VA: e.mr.Addr() + uint64(off), RKey: uint32(e.mr.RKey()), Length: uint32(len(payload))},
	}
	return append(h.Append(nil), payload...)
}

// awaitAcks waits for n positive acknowledgements.
func awaitAcks(t *testing.T, ep *udp4791.Endpoint, n int) {
	t.Helper()
	ctx := within(t)
	for n > 0 {
		slots, err := ep.ReadBatch()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range slots {
			size := s.Segment
			if size == 0 {
				size = len(s.Buf)
			}
			for buf := s.Buf; len(buf) > 0; n-- {
				var p bth.Packet
				k := min(size, len(buf))
				if err := p.Parse(buf[:k]); err != nil || p.Opcode != bth.RCAcknowledge || !p.AETH().Syndrome().IsACK() {
					t.Fatalf("got %v, %v; want an acknowledgement", p.Opcode, err)
				}
				buf = buf[k:]
			}
		}
		if ctx.Err() != nil {
			t.Fatalf("%d acknowledgements did not come", n)
		}
		runtime.Gosched()
	}
}

package nic

import (
	"fmt"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/pkg/udp4791"
)

// captureIn writes a received packet with what became of it.
func (w *worker) captureIn(tap *capture.Writer, meta *udp4791.RecvMeta, buf []byte, v *icrcVerdict, verdict string) {
	w.captured(tap.WritePacket(capture.Packet{
		Time: w.now, Src: meta.Src.Addr(), Dst: meta.Dst, SrcPort: meta.Src.Port(), DstPort: udp4791.Port,
		TOS: meta.TOS, TTL: meta.TTL, ID: v.id, IDKnown: v.idKnown, Payload: buf, Comment: verdict,
	}))
}

// captureOut writes a packet that left: that the kernel took, or that went to a
// queue pair of this adapter.
func (w *worker) captureOut(tap *capture.Writer, p *outgoing, buf []byte) {
	comment := fmt.Sprintf("qp 0x%06x", uint32(p.q.qpn))
	if p.resend {
		comment += " re-sent"
	}
	w.captured(tap.WritePacket(capture.Packet{
		Time: w.now, Src: p.from(), Dst: p.route.dst, SrcPort: p.port, DstPort: udp4791.Port,
		TOS: p.tos, TTL: p.ttl, ID: p.id, IDKnown: p.route.dst.Is4(), Payload: buf, Comment: comment, Outbound: true,
	}))
}

// captured stops a capture that can no longer be written.
func (w *worker) captured(err error) {
	if err == nil {
		return
	}
	if w.a.tap.Swap(nil) != nil {
		w.a.log.Error("the capture stopped", keyErr, err)
	}
}

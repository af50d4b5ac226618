package nic

import (
	"fmt"
	"strings"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/udp4791"
)

// captureIn writes a received packet with what became of it.
func (w *worker) captureIn(tap *capture.Writer, meta *udp4791.RecvMeta, buf []byte, v *icrcVerdict, verdict string) {
	w.captured(tap.WritePacket(capture.Packet{
		Time: w.now, Src: meta.Src.Addr(), Dst: meta.Dst, SrcPort: meta.Src.Port(), DstPort: udp4791.Port,
		TOS: meta.TOS, TTL: meta.TTL, ID: v.id, IDKnown: v.idKnown, Payload: buf, Comment: verdict,
	}))
}

// captureOut writes a packet that the kernel took.
func (w *worker) captureOut(tap *capture.Writer, s *udp4791.SendSlot, m *outgoing) {
	comment := ""
	if m.tx.resend {
		comment = "re-sent"
	}
	if m.q != nil {
		comment = strings.TrimSpace(fmt.Sprintf("qp 0x%06x %s", uint32(m.q.qpn), comment))
	}
	w.captured(tap.WritePacket(capture.Packet{
		Time: w.now, Src: m.tx.src, Dst: s.Dst, SrcPort: m.tx.srcPort, DstPort: udp4791.Port,
		TOS: s.TOS, TTL: s.TTL, ID: m.id, IDKnown: bth.GIDFromAddr(s.Dst).Is4(), Payload: s.Buf, Comment: comment, Outbound: true,
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

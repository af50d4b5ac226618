package tiny

import (
	"encoding/binary"

	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

// Of the connection manager's datagrams (IBTA Vol 1 §12), as much as an answer needs that nobody is there.
const (
	madLen        = 256
	classCM       = 0x07
	attrSIDRReq   = 0x17
	attrSIDRRep   = 0x18
	sidrNoService = 1 // status: the service ID is not supported
)

// generalService is queue pair 1 when no program has it: it answers that there is no such service.
func (t *Target) generalService(p *packet) {
	if p.Opcode != bth.UDSendOnly || p.h.DETH.QKey != bth.GSIQKey && !t.broken("gsi-any-qkey") {
		t.counts["bad_qkey"]++
		return
	}
	mad := p.Payload
	if len(mad) != madLen || mad[1] != classCM || binary.BigEndian.Uint16(mad[16:]) != attrSIDRReq {
		return
	}
	answer := make([]byte, madLen)
	copy(answer, mad[:28]) // the common header, and the request's id
	binary.BigEndian.PutUint16(answer[16:], attrSIDRRep)
	answer[28] = sidrNoService
	w := &wire.Packet{Dst: p.src, Payload: answer}
	w.BTH = bth.BTHFields{Opcode: bth.UDSendOnly, MigReq: true, PKey: bth.DefaultPKey, DestQP: p.h.DETH.SrcQP}
	w.DETH = bth.DETHFields{QKey: bth.GSIQKey, SrcQP: bth.GSIQPN}
	_ = t.link.Send(w)
}

package nic

import (
	"net/netip"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
)

// cmRequest makes the body of a request of the connection manager; nil for
// another one.
func (h *hostile) cmRequest(op uapi.Op) uapi.Body {
	switch {
	case op == uapi.OpCreateCMID:
		return &uapi.CreateCMIDRequest{Channel: 1 + h.Uint32N(2), Space: uint32(h.pick(uint64(cm.SpaceTCP), uint64(cm.SpaceUDP), uint64(cm.SpaceUDP), 0, 1<<31))}
	case op == uapi.OpBindCM || op == uapi.OpResolveCMAddr:
		return &uapi.CMAddrRequest{ID: h.handle(), Own: h.cmAddr(), Peer: h.cmAddr()}
	case op == uapi.OpConnectCM || op == uapi.OpAcceptCM || op == uapi.OpRejectCM:
		m := &uapi.CMCallRequest{ID: h.handle(), Reason: h.Uint32N(40), Private: make([]byte, h.pick(0, 1, 56, 57, 136, 180, 181, 224))}
		m.Param = uapi.CMParam{QPN: bth.QPN(h.pick(0, 1, 2, uint64(h.Uint32N(1<<24)))), ResponderResources: uint8(h.UintN(256)), RetryCount: uint8(h.UintN(256))}
		return m
	case op == uapi.OpListenCM || op == uapi.OpNotifyCM || op == uapi.OpMigrateCM || op == uapi.OpQPAttrCM || op == uapi.OpSetCMOption:
		return &uapi.CMValueRequest{ID: h.handle(), Value: uint32(h.pick(0, 1, 2, 3, 4, 255, 1<<32-1)), Option: h.Uint32N(6)}
	case op == uapi.OpJoinCM || op == uapi.OpLeaveCM:
		return &uapi.CMMcastRequest{ID: h.handle(), Flags: h.Uint32N(3), Group: h.group()}
	case op >= uapi.OpDestroyCMChannel && op <= uapi.OpLeaveCM:
		return &uapi.HandleRequest{Handle: h.handle()}
	}
	return nil
}

// cmAddr is one of few addresses, so that programs meet.
func (h *hostile) cmAddr() uapi.CMAddr {
	a := uapi.CMAddr{Port: uint16(h.pick(0, 5000, 5001, 40000, 7))}
	switch h.IntN(6) {
	case 0:
		a.GID = bth.GIDFromAddr(netip.IPv4Unspecified())
	case 1:
	case 2:
		a.GID = h.group()
	default:
		a.GID = h.gid
	}
	return a
}

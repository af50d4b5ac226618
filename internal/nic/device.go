package nic

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"net/netip"
	"syscall"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/udp4791"
)

// Values of the verbs API (ibv_device_cap_flags and others, see
// ibv_query_device(3)). Only what is implemented is set: programs switch features on by them.
const (
	capBadPKeyCounter   = 1 << 1
	capBadQKeyCounter   = 1 << 2
	capCurrQPStateMod   = 1 << 7
	capPortActiveEvent  = 1 << 10
	capSysImageGUID     = 1 << 11
	capRCRNRNAKGen      = 1 << 12
	capSRQResize        = 1 << 13
	capMemWindow        = 1 << 17
	capMemMgtExtensions = 1 << 21 // fast registration, invalidation, SEND_WITH_INV
	capMemWindowType2B  = 1 << 24

	// ibv_odp_general_caps and ibv_odp_transport_cap_bits.
	odpSupport, odpImplicit                                = 1 << 0, 1 << 1
	odpSend, odpRecv, odpWrite, odpRead, odpAtomic, odpSRQ = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5

	atomicHCA          = 1
	portDown           = 1
	portActive         = 4
	portCapIPBasedGIDs = 1 << 26
	physPolling        = 2
	physDisabled       = 3
	physLinkUp         = 5
	linkLayerEthernet  = 2
	portGRHRequired    = 1
	width1X            = 1
	speedFDR10         = 8 // 10 Gb/s a lane
	pageSizeCap        = 0xfffff000
	vendorNone         = 0xffffff
	localCAAckDelay    = 15
	maxMessageSize     = 1 << 30
)

// deviceCaps are what is there whatever the configuration.
const deviceCaps = capBadPKeyCounter | capBadQKeyCounter | capCurrQPStateMod | capPortActiveEvent | capSysImageGUID |
	capRCRNRNAKGen | capSRQResize | capMemWindow | capMemMgtExtensions | capMemWindowType2B

// Our own tuning.
const (
	gidTableLen = udp4791.MaxAddrs
	fwVersion   = "softroce-1"
)

func (p *program) queryDevice(*uapi.QueryDeviceRequest) (reply, error) {
	return reply{body: &uapi.QueryDeviceReply{Attr: p.a.deviceAttr()}}, nil
}

func (a *Adapter) deviceAttr() uapi.DeviceAttr {
	l := &a.cfg.Limits
	q := &l.Program
	rd := uint32(l.MaxRDAtomic)
	groups, attached, total := uint32(maxMcastGroups), uint32(maxMcastAttached), clamp32(q.Mcast)
	if a.cfg.Backend == BackendTUN { // a host routes no multicast there
		groups, attached, total = 0, 0, 0
	}
	return uapi.DeviceAttr{
		FWVersion: fwVersion, NodeGUID: a.guid, SysImageGUID: a.guid,
		MaxMRSize: min(q.RegisteredBytes, math.MaxInt64), PageSizeCap: pageSizeCap,
		VendorID: vendorNone, DeviceCapFlags: deviceCaps,
		MaxQP: clamp32(q.QPs), MaxQPWR: min(l.MaxSendWR, l.MaxRecvWR), MaxSGE: l.MaxSGE, MaxSGERead: l.MaxSGE,
		MaxCQ: clamp32(q.CQs), MaxCQE: l.MaxCQE, MaxMR: clamp32(q.MRs), MaxMW: clamp32(q.MWs), MaxPD: clamp32(q.PDs),
		MaxQPRDAtomic: rd, MaxQPInitRDAtomic: rd, MaxResRDAtomic: clamp32(q.QPs * uint64(rd)),
		AtomicCap: atomicHCA, MaxInline: l.MaxInline, NumCompVectors: a.numCompVectors(),
		MaxAH: clamp32(q.AHs), MaxSRQ: clamp32(q.SRQs), MaxSRQWR: l.MaxRecvWR, MaxSRQSGE: l.MaxSGE,
		MaxMcastGroup: groups, MaxMcastQPAttach: attached, MaxTotalMcastQPAttach: total,
		MaxPKeys: 1, LocalCAAckDelay: localCAAckDelay, PhysPortCount: 1,
		ODPGeneral: odpSupport | odpImplicit, ODPRC: odpSend | odpRecv | odpWrite | odpRead | odpAtomic | odpSRQ,
		ODPUC: odpSend | odpRecv | odpWrite | odpSRQ, ODPUD: odpSend | odpRecv | odpSRQ,
		CompletionTimestampMask: math.MaxUint64, HCACoreClock: hcaCoreClock,
	}
}

func clamp32(v uint64) uint32 { return uint32(min(v, math.MaxInt32)) }

// guidOf is the EUI-64 of a locally administered MAC made of an address, the
// adapter's first: the same after a restart, and another one for each adapter of
// a host, which the interface's MAC would not be.
func guidOf(addr netip.Addr) uint64 {
	mac := [6]byte{0x02}
	if addr.Is4() {
		b := addr.As4()
		copy(mac[2:], b[:])
	} else {
		b := addr.As16()
		h := fnv.New64a()
		h.Write(b[:])
		copy(mac[1:], binary.BigEndian.AppendUint64(nil, h.Sum64()))
	}
	eui := [8]byte{mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]}
	return binary.BigEndian.Uint64(eui[:])
}

func (p *program) queryPort(m *uapi.QueryPortRequest) (reply, error) {
	if m.Port != 1 {
		return reply{}, refuse(syscall.EINVAL, "port %d: the device has port 1 only", m.Port)
	}
	return reply{body: &uapi.QueryPortReply{Attr: p.a.portAttr()}}, nil
}

func (a *Adapter) portAttr() uapi.PortAttr {
	p := a.port.Load()
	state, phys := uint8(portActive), uint8(physLinkUp)
	switch {
	case p.up:
	case p.enabled:
		state, phys = portDown, physPolling
	default:
		state, phys = portDown, physDisabled
	}
	pkeys, qkeys := a.violations()
	return uapi.PortAttr{
		BadPKeyCounter: pkeys, QKeyViolations: qkeys,
		GIDTableLen: gidTableLen, CapFlags: portCapIPBasedGIDs, MaxMessageSize: maxMessageSize, LinkMTU: uint32(p.linkMTU),
		PKeyTableLen: 1, State: state, MaxMTU: bth.MTU4096, ActiveMTU: activeMTU(p.linkMTU), MaxVLNum: 1,
		ActiveWidth: width1X, ActiveSpeed: speedFDR10, PhysState: phys, LinkLayer: linkLayerEthernet, Flags: portGRHRequired,
	}
}

func (p *program) queryGIDTable(*uapi.QueryGIDTableRequest) (reply, error) {
	entries := p.a.gids.load()
	r := &uapi.QueryGIDTableReply{}
	for i := range entries {
		if e := &entries[i]; e.addr.IsValid() {
			r.Entries = append(r.Entries, uapi.GIDEntry{
				GID: e.gid, Index: uint32(i), Type: uapi.GIDTypeRoCEv2, IfIndex: uint32(e.ifindex),
			})
		}
	}
	return reply{body: r}, nil
}

package verbs

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
)

// AH is an address handle (ibv_ah): where a datagram goes.
type AH struct {
	pd     *PD
	handle atomic.Uint32 // 0 when destroyed
}

// CreateAH makes an address handle (ibv_create_ah). EINVAL: the port is not 1,
// the table has no such sgid_index, IsGlobal is false, or the address is none;
// ENETUNREACH: no way there; ENOMEM: a limit is reached.
func (p *PD) CreateAH(attr *AHAttr) (*AH, error) {
	var rep uapi.HandleReply
	if err := p.dev.ctl.do("create AH", uapi.OpCreateAH, &uapi.CreateAHRequest{PD: p.handle, Attr: *attr}, &rep); err != nil {
		return nil, err
	}
	h := &AH{pd: p}
	h.handle.Store(rep.Handle)
	return h, nil
}

// CreateAHFromWC makes the handle that answers a datagram (ibv_create_ah_from_wc).
// wc and grh as for [Device.InitAHFromWC].
func (p *PD) CreateAHFromWC(port uint8, wc *WC, grh []byte) (*AH, error) {
	attr, err := p.dev.InitAHFromWC(port, wc, grh)
	if err != nil {
		return nil, err
	}
	return p.CreateAH(&attr)
}

// Handle is what the AH field of a SendWR takes. It is 0 once the handle is
// destroyed, which PostSend refuses.
func (h *AH) Handle() uint32 { return h.handle.Load() }

// Destroy ends the handle (ibv_destroy_ah). Requests that were posted before go
// where it said; one that is posted later with its number fails with
// WCLocQPOpErr.
func (h *AH) Destroy() error {
	n := h.handle.Swap(0)
	if n == 0 {
		return invalid("destroy AH", "the address handle is destroyed")
	}
	return h.pd.dev.ctl.do("destroy AH", uapi.OpDestroyAH, &uapi.HandleRequest{Handle: n}, nil)
}

// GRHSize is how many bytes in front of a datagram's payload the header area
// takes in a receive buffer.
const GRHSize = 40

// InitAHFromWC makes the address vector that answers a datagram
// (ibv_init_ah_from_wc). wc is its completion, grh the first GRHSize bytes of its
// receive buffer, in network byte order: an IPv6 header, or an IPv4 header in the
// last 20. The address that the datagram came to gives sgid_index; where that
// was a multicast group, it is the first entry of the same family. EINVAL: wc has
// no GRH, grh is neither header, or the address is not in the GID table.
func (d *Device) InitAHFromWC(port uint8, wc *WC, grh []byte) (AHAttr, error) {
	const op = "init AH from WC"
	if wc.Flags&cq.GRH == 0 || len(grh) < GRHSize {
		return AHAttr{}, invalid(op, "the completion has no GRH, or there are less than %d bytes of it", GRHSize)
	}
	attr, to, ok := parseGRH(grh)
	if !ok {
		return AHAttr{}, invalid(op, "the header area holds neither an IPv4 nor an IPv6 header: %x", grh[:GRHSize])
	}
	table, err := d.GIDTable()
	if err != nil {
		return AHAttr{}, err
	}
	index, ok := sourceIndex(table, to)
	if !ok {
		return AHAttr{}, invalid(op, "the datagram came to %v, which is not in the GID table", to)
	}
	attr.SGIDIndex, attr.IsGlobal, attr.PortNum = index, true, port
	return attr, nil
}

// parseGRH reads the header area. The header that is there is told by its version
// and, where IPv6 would pass, too, by the checksum of IPv4.
func parseGRH(b []byte) (attr AHAttr, to netip.Addr, ok bool) {
	be := binary.BigEndian
	word := be.Uint32(b)
	attr.FlowLabel = word & 0xFFFFF
	v4, v6 := b[20]>>4 == 4, b[0]>>4 == 6
	switch {
	case v4 && (!v6 || b[20]&0xF == 5 && checksum(b[20:40]) == 0):
		attr.DGID = bth.GIDFromAddr(netip.AddrFrom4([4]byte(b[32:36])))
		to = netip.AddrFrom4([4]byte(b[36:40]))
		attr.HopLimit, attr.TrafficClass = b[28], b[21]
	case v6:
		copy(attr.DGID[:], b[8:24])
		to = netip.AddrFrom16([16]byte(b[24:40]))
		attr.HopLimit, attr.TrafficClass = b[7], byte(word>>20)
	default:
		return attr, to, false
	}
	return attr, to, true
}

// checksum is the Internet checksum of a header, 0 when the one inside is right.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xFFFF {
		sum = sum>>16 + sum&0xFFFF
	}
	return ^uint16(sum)
}

// sourceIndex finds the entry of the table to answer from.
func sourceIndex(table []GIDEntry, to netip.Addr) (index uint8, ok bool) {
	for i := range table {
		a := table[i].GID.Addr()
		if a == to || to.IsMulticast() && a.Is4() == to.Is4() {
			return uint8(table[i].Index), true
		}
	}
	return 0, false
}

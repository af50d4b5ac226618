package cm

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
)

// ServiceID is what a REQ or SIDR_REQ is for. Those of RDMA IP CM name a port
// space and a port (IBTA Annex A11).
type ServiceID uint64

// PortSpace is the upper part of a service id of RDMA IP CM, as librdmacm's
// rdma_port_space. Port spaces are independent of each other, and of the IP
// stack's own ports.
type PortSpace uint16

// Port spaces.
const (
	SpaceTCP   PortSpace = 0x0106
	SpaceUDP   PortSpace = 0x0111
	SpaceIB    PortSpace = 0x013F
	SpaceIPoIB PortSpace = 0x0002
)

// String is the port space's name.
func (s PortSpace) String() string {
	switch s {
	case SpaceTCP:
		return "tcp"
	case SpaceUDP:
		return "udp"
	case SpaceIB:
		return "ib"
	case SpaceIPoIB:
		return "ipoib"
	}
	return "port space 0x" + strconv.FormatUint(uint64(s), 16)
}

// IPService is the service id of a port.
func IPService(space PortSpace, port uint16) ServiceID {
	return ServiceID(space)<<16 | ServiceID(port)
}

// Port is the port of a service id of RDMA IP CM.
func (s ServiceID) Port() uint16 { return uint16(s) }

// Space is the port space of a service id of RDMA IP CM.
func (s ServiceID) Space() PortSpace { return PortSpace(s >> 16) }

// String is the number, as kernel tools print it.
func (s ServiceID) String() string { return fmt.Sprintf("0x%016x", uint64(s)) }

// CMALen is the length of a CMA header, which begins the private data of REQ
// and SIDR_REQ.
const CMALen = 36

// CMA is the header of RDMA IP CM: which addresses a request is between (IBTA
// Annex A11.5). The destination's port is the service id's.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+-------+-------+-------------------------------+
//	|   version 0   | IPver | resv  |          source port          |
//	+---------------+-------+-------+-------------------------------+
//	|            source address, IPv4 in the last 4 of 16           |
//	+---------------------------------------------------------------+
//	|          destination address, IPv4 in the last 4 of 16        |
//	+---------------------------------------------------------------+
type CMA struct {
	Src netip.AddrPort
	Dst netip.Addr // of Src's family
}

// Put writes the header over the first CMALen bytes of b.
func (c *CMA) Put(b []byte) {
	clear(b[:CMALen])
	src, dst := c.Src.Addr(), c.Dst
	binary.BigEndian.PutUint16(b[2:], c.Src.Port())
	if src.Is4() {
		b[1] = 4 << 4
		s, d := src.As4(), dst.Unmap().As4()
		copy(b[16:], s[:])
		copy(b[32:], d[:])
		return
	}
	b[1] = 6 << 4
	s, d := src.As16(), dst.As16()
	copy(b[4:], s[:])
	copy(b[20:], d[:])
}

// ReadCMA reads the header at the beginning of b, at least CMALen bytes. The
// error says which version it does not know.
func ReadCMA(b []byte) (CMA, error) {
	if b[0] != 0 {
		return CMA{}, fmt.Errorf("read CMA header: version %d, not 0", b[0])
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch b[1] >> 4 {
	case 4:
		return CMA{
			Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:])), port),
			Dst: netip.AddrFrom4([4]byte(b[32:])),
		}, nil
	case 6:
		return CMA{
			Src: netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[4:])), port),
			Dst: netip.AddrFrom16([16]byte(b[20:])),
		}, nil
	}
	return CMA{}, fmt.Errorf("read CMA header: IP version %d", b[1]>>4)
}

package bth

import "net/netip"

// GID is a global identifier: on RoCEv2 an IPv6 address, or an IPv4 address in
// its IPv4-mapped form ::ffff:a.b.c.d (Annex A17).
type GID [16]byte

// GIDFromAddr returns the GID of an address; a zone is dropped. The zero Addr
// gives the zero GID.
func GIDFromAddr(a netip.Addr) GID {
	if !a.IsValid() {
		return GID{}
	}
	return GID(a.As16())
}

// Addr returns the IP address that g stands for: an IPv4 address when g is
// IPv4-mapped, an IPv6 address otherwise.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// Is4 reports whether g is IPv4-mapped, so that its packets are IPv4.
func (g GID) Is4() bool {
	return g == GID{10: 0xFF, 11: 0xFF, 12: g[12], 13: g[13], 14: g[14], 15: g[15]}
}

// IsMulticast reports whether g is a group: ff00::/8, or 224.0.0.0/4 mapped.
func (g GID) IsMulticast() bool {
	if g.Is4() {
		return g[12]&0xF0 == 0xE0
	}
	return g[0] == 0xFF
}

// IsZero reports whether g is the zero GID, which names nothing.
func (g GID) IsZero() bool { return g == GID{} }

// String gives g as the verbs tools print it, an IPv6 address; a mapped address
// as ::ffff:a.b.c.d.
func (g GID) String() string { return netip.AddrFrom16(g).String() }

package udp4791

import "net/netip"

// RecvMeta is what is known of a received datagram beside its bytes.
type RecvMeta struct {
	// Src is the sender's address and port. An IPv6 address carries no zone.
	Src netip.AddrPort
	// Dst is the local address the datagram came to, as given in the Config, or
	// the multicast group.
	Dst netip.Addr
	// TOS is the IPv4 type of service or the IPv6 traffic class, ECN in the
	// low two bits; TTL is the IPv4 TTL or the IPv6 hop limit on arrival.
	TOS, TTL uint8
	// ID is the IPv4 identification, valid when IDKnown, of the first datagram
	// where there are several: the others count up from it, or have the same.
	// A UDP socket never shows it.
	ID      uint16
	IDKnown bool
	// Truncated says that the datagram was longer than the buffer and its
	// end is lost.
	Truncated bool
	// Fault is what is wrong with the datagram's headers, where the backend sees
	// them. It is to be dropped then, and Buf is what there is of it.
	Fault Fault
	// SegIndex is the datagram's place in the receive-offload buffer it
	// came in; 0 without offload.
	SegIndex int
}

// RecvSlot is one received datagram, or several that came in one
// receive-offload buffer. Buf is the UDP payload, ICRC included; it and the
// slot belong to the endpoint and are valid until its next ReadBatch.
type RecvSlot struct {
	Buf []byte
	// Segment is 0 when Buf is one datagram. Else Buf holds datagrams of
	// Segment bytes each, the last of which may be shorter: all of one sender,
	// in the order they were sent (UDP_GRO, udp(7)). Meta.SegIndex is 0; the
	// caller counts.
	Segment int
	Meta    RecvMeta
}

// FlowID names a send socket of one endpoint. Flows opened for the same
// (local address, key, source port) share the socket and have the same
// FlowID. The zero value is never handed out.
type FlowID int32

// SendSlot is one datagram to send to UDP port 4791 of Dst, or several equal
// ones in one piece.
type SendSlot struct {
	// Flow is the send socket, from OpenFlow of the same endpoint.
	Flow FlowID
	// Dst is the peer's address, of the same family as the flow's local
	// address. A zone is ignored: a link-local peer is reached over the
	// interface of the local address.
	Dst netip.Addr
	// TOS is the IPv4 type of service or IPv6 traffic class; TTL the IPv4
	// TTL or IPv6 hop limit, 0 meaning DefaultTTL.
	TOS, TTL uint8
	// FlowLabel is the 20-bit IPv6 flow label; ignored on IPv4.
	FlowLabel uint32
	// Buf is the UDP payload, ICRC included. It is read during the call
	// only. nil or empty sends an empty datagram.
	Buf []byte
	// Segment is 0 when Buf is one datagram. Else Buf holds datagrams of
	// Segment bytes each, the last of which may be shorter, that the kernel
	// takes in one piece and cuts (UDP_SEGMENT, udp(7)): at most MaxSegments
	// of them and MaxSegmented bytes. Their IPv4 identifications are 0, 1, 2
	// and so on. The group must have Group.Segments.
	Segment int
}

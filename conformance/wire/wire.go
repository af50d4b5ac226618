// Package wire is the tester's end of the link: it sends any RoCEv2 packet with any field right or wrong, and shows every
// byte of what comes back. It owns Ethernet, IP and UDP headers, packet sockets, and the ICRC of what is sent; RoCE headers
// are pkg/bth's. It refuses queue pairs: what a packet means is the case's matter.
package wire

import (
	"net/netip"
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

// Port is RoCEv2's UDP port.
const Port = 4791

// Packet is one packet to send. The zero value of each field is what a correct sender would put there.
type Packet struct {
	bth.Headers
	Payload []byte
	// Pad is appended after the payload. Nil: as many zero bytes as the payload needs, with BTH.Pad set to their number.
	Pad []byte
	// Roce, unless nil, goes out in place of Headers, Payload and Pad.
	Roce []byte

	Src, Dst netip.Addr // zero: the link's own and its peer

	TOS       uint8  // of IPv4, or the traffic class of IPv6
	TTL       uint8  // or hop limit; 0: 64
	ID        uint16 // IPv4 identification
	Frag      uint16 // flags and fragment offset of IPv4 in place of don't-fragment, when FragSet
	FragSet   bool
	Options   []byte // IPv4 options, a multiple of 4 bytes
	FlowLabel uint32 // IPv6
	IPLen     int    // added to the right total length (IPv4) or payload length (IPv6)
	BadIPSum  bool   // a wrong IPv4 header checksum

	SrcPort, DstPort uint16 // 0: 0xC000 and Port
	SrcPortZero      bool   // SrcPort is really 0
	UDPLen           int    // added to the right UDP length
	UDPSum           UDPSum

	VLAN   int    // an 802.1Q tag with this TCI, when not 0
	Tagged bool   // a tag even though VLAN is 0 (a priority tag)
	Extra  []byte // trailing bytes of the frame, after the IP packet

	// ICRC, unless nil, makes the four bytes from the right value; no bytes: the packet ends without. It is called with
	// the value that a correct sender would append for the packet as described before Late.
	ICRC func(right uint32) []byte
	// Late changes the finished frame from the IP header on, ICRC included, just before it leaves.
	Late func(ip []byte)
}

// UDPSum says what the UDP checksum of a sent packet is.
type UDPSum uint8

// The UDP checksums.
const (
	SumZero UDPSum = iota
	SumRight
	SumWrong
)

// Direction of a recorded frame.
type Direction uint8

// The directions.
const (
	Sent Direction = iota
	Received
)

// Frame is a frame that was seen on the link, in either direction.
type Frame struct {
	Time time.Time
	Dir  Direction
	IP   []byte // from the IP header to the end of the IP packet; the caller's to keep
	Pad  []byte // what followed it in the Ethernet frame

	Tagged bool   // the frame had an 802.1Q tag
	VLAN   uint16 // its TCI

	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
	TOS, TTL         uint8
	ID, Frag         uint16 // IPv4
	UDPLen, UDPSum   uint16
	IPLen            int // the IP header's word about its packet's length, header included

	Roce   []byte     // UDP payload
	RoCE   bth.Packet // parsed from Roce
	Err    error      // of the parse
	ICRCOK bool
	NotUDP bool // not UDP to or from Port: an ICMP message for instance; only IP, Src and Dst hold then
}

// Link is where a tester stands: one address of its own and one peer.
type Link interface {
	// Local and Remote are its address and the target's.
	Local() netip.Addr
	Remote() netip.Addr
	// MTU is the largest IP packet in bytes.
	MTU() int
	// Send sends one packet.
	Send(p *Packet) error
	// SendRaw sends bytes from the IP header on.
	SendRaw(ip []byte) error
	// Receive returns the next frame from Remote or to Local that is RoCE (or ICMP), waiting until deadline at most; ok is
	// false when none came.
	Receive(deadline time.Time) (f *Frame, ok bool, err error)
	// Record calls f with every frame that is sent and received from now on, in order; nil ends it. f must not call the link.
	Record(f func(*Frame))
	Close() error
}

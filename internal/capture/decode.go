package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/softroce/softroce/pkg/bth"
)

// ErrLink says that there were frames of a link type that Decode does not understand.
var ErrLink = errors.New("read capture: link type not understood")

// Decode reads a pcap or pcapng file and calls f with one Record for every packet
// to UDP port 4791, in the order of the file; other packets are passed over. It
// understands Ethernet with VLAN tags, raw IP, Linux cooked captures and BSD
// loopback. The Record's strings are its own.
//
// It holds one frame at a time. Errors are ErrFormat, ErrLimit and those of r,
// after the packets before them; ErrLink, after all packets, when frames had to
// be left out.
func Decode(r io.Reader, f func(Record)) error {
	_, err := DecodeAll(r, f)
	return err
}

// DecodeAll is Decode that also counts the frames of the file, those that are no
// RoCEv2 packets among them.
func DecodeAll(r io.Reader, f func(Record)) (frames int, err error) {
	src, err := openSource(r)
	if err != nil {
		return 0, err
	}
	var (
		fr      frame
		strange error
		skipped int
	)
	for number := 1; ; number++ {
		if err := src.next(&fr); err != nil {
			if errors.Is(err, io.EOF) {
				break
			}
			return number - 1, err
		}
		frames = number
		if !knownLink(fr.link) {
			skipped++
			strange = fmt.Errorf("%w: %d frames left out, the last of type %d", ErrLink, skipped, fr.link)
			continue
		}
		if rec, ok := decodeFrame(&fr); ok {
			rec.Number = number
			f(rec)
		}
	}
	return frames, strange
}

// decodeFrame describes a frame; ok is false when it is no packet to port 4791.
func decodeFrame(f *frame) (rec Record, ok bool) {
	d, ok := locate(ipOf(f.link, f.data))
	if !ok {
		return Record{}, false
	}
	rec = Record{
		Time: f.time, Src: netip.AddrPortFrom(d.src, d.srcPort), Dst: netip.AddrPortFrom(d.dst, rocePort),
		Comment: f.comment, Length: len(d.payload), Way: f.way, Raw: d.payload, Wire: d.wire,
	}
	rec.Cut = len(f.data) < f.length
	rec.TOS, rec.TTL = tosAndTTL(d.ip)
	want, got, err := bth.ICRCOfIPPacket(d.ip)
	switch {
	case err == nil:
		rec.WantICRC, rec.GotICRC, rec.ICRC = want, got, ICRCWrong
		if want == got {
			rec.ICRC = ICRCRight
		}
	case !rec.Cut:
		rec.Malformed = err.Error()
	}
	rec.describe(d.payload)
	return rec, true
}

// datagram is a UDP datagram to port 4791, as far as it was captured.
type datagram struct {
	ip       []byte // from the IP header on
	src, dst netip.Addr
	srcPort  uint16
	payload  []byte // up to the end that the UDP length names, or that was captured
	wire     int    // its length by the UDP header
}

// locate finds a UDP datagram to port 4791 behind an IP header with or without
// options and extension headers, so that packets which RoCEv2 forbids are named
// rather than passed over. Fragments but the first have no port and are not
// found.
func locate(ip []byte) (d datagram, ok bool) {
	d.ip = ip
	var udp []byte
	switch {
	case len(ip) >= ipv4Len && ip[0]>>4 == 4:
		hdr := int(ip[0]&0x0F) * 4
		if ip[9] != protocolUDP || hdr < ipv4Len || hdr > len(ip) || binary.BigEndian.Uint16(ip[6:])&0x1FFF != 0 {
			return d, false
		}
		d.src, d.dst = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
		udp = ip[hdr:]
	case len(ip) >= ipv6Len && ip[0]>>4 == 6:
		d.src, d.dst = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		if udp = behindExtensions(ip[6], ip[ipv6Len:]); udp == nil {
			return d, false
		}
	default:
		return d, false
	}
	if len(udp) < udpLen || binary.BigEndian.Uint16(udp[2:]) != rocePort {
		return d, false
	}
	d.srcPort = binary.BigEndian.Uint16(udp)
	end := min(max(int(binary.BigEndian.Uint16(udp[4:])), udpLen), len(udp))
	d.payload, d.wire = udp[udpLen:end], max(int(binary.BigEndian.Uint16(udp[4:]))-udpLen, end-udpLen)
	return d, true
}

// tosAndTTL are the type of service and the time to live of an IP header, or
// IPv6's words for them.
func tosAndTTL(ip []byte) (tos, ttl uint8) {
	if ip[0]>>4 == 4 {
		return ip[1], ip[8]
	}
	return ip[0]<<4 | ip[1]>>4, ip[7]
}

// behindExtensions returns the UDP header behind a chain of IPv6 extension
// headers, nil when there is none.
func behindExtensions(next uint8, b []byte) []byte {
	const maxExtensions = 8 // our own limit
	for range maxExtensions {
		switch next {
		case protocolUDP:
			return b
		case 0, 43, 60: // hop-by-hop, routing, destination options
			if len(b) < 2 || len(b) < 8+int(b[1])*8 {
				return nil
			}
			next, b = b[0], b[8+int(b[1])*8:]
		case 44: // fragment
			if len(b) < 8 || binary.BigEndian.Uint16(b[2:])&^7 != 0 {
				return nil
			}
			next, b = b[0], b[8:]
		default:
			return nil
		}
	}
	return nil
}

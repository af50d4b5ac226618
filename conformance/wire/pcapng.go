package wire

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Numbers of pcapng (draft-ietf-opsawg-pcapng §4).
const (
	blockSection   = 0x0A0D0D0A
	blockInterface = 1
	blockPacket    = 6

	byteOrder  = 0x1A2B3C4D
	linkTypeIP = 101 // raw IP

	optEnd     = 0
	optComment = 1
	optFlags   = 2 // of a packet
	optTSResol = 9 // of an interface

	flagInbound  = 1
	flagOutbound = 2
)

// WritePcapng writes frames as a pcapng file of raw IP packets, with nanoseconds, each with its direction. What followed a packet
// in its Ethernet frame follows it in the file; a tag is said in the packet's comment.
func WritePcapng(w io.Writer, frames []*Frame) error {
	le := binary.LittleEndian
	section := le.AppendUint32(nil, byteOrder)
	section = append(section, 1, 0, 0, 0)                     // version 1.0
	section = le.AppendUint64(section, 0xFFFF_FFFF_FFFF_FFFF) // no length
	iface := []byte{linkTypeIP, 0, 0, 0, 0, 0, 0, 0}          // no limit
	iface = appendOption(iface, optTSResol, []byte{9})
	iface = appendOption(iface, optEnd, nil)
	b := appendBlock(appendBlock(nil, blockSection, section), blockInterface, iface)
	for _, f := range frames {
		b = appendBlock(b, blockPacket, packetBody(f))
		if len(b) < 1<<16 {
			continue
		}
		if _, err := w.Write(b); err != nil {
			return fmt.Errorf("write capture: %w", err)
		}
		b = b[:0]
	}
	if _, err := w.Write(b); err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	return nil
}

// packetBody is an enhanced packet block between its lengths.
func packetBody(f *Frame) []byte {
	le := binary.LittleEndian
	ts := uint64(f.Time.UnixNano())
	n := uint32(len(f.IP) + len(f.Pad))
	b := make([]byte, 4, 64+n) // interface 0
	b = le.AppendUint32(le.AppendUint32(b, uint32(ts>>32)), uint32(ts))
	b = le.AppendUint32(le.AppendUint32(b, n), n)
	b = align(append(append(b, f.IP...), f.Pad...))
	flags := []byte{flagInbound, 0, 0, 0}
	if f.Dir == Sent {
		flags[0] = flagOutbound
	}
	b = appendOption(b, optFlags, flags)
	if f.Tagged {
		b = appendOption(b, optComment, fmt.Appendf(nil, "802.1Q tag, TCI %#04x", f.VLAN))
	}
	return appendOption(b, optEnd, nil)
}

func appendOption(b []byte, code uint16, v []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(le.AppendUint16(b, code), uint16(len(v)))
	return align(append(b, v...))
}

func appendBlock(b []byte, kind uint32, body []byte) []byte {
	le := binary.LittleEndian
	n := uint32(12 + len(body))
	b = le.AppendUint32(le.AppendUint32(b, kind), n)
	return le.AppendUint32(append(b, body...), n)
}

// align appends zero bytes up to a multiple of four: everything in the file begins at one.
func align(b []byte) []byte { return append(b, "\x00\x00\x00"[:-len(b)&3]...) }

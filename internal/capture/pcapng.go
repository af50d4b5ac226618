package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"time"
)

// The pcapng format (draft-ietf-opsawg-pcapng §3, §4): blocks of type, length,
// body and length again. A section header block sets the byte order.
const (
	blockSection   = 0x0A0D0D0A
	blockInterface = 1
	blockObsolete  = 2 // packet block, superseded
	blockSimple    = 3
	sectionMagic   = 0x1A2B3C4D

	optTimeResolution = 9  // of an interface block
	optTimeOffset     = 14 // of an interface block
)

// ngInterface is what a packet needs to know of its interface.
type ngInterface struct {
	link       uint32
	snapLen    uint32
	resolution uint8 // as the option has it: 10^-n, or 2^-n with bit 7 set
	offset     int64 // seconds
}

// pcapng reads a pcapng file.
type pcapng struct {
	r          io.Reader
	order      binary.ByteOrder // nil before the first section header
	interfaces []ngInterface
	head       [12]byte
	buf        []byte
}

// next implements source: it reads blocks up to the next packet.
func (p *pcapng) next(f *frame) error {
	for {
		typ, body, err := p.block()
		if err != nil {
			return err
		}
		found := false
		switch typ {
		case blockSection:
			p.interfaces = p.interfaces[:0]
		case blockInterface:
			err = p.addInterface(body)
		case blockPacket, blockObsolete:
			found, err = true, p.packet(f, typ, body)
		case blockSimple:
			found, err = true, p.simple(f, body)
		}
		if found || err != nil {
			return err
		}
	}
}

// block reads one block. The body of a type that is not of interest is skipped
// and nil; other bodies are valid until the next call.
func (p *pcapng) block() (typ uint32, body []byte, err error) {
	h := p.head[:8]
	if n, err := io.ReadFull(p.r, h); err != nil {
		if n == 0 && errors.Is(err, io.EOF) {
			return 0, nil, io.EOF
		}
		return 0, nil, fmt.Errorf("%w: file ends inside a block header", ErrFormat)
	}
	used := 8
	if binary.LittleEndian.Uint32(h) == blockSection { // the same in both orders
		if err := p.startSection(); err != nil {
			return 0, nil, err
		}
		used = 12
	}
	if p.order == nil {
		return 0, nil, fmt.Errorf("%w: no section header", ErrFormat)
	}
	typ = p.order.Uint32(h)
	total := p.order.Uint32(h[4:])
	if total < uint32(used)+4 || total%4 != 0 {
		return 0, nil, fmt.Errorf("%w: a block of %d bytes", ErrFormat, total)
	}
	rest := int64(total) - int64(used)
	switch typ {
	case blockInterface, blockPacket, blockObsolete, blockSimple:
	default: // also the rest of a section header, whose options say nothing here
		n, err := io.CopyN(io.Discard, p.r, rest)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, nil, fmt.Errorf("read capture: %w", err)
		}
		if n < rest {
			return 0, nil, fmt.Errorf("%w: file ends inside a block", ErrFormat)
		}
		return typ, nil, nil
	}
	if total > maxBlock {
		return 0, nil, fmt.Errorf("%w: a block of %d bytes, limit %d", ErrLimit, total, maxBlock)
	}
	p.buf = grow(p.buf, int(rest))
	if err := readFull(p.r, p.buf, "a block"); err != nil {
		return 0, nil, err
	}
	body = p.buf[:rest-4]
	if p.order.Uint32(p.buf[rest-4:]) != total {
		return 0, nil, fmt.Errorf("%w: a block's two lengths differ", ErrFormat)
	}
	return typ, body, nil
}

// startSection reads the byte-order magic of a section header.
func (p *pcapng) startSection() error {
	magic := p.head[8:12]
	if err := readFull(p.r, magic, "a section header"); err != nil {
		return err
	}
	switch {
	case binary.LittleEndian.Uint32(magic) == sectionMagic:
		p.order = binary.LittleEndian
	case binary.BigEndian.Uint32(magic) == sectionMagic:
		p.order = binary.BigEndian
	default:
		return fmt.Errorf("%w: byte-order magic % x", ErrFormat, magic)
	}
	return nil
}

// addInterface reads an interface description block.
func (p *pcapng) addInterface(b []byte) error {
	if len(b) < 8 {
		return fmt.Errorf("%w: interface block too short", ErrFormat)
	}
	if len(p.interfaces) == maxInterfaces {
		return fmt.Errorf("%w: more than %d interfaces", ErrLimit, maxInterfaces)
	}
	i := ngInterface{link: uint32(p.order.Uint16(b)), snapLen: p.order.Uint32(b[4:]), resolution: 6}
	p.options(b[8:], func(code uint16, v []byte) {
		switch {
		case code == optTimeResolution && len(v) >= 1:
			i.resolution = v[0]
		case code == optTimeOffset && len(v) >= 8:
			i.offset = int64(p.order.Uint64(v))
		}
	})
	p.interfaces = append(p.interfaces, i)
	return nil
}

// packet reads an enhanced packet block, or its obsolete form, which differs in
// the first word only.
func (p *pcapng) packet(f *frame, typ uint32, b []byte) error {
	if len(b) < 20 {
		return fmt.Errorf("%w: packet block too short", ErrFormat)
	}
	index := p.order.Uint32(b)
	if typ == blockObsolete {
		index = uint32(p.order.Uint16(b))
	}
	if int64(index) >= int64(len(p.interfaces)) {
		return fmt.Errorf("%w: packet of interface %d of %d", ErrFormat, index, len(p.interfaces))
	}
	i := p.interfaces[index]
	n := p.order.Uint32(b[12:])
	if int64(n) > int64(len(b)-20) {
		return fmt.Errorf("%w: a frame of %d bytes in a block of %d", ErrFormat, n, len(b))
	}
	if n > maxFrame {
		return fmt.Errorf("%w: a frame of %d bytes, limit %d", ErrLimit, n, maxFrame)
	}
	*f = frame{
		link: i.link, time: i.timeOf(uint64(p.order.Uint32(b[4:]))<<32 | uint64(p.order.Uint32(b[8:]))),
		data: b[20 : 20+n : 20+n], length: int(p.order.Uint32(b[16:])),
	}
	if padded := 20 + (int(n)+3)&^3; padded <= len(b) {
		p.options(b[padded:], func(code uint16, v []byte) {
			switch {
			case code == optComment:
				f.comment = string(v)
			case code == optFlags && len(v) >= 4:
				f.way = Direction(p.order.Uint32(v) & 3)
			}
		})
	}
	return nil
}

// simple reads a simple packet block: interface 0, no time.
func (p *pcapng) simple(f *frame, b []byte) error {
	if len(b) < 4 || len(p.interfaces) == 0 {
		return fmt.Errorf("%w: simple packet block too short or without interface", ErrFormat)
	}
	i := p.interfaces[0]
	n := p.order.Uint32(b)
	length := int(n)
	if i.snapLen != 0 {
		n = min(n, i.snapLen)
	}
	data := b[4:]
	if int64(n) > int64(len(data)) {
		return fmt.Errorf("%w: a frame of %d bytes in a block of %d", ErrFormat, n, len(b))
	}
	if n > maxFrame {
		return fmt.Errorf("%w: a frame of %d bytes, limit %d", ErrLimit, n, maxFrame)
	}
	*f = frame{link: i.link, data: data[:n:n], length: length}
	return nil
}

// options calls f with every option; it stops at the first that does not fit.
func (p *pcapng) options(b []byte, f func(code uint16, value []byte)) {
	for len(b) >= 4 {
		code, n := p.order.Uint16(b), int(p.order.Uint16(b[2:]))
		b = b[4:]
		if code == optEnd || n > len(b) {
			return
		}
		f(code, b[:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}

// timeOf converts a packet's time; the zero time for a resolution that no clock
// has.
func (i ngInterface) timeOf(ts uint64) time.Time {
	var perSecond uint64
	n := i.resolution & 0x7F
	switch {
	case i.resolution&0x80 != 0 && n <= 63:
		perSecond = 1 << n
	case i.resolution&0x80 == 0 && n <= 19:
		perSecond = 1
		for ; n > 0; n-- {
			perSecond *= 10
		}
	default:
		return time.Time{}
	}
	hi, lo := bits.Mul64(ts%perSecond, 1e9)
	nanos, _ := bits.Div64(hi, lo, perSecond)
	return time.Unix(int64(ts/perSecond)+i.offset, int64(nanos))
}

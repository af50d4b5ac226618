package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// The classic pcap format (draft-ietf-opsawg-pcap): a file header, then a record
// header before every frame, all in the byte order of the machine that wrote it.
const (
	pcapMicro     = 0xA1B2C3D4 // time in microseconds
	pcapNano      = 0xA1B23C4D // time in nanoseconds
	pcapHeaderLen = 24
	pcapRecordLen = 16
)

// pcap reads a classic pcap file.
type pcap struct {
	r     io.Reader
	order binary.ByteOrder
	nano  bool
	link  uint32
	head  [pcapRecordLen]byte
	buf   []byte
}

// newPcap reads the file header.
func newPcap(r io.Reader) (*pcap, error) {
	var h [pcapHeaderLen]byte
	if err := readFull(r, h[:], "the pcap header"); err != nil {
		return nil, err
	}
	p := &pcap{r: r}
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		switch order.Uint32(h[:]) {
		case pcapMicro:
			p.order = order
		case pcapNano:
			p.order, p.nano = order, true
		}
	}
	if p.order == nil {
		return nil, fmt.Errorf("%w: starts with % x", ErrFormat, h[:4])
	}
	// The upper half of the word is about frame check sequences.
	p.link = p.order.Uint32(h[20:]) & 0xFFFF
	return p, nil
}

// next implements source.
func (p *pcap) next(f *frame) error {
	h := p.head[:]
	if n, err := io.ReadFull(p.r, h); err != nil {
		switch {
		case n == 0 && errors.Is(err, io.EOF):
			return io.EOF
		case errors.Is(err, io.ErrUnexpectedEOF):
			return fmt.Errorf("%w: file ends inside a record header", ErrFormat)
		}
		return fmt.Errorf("read capture: %w", err)
	}
	n := p.order.Uint32(h[8:])
	if n > maxFrame {
		return fmt.Errorf("%w: a frame of %d bytes, limit %d", ErrLimit, n, maxFrame)
	}
	frac := time.Duration(p.order.Uint32(h[4:]))
	if !p.nano {
		frac *= time.Microsecond
	}
	p.buf = grow(p.buf, int(n))
	*f = frame{
		link: p.link, time: time.Unix(int64(p.order.Uint32(h)), int64(frac)), data: p.buf,
		length: int(p.order.Uint32(h[12:])),
	}
	return readFull(p.r, p.buf, "a frame")
}

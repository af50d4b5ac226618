package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"sync"
	"time"

	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// ErrAddress says that source and destination are not two addresses of one IP version.
var ErrAddress = errors.New("write packet: source and destination are not of one IP version")

// ErrPayloadSize says that no UDP datagram holds a payload of this size.
var ErrPayloadSize = errors.New("write packet: payload exceeds a UDP datagram")

// Packet is a RoCEv2 packet and what is known of its IP and UDP headers.
type Packet struct {
	Time      time.Time  // when it was sent or received
	Src, Dst  netip.Addr // both IPv4 (or IPv4-mapped), or both IPv6
	SrcPort   uint16
	DstPort   uint16 // 0 means 4791
	TOS       uint8  // IPv4 type of service or IPv6 traffic class
	TTL       uint8  // time to live or hop limit; 0 means not known
	ID        uint16 // IPv4 identification, when IDKnown
	IDKnown   bool   // ID was sent, seen on the wire or learned
	Payload   []byte // UDP payload, BTH to ICRC; only read during the call
	Comment   string // goes into the packet's comment, before what is not known
	Outbound  bool   // sent by us, otherwise received
	FlowLabel uint32 // IPv6 flow label of a packet sent by us, 20 bits
}

// WriterOptions describe the capture to its readers. The zero value is usable.
type WriterOptions struct {
	// Description says what the interface is; empty for none.
	Description string
	// Comment says something about the whole file; empty for none.
	Comment string
	// BufferSize bounds what is held back before it goes to the io.Writer, in
	// bytes; 0 means 64 KiB.
	BufferSize int
}

// defaultBufferSize is our own choice.
const defaultBufferSize = 64 << 10

// Writer writes packets to a pcapng file of link type raw IP, with nanoseconds.
// Its methods may be called from several goroutines. After a write error every
// later call returns that error: the file has ended there.
type Writer struct {
	mu    sync.Mutex
	out   *bufio.Writer
	block []byte // scratch for one block
	note  []byte // scratch for one comment
	err   error
}

// NewWriter writes the file's head to w and returns a Writer for its packets.
// name is the interface's name in the file. Packets are held back until Flush, or
// until the buffer is full; the caller closes w after the last Flush.
func NewWriter(w io.Writer, name string, opts WriterOptions) (*Writer, error) {
	head := pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "softroce", Comment: opts.Comment}}
	intf := pcapgo.NgInterface{
		Name: name, Description: opts.Description, LinkType: layers.LinkType(linkRaw), TimestampResolution: 9,
	}
	size := opts.BufferSize
	if size <= 0 {
		size = defaultBufferSize
	}
	out := bufio.NewWriterSize(w, size)
	ng, err := pcapgo.NewNgWriterInterface(out, intf, head)
	if err == nil {
		// From here on only our own blocks follow: pcapgo's packets carry no
		// comment and no direction.
		err = ng.Flush()
	}
	if err != nil {
		return nil, fmt.Errorf("start capture: %w", err)
	}
	return &Writer{out: out}, nil
}

// WritePacket adds a packet. What Packet does not tell of the headers is computed
// (lengths, checksums) or guessed and named in the comment: the identification of
// an IPv4 packet that is not known is the one that explains the packet's ICRC, if
// any does. ErrAddress and ErrPayloadSize leave the file as it is.
func (w *Writer) WritePacket(p Packet) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	if err := p.normalise(); err != nil {
		return err
	}
	w.note = p.complete(append(w.note[:0], p.Comment...))
	w.block = appendPacketBlock(w.block[:0], &p, w.note)
	if _, err := w.out.Write(w.block); err != nil {
		w.err = fmt.Errorf("write capture: %w", err)
	}
	return w.err
}

// Flush hands everything written so far to the io.Writer.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		if err := w.out.Flush(); err != nil {
			w.err = fmt.Errorf("write capture: %w", err)
		}
	}
	return w.err
}

// pcapng numbers (draft-ietf-opsawg-pcapng §4.3). Blocks are written little
// endian, as pcapgo writes the head.
const (
	blockPacket      = 6
	blockPacketFixed = 28 // type, length, interface, time, both lengths

	optEnd     = 0
	optComment = 1
	optFlags   = 2 // of a packet block

	flagInbound  = 1
	flagOutbound = 2
)

// appendPacketBlock appends an enhanced packet block with p's packet, its
// direction and its comment.
func appendPacketBlock(b []byte, p *Packet, comment []byte) []byte {
	le := binary.LittleEndian
	start := len(b)
	b = le.AppendUint32(b, blockPacket)
	b = append(b, make([]byte, blockPacketFixed-4)...)
	b = p.appendIP(b)
	capLen := len(b) - start - blockPacketFixed
	b = append(b, "\x00\x00\x00"[:-capLen&3]...)

	b = le.AppendUint16(b, optFlags)
	b = le.AppendUint16(b, 4)
	flags := uint32(flagInbound)
	if p.Outbound {
		flags = flagOutbound
	}
	b = le.AppendUint32(b, flags)
	if len(comment) > 0 {
		comment = comment[:min(len(comment), math.MaxUint16-3)]
		b = le.AppendUint16(b, optComment)
		b = le.AppendUint16(b, uint16(len(comment)))
		b = append(b, comment...)
		b = append(b, "\x00\x00\x00"[:-len(comment)&3]...)
	}
	b = le.AppendUint32(b, optEnd) // code and length

	total := uint32(len(b) - start + 4)
	b = le.AppendUint32(b, total)
	fixed := b[start:]
	ts := uint64(p.Time.UnixNano())
	le.PutUint32(fixed[4:], total)
	le.PutUint32(fixed[12:], uint32(ts>>32))
	le.PutUint32(fixed[16:], uint32(ts))
	le.PutUint32(fixed[20:], uint32(capLen))
	le.PutUint32(fixed[24:], uint32(capLen))
	return b
}

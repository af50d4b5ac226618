package rdmanet

import (
	"encoding/binary"
	"fmt"

	"github.com/softroce/softroce/pkg/verbs"
)

// Version is the version of the stream's protocol. Both ends must have the same.
const Version = 2

// helloSize is the length of a hello, in bytes.
const helloSize = 24

var helloMagic = [2]byte{'S', 'R'}

// A hello tells the peer where its data goes. Big-endian:
//
//	0 "SR"    2 version u8    3 zero    4 receives u16    6 zero
//	8 remote key u32    12 ring length u32    16 ring address u64
type hello struct {
	receives uint16 // messages that may come before any is granted
	rkey     verbs.RKey
	size     uint32
	addr     uint64
}

func (h *hello) encode() []byte {
	be := binary.BigEndian
	b := []byte{helloMagic[0], helloMagic[1], Version, 0}
	b = be.AppendUint16(b, h.receives)
	b = append(b, 0, 0)
	b = be.AppendUint32(b, uint32(h.rkey))
	b = be.AppendUint32(b, h.size)
	return be.AppendUint64(b, h.addr)
}

// readHello reads a hello; what follows it is not looked at.
func readHello(b []byte) (h hello, err error) {
	switch {
	case len(b) < helloSize || [2]byte(b) != helloMagic:
		return h, fmt.Errorf("rdmanet: the peer speaks another protocol")
	case b[2] != Version:
		return h, fmt.Errorf("rdmanet: the peer speaks version %d, this is %d", b[2], Version)
	}
	be := binary.BigEndian
	h = hello{
		receives: be.Uint16(b[4:]), rkey: verbs.RKey(be.Uint32(b[8:])), size: be.Uint32(b[12:]), addr: be.Uint64(b[16:]),
	}
	if h.receives < minReceives || h.receives > maxReceives || h.size < minBuffer || h.size > maxBuffer {
		return h, fmt.Errorf("rdmanet: the peer has %d receives and a buffer of %d bytes", h.receives, h.size)
	}
	return h, nil
}

// A message is the immediate data of a RDMA WRITE, which may be of no bytes.
//
//	31..30 kind    29..20 receives granted    19..0 bytes
//	31..30 kind    29..0 taken                             kindClose
type message uint32

// Kinds of messages.
const (
	kindData   = 0 // so many bytes were written, behind those before
	kindUpdate = 1 // so many bytes of the ring are free again
	kindEnd    = 2 // no more data follows
	kindClose  = 3 // nothing follows; so many bytes were taken in, in all, modulo 1<<30
)

// maxBytes and maxGrant are the most that a message tells, and maxTaken the last
// one's.
const (
	maxBytes = 1<<20 - 1
	maxGrant = 1<<10 - 1
	maxTaken = 1<<30 - 1
)

func newMessage(kind, grant, bytes uint32) message {
	return message(kind<<30 | grant<<20 | bytes)
}

// closeMessage is the last one of an end that has taken in so many bytes.
func closeMessage(taken uint64) message {
	return kindClose<<30 | message(taken&maxTaken)
}

func (m message) kind() uint32  { return uint32(m) >> 30 }
func (m message) grant() uint32 { return uint32(m) >> 20 & maxGrant }
func (m message) bytes() uint32 { return uint32(m) & maxBytes }
func (m message) taken() uint32 { return uint32(m) & maxTaken }

package rping

import (
	"encoding/binary"
	"fmt"
)

// infoSize is the size of every SEND.
const infoSize = 16

// info says where a buffer is.
type info struct {
	addr uint64
	rkey uint32
	size uint32
}

func (i info) put(b []byte) {
	binary.BigEndian.PutUint64(b, i.addr)
	binary.BigEndian.PutUint32(b[8:], i.rkey)
	binary.BigEndian.PutUint32(b[12:], i.size)
}

func parseInfo(b []byte) info {
	return info{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}
}

// The characters of a ping's data: from one ping to the next it begins one later.
const (
	firstChar = 'A'
	lastChar  = 'z'
)

// fill writes the data of ping n: its name, then characters in turn, then a zero.
func fill(b []byte, n int) {
	name := fmt.Sprintf("rdma-ping-%d: ", n)
	at := copy(b, name)
	const chars = lastChar - firstChar + 1
	for i := at; i < len(b); i++ {
		b[i] = byte(firstChar + (n+i-at)%chars)
	}
	b[len(b)-1] = 0
}

// text is data up to its first zero.
func text(b []byte) []byte {
	for i, c := range b {
		if c == 0 {
			return b[:i]
		}
	}
	return b
}

package bth

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
)

// ErrCRC is the error of SetCRC for a name that is not in CRCPaths.
var ErrCRC = errors.New("not a way to compute the CRC here")

// crcKind is a way to compute the CRC. Those from crcAssembly on are assembly,
// and differ between architectures.
type crcKind uint8

// crcStd is the standard library, and crcWords is updateWords. Both are there on
// every machine.
const (
	crcStd crcKind = iota
	crcWords
	crcAssembly
)

// Names of the ways that are there on every machine.
const (
	CRCStd   = "hash/crc32" // the standard library
	CRCWords = "words"      // shifts of words, in plain Go
)

// crcFound are the ways that this CPU has, best first, and crcInUse is the one
// in use. Both are set before main; only SetCRC changes the latter.
var (
	crcFound = append(findCRC(), crcStd, crcWords)
	crcInUse = crcFound[0]
)

// CRCPaths returns the names of the ways to compute the CRC that this program
// can use on this CPU, best first, and last CRCWords, which nobody gets who does
// not ask: it is for a CPU whose instructions for the CRC are emulated. CRCStd
// is the one before. All give the same results.
func CRCPaths() []string {
	names := make([]string, 0, len(crcFound))
	for _, k := range crcFound {
		names = append(names, crcNames[k])
	}
	return names
}

// CRCPath returns the name of the way in use. At first it is the best.
func CRCPath() string { return crcNames[crcInUse] }

// SetCRC chooses the way to compute the CRC, one of CRCPaths, else it returns
// ErrCRC and changes nothing. It is for the start of a program, before anything
// else uses this package: it is not safe beside any other call.
func SetCRC(name string) error {
	i := slices.Index(CRCPaths(), name)
	if i < 0 {
		return fmt.Errorf("set CRC to %q: %w, want one of %q", name, ErrCRC, CRCPaths())
	}
	crcInUse = crcFound[i]
	return nil
}

// UpdateCRC continues the register over b.
func UpdateCRC(state uint32, b []byte) uint32 {
	switch {
	case len(b) < crcShort:
		return updateShort(state, b)
	case crcInUse >= crcAssembly:
		return crcUpdate(state, b)
	case crcInUse == crcWords:
		return updateWords(state, b)
	}
	return updateStd(state, b)
}

// CopyICRC copies src to dst, as far as the shorter of the two goes, and
// continues the register over what was copied. It reads src once and takes the
// CRC over what it stores in dst, so that they agree even while somebody changes
// src. The two may overlap, as with copy.
func CopyICRC(state uint32, dst, src []byte) uint32 {
	n := min(len(dst), len(src))
	if crcInUse >= crcAssembly && n >= crcShort {
		if crc, ok := crcCopy(state, dst[:n], src[:n]); ok {
			return crc
		}
	}
	copy(dst, src)
	return UpdateCRC(state, dst[:n])
}

// updateHeader is UpdateCRC for a few bytes. It never calls the standard
// library, which would make b escape to the heap.
func updateHeader(state uint32, b []byte) uint32 {
	if len(b) >= crcShort && crcInUse >= crcAssembly {
		return crcUpdate(state, b)
	}
	return updateShort(state, b)
}

// updateStd is UpdateCRC without assembly of ours.
func updateStd(state uint32, b []byte) uint32 {
	if len(b) < stdShort {
		return updateShort(state, b)
	}
	return ^crc32.Update(^state, crc32.IEEETable, b)
}

// stdShort is where the standard library, which has instructions of the CPU for
// it, becomes faster than updateShort (our own measure).
const stdShort = 64

// crcTables are the tables of an eight-bytes-a-step CRC: table k holds what a
// byte does to the register k bytes later.
var crcTables = func() (t [8][256]uint32) {
	t[0] = *crc32.IEEETable
	for i := range t[0] {
		for k := 1; k < len(t); k++ {
			v := t[k-1][i]
			t[k][i] = v>>8 ^ t[0][byte(v)]
		}
	}
	return t
}()

// step8 continues the register over eight bytes, the first in the lowest bits.
func step8(state uint32, v uint64) uint32 {
	v ^= uint64(state)
	t := &crcTables
	return t[7][byte(v)] ^ t[6][byte(v>>8)] ^ t[5][byte(v>>16)] ^ t[4][byte(v>>24)] ^
		t[3][byte(v>>32)] ^ t[2][byte(v>>40)] ^ t[1][byte(v>>48)] ^ t[0][byte(v>>56)]
}

// step4 continues the register over four bytes, the first in the lowest bits.
func step4(state, v uint32) uint32 {
	v ^= state
	t := &crcTables
	return t[3][byte(v)] ^ t[2][byte(v>>8)] ^ t[1][byte(v>>16)] ^ t[0][byte(v>>24)]
}

// updateShort continues the register over a few bytes without a call that would
// make them escape to the heap.
func updateShort(state uint32, b []byte) uint32 {
	for ; len(b) >= 8; b = b[8:] {
		state = step8(state, binary.LittleEndian.Uint64(b))
	}
	if len(b) >= 4 {
		state = step4(state, binary.LittleEndian.Uint32(b))
		b = b[4:]
	}
	for _, c := range b {
		state = state>>8 ^ crcTables[0][byte(state)^c]
	}
	return state
}

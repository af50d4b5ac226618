package bth

import "strconv"

// MTU is a path MTU as the verbs number it: 1 is 256 bytes, 5 is 4096. The zero
// value is no MTU.
type MTU uint8

// The path MTUs of IBTA Vol 1 §9.2: the most payload one packet carries.
const (
	MTU256 MTU = 1 + iota
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Valid reports whether m is one of the five path MTUs.
func (m MTU) Valid() bool { return m >= MTU256 && m <= MTU4096 }

// Bytes returns the size in bytes, 0 for a value that is not valid.
func (m MTU) Bytes() int {
	if !m.Valid() {
		return 0
	}
	return 128 << m
}

// String gives the size in bytes, or the invalid number.
func (m MTU) String() string {
	if !m.Valid() {
		return "MTU(" + strconv.Itoa(int(m)) + ")"
	}
	return strconv.Itoa(m.Bytes())
}

// MTUFromBytes returns the path MTU of exactly n bytes; ok is false when there
// is none.
func MTUFromBytes(n int) (m MTU, ok bool) {
	for m = MTU256; m <= MTU4096; m++ {
		if m.Bytes() == n {
			return m, true
		}
	}
	return 0, false
}

package bth

import "time"

// rnrTimerUnits holds the RNR NAK timer of each code in units of 10 µs
// (IBTA Vol 1 §9.7.5.2.8). Code 0 is the longest.
var rnrTimerUnits = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12,
	16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072,
	4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRTimerDuration returns the least time a requester waits after an RNR NAK
// with this timer code: 0.01 ms for code 1, 491.52 ms for 31, and 655.36 ms for
// 0. Only the low 5 bits of code count.
func RNRTimerDuration(code uint8) time.Duration {
	return time.Duration(rnrTimerUnits[code&31]) * 10 * time.Microsecond
}

// AckTimeout returns the local ACK timeout of code n, 4.096 µs × 2^n
// (IBTA Vol 1 §9.7.6.1.3); 0 for code 0, which means that there is none. Only
// the low 5 bits of n count.
func AckTimeout(n uint8) time.Duration {
	if n &= 31; n == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << n
}

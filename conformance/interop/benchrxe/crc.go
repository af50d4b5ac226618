package main

import (
	"hash/crc32"
	"slices"
	"time"
)

// A crcTime is what one way to compute the ICRC's polynomial takes on this CPU.
type crcTime struct {
	Name     string  `json:"name"`
	NsPerKiB float64 `json:"ns_per_kib"`
}

// timeCRC times every way that this CPU has, over payloads of 4 KiB.
func timeCRC() []crcTime {
	return []crcTime{{"hash/crc32", nsPerKiB(crc32.ChecksumIEEE)}}
}

// nsPerKiB is the least of several short runs: whoever was held up was held up by something else.
func nsPerKiB(sum func([]byte) uint32) float64 {
	const runs, calls, kib = 50, 20, 4
	buf := make([]byte, kib<<10)
	for i := range buf {
		buf[i] = byte(i * 7)
	}
	var times []float64
	for range runs {
		begin := time.Now()
		for range calls {
			buf[0] ^= byte(sum(buf)) // each needs the one before
		}
		times = append(times, float64(time.Since(begin).Nanoseconds())/(calls*kib))
	}
	return slices.Min(times)
}

// fastest is the name of the best.
func fastest(all []crcTime) string {
	best := slices.MinFunc(all, func(a, b crcTime) int {
		if a.NsPerKiB < b.NsPerKiB {
			return -1
		}
		return 1
	})
	return best.Name
}

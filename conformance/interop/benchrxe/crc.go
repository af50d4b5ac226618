package main

import (
	"cmp"
	"slices"
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

// A crcTime is what one way to compute the ICRC takes on this CPU.
type crcTime struct {
	Name     string  `json:"name"`
	NsPerKiB float64 `json:"ns_per_kib"`      // of the CRC, as on receipt
	Copying  float64 `json:"copy_ns_per_kib"` // of the copy with the CRC, as on sending
}

// timeCRC times every way that this CPU has, over payloads of 4 KiB.
func timeCRC() ([]crcTime, error) {
	var all []crcTime
	src, dst := make([]byte, 4<<10), make([]byte, 4<<10)
	for i := range src {
		src[i] = byte(i * 7)
	}
	for _, name := range bth.CRCPaths() {
		if err := bth.SetCRC(name); err != nil {
			return nil, err
		}
		state := bth.UpdateCRC(0, src)
		all = append(all, crcTime{
			Name:     name,
			NsPerKiB: nsPerKiB(func() { state = bth.UpdateCRC(state, src) }),
			Copying:  nsPerKiB(func() { state = bth.CopyICRC(state, dst, src) }),
		})
	}
	return all, nil
}

// nsPerKiB is the least of several short runs: whoever was held up was held up by something else.
func nsPerKiB(packet func()) float64 {
	const runs, calls, kib = 50, 20, 4
	var times []float64
	for range runs {
		begin := time.Now()
		for range calls {
			packet()
		}
		times = append(times, float64(time.Since(begin).Nanoseconds())/(calls*kib))
	}
	return slices.Min(times)
}

// fastest is the name of the way that costs a packet least, sent and received.
func fastest(all []crcTime) string {
	return slices.MinFunc(all, func(a, b crcTime) int { return cmp.Compare(a.NsPerKiB+a.Copying, b.NsPerKiB+b.Copying) }).Name
}

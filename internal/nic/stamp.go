package nic

import (
	"time"

	"golang.org/x/sys/unix"
)

// hcaCoreClock is the clock of completion timestamps in kHz: nanoseconds.
const hcaCoreClock = 1_000_000

// A stampClock turns the times that workers read anyway into nanoseconds of
// CLOCK_MONOTONIC, which programs can read, too.
type stampClock struct {
	base  time.Time
	nanos int64 // CLOCK_MONOTONIC at base, never later
}

func newStampClock() (stampClock, error) {
	var ts unix.Timespec
	// First the kernel's clock, so that no stamp lies in a program's future.
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return stampClock{}, err
	}
	return stampClock{base: time.Now(), nanos: ts.Nano()}, nil
}

// stamp is the completion timestamp of a time that time.Now gave.
func (c *stampClock) stamp(t time.Time) uint64 { return uint64(c.nanos + int64(t.Sub(c.base))) }

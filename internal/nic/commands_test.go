package nic

import (
	"testing"
	"time"
)

// TestCommandsDoNotPoll: what the control plane asks for does not set a worker polling, as traffic does.
func TestCommandsDoNotPoll(t *testing.T) {
	a := startAdapter(t, func(c *Config) { c.Workers = 1 })
	w := a.workers[0]
	turns := func() (n uint64) {
		w.do(func() { n = w.stats.Turns })
		return n
	}
	const commands = 50
	before := turns()
	for range commands {
		time.Sleep(2 * time.Millisecond) // it falls asleep in between
		w.do(func() {})
	}
	if n := turns() - before; n > commands*(fewTurns+4) {
		t.Errorf("%d turns for %d commands", n, commands)
	}
}

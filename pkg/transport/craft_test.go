package transport_test

import (
	"github.com/softroce/softroce/internal/scenario"
)

// craft builds a packet from a line, "RC SEND Only psn=0x200 A SE data=10", as a
// peer would send it to QP 0x11. key=good is the key given.
func craft(line string, key uint32) ([]byte, error) {
	good := func(name string) (uint32, bool) { return key, name == "good" }
	return scenario.Peer{DestQP: 0x11, Key: good}.Craft(line)
}

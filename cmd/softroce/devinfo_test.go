package main

import "testing"

// Every physical state has its name, and what is none shows its number.
func TestPhysState(t *testing.T) {
	for s, want := range []string{
		"(0)", "SLEEP (1)", "POLLING (2)", "DISABLED (3)", "PORT_CONFIGURATION_TRAINING (4)", "LINK_UP (5)",
		"LINK_ERROR_RECOVERY (6)", "PHY_TEST (7)", "(8)",
	} {
		if got := physState(uint8(s)); got != want {
			t.Errorf("state %d is %q, want %q", s, got, want)
		}
	}
}

package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestGuestsTurn(t *testing.T) {
	const we, guest = "10.77.0.1", "10.77.0.11"
	line := func(from, op string, psn int) string {
		return fmt.Sprintf(" 7 2026-01-01T00:00:00Z %s:49954 > 10.77.0.9:4791 RC %s qp=0x000016 psn=%#06x pkey=0xffff right\n", from, op, psn)
	}
	whole := line(guest, "SEND First", 1) + line(guest, "SEND Last", 2) + line(we, "Acknowledge", 2) +
		line(we, "SEND Only", 9) + line(guest, "Acknowledge", 9)
	for _, tc := range []struct {
		name     string
		text     string
		messages int
		want     bool
	}{
		{"all acknowledged and counted", whole, 1, true},
		{"sent again", whole + line(guest, "SEND Last", 2), 1, true},
		{"a message that our program did not count", whole, 0, false},
		{"a message of the guest's that we left unanswered", whole + line(guest, "SEND Only", 3), 2, false},
		{"a message of ours that the guest left unanswered", whole + line(we, "SEND Only", 10), 1, false},
		{"nothing at all", "", 0, false},
	} {
		if got := guestsTurn(strings.NewReader(tc.text), tc.messages); got != tc.want {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}

package pingpong

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/softroce/softroce/pkg/verbs"
)

// known are endpoints that two ibv_rc_pingpong of kernel rxe had, and their
// messages.
var known = []struct {
	name, wire, printed string
	e                   Endpoint
}{
	{
		"server", "0000:0000a4:aa7938:00000000000000000000ffff0a4d000c\x00",
		"LID 0x0000, QPN 0x0000a4, PSN 0xaa7938, GID ::ffff:10.77.0.12",
		Endpoint{QPN: 0xA4, PSN: 0xAA7938, GID: gidOf("10.77.0.12")},
	},
	{
		"client", "0000:00011a:927983:00000000000000000000ffff0a4d000b\x00",
		"LID 0x0000, QPN 0x00011a, PSN 0x927983, GID ::ffff:10.77.0.11",
		Endpoint{QPN: 0x11A, PSN: 0x927983, GID: gidOf("10.77.0.11")},
	},
	{
		"IPv6, with a LID", "00ff:ffffff:000000:fd770000000000000000000000000001\x00",
		"LID 0x00ff, QPN 0xffffff, PSN 0x000000, GID fd77::1",
		Endpoint{LID: 255, QPN: 0xFFFFFF, GID: gidOf("fd77::1")},
	},
}

func gidOf(s string) verbs.GID { return netip.MustParseAddr(s).As16() }

func TestEndpointMessage(t *testing.T) {
	for _, c := range known {
		t.Run(c.name, func(t *testing.T) {
			if got := string(c.e.wire()); got != c.wire {
				t.Errorf("message: got %q, want %q", got, c.wire)
			}
			if got, err := parseEndpoint([]byte(c.wire)); err != nil || got != c.e {
				t.Errorf("parse %q: got %v, %v, want %v", c.wire, got, err, c.e)
			}
			if got := c.e.String(); got != c.printed {
				t.Errorf("printed: got %q, want %q", got, c.printed)
			}
		})
	}
}

// What a stranger may send. Each differs from a good message in one place.
func TestEndpointRefuses(t *testing.T) {
	good := known[0].wire
	for _, c := range []struct{ name, msg string }{
		{"nothing", ""},
		{"one byte less", good[1:]},
		{"one byte more", "0" + good},
		{"no NUL at the end", good[:wireSize-1] + "0"},
		{"a NUL in the middle", strings.Replace(good, "aa79", "aa\x009", 1)},
		{"no colon", strings.Replace(good, ":", ";", 1)},
		{"a sign", "+" + good[1:]},
		{"a blank", " " + good[1:]},
		{"a base prefix", "0x00" + good[4:]},
		{"an underscore", "0_00" + good[4:]},
		{"no hexadecimal LID", "g" + good[1:]},
		{"no hexadecimal QPN", good[:5] + "g" + good[6:]},
		{"no hexadecimal PSN", good[:12] + "g" + good[13:]},
		{"no hexadecimal GID", good[:20] + "g" + good[21:]},
		{"HTTP", "GET / HTTP/1.1\r\nHost: 127.0.0.1:18515\r\nAccept: */*\r\n"[:wireSize]},
	} {
		t.Run(c.name, func(t *testing.T) {
			if e, err := parseEndpoint([]byte(c.msg)); !errors.Is(err, ErrExchange) {
				t.Errorf("parse %q: got %v, %v, want ErrExchange", c.msg, e, err)
			}
		})
	}
}

func FuzzEndpoint(f *testing.F) {
	for _, c := range known {
		f.Add([]byte(c.wire))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEndpoint(b)
		if err != nil {
			return
		}
		wire := e.wire()
		if !bytes.Equal(wire, bytes.ToLower(b)) {
			t.Fatalf("%q parses as %v, whose message is %q", b, e, wire)
		}
	})
}

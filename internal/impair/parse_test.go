package impair

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	peer := netip.MustParsePrefix("192.0.2.1/32")
	for _, c := range []struct {
		text string
		want Rule
		back string // where it is not the text
	}{
		{"drop", Rule{}, ""},
		{"drop sent ACK nth 3", Rule{Dir: Sent, Ops: []string{"ACK"}, Nth: Range{3, 3}}, ""},
		{"DROP 5% Received seed 7", Rule{Dir: Received, Percent: 5, Seed: 7}, "drop received 5% seed 7"},
		{"drop 0.25%", Rule{Percent: 0.25}, ""},
		{"delay 2ms..4ms sent to 192.0.2.1", Rule{Action: Delay, Delay: 2 * time.Millisecond, DelayMax: 4 * time.Millisecond, Dir: Sent, Peer: peer}, "delay 2ms..4ms to 192.0.2.1"},
		{"delay 1.5s from 2001:db8::/32 # far away", Rule{Action: Delay, Delay: 1500 * time.Millisecond, Dir: Received, Peer: netip.MustParsePrefix("2001:db8::/32")}, "delay 1.5s from 2001:db8::/32"},
		{"duplicate", Rule{Action: Duplicate}, ""},
		{"duplicate 3 write,send every 10", Rule{Action: Duplicate, Copies: 3, Ops: []string{"WRITE", "SEND"}, Every: 10}, "duplicate 3 WRITE,SEND every 10"},
		{"duplicate 50%", Rule{Action: Duplicate, Percent: 50}, ""},
		{"corrupt", Rule{Action: Corrupt}, ""},
		{"corrupt byte -1 first 2", Rule{Action: Corrupt, Change: Change{Unit: Byte, At: -1}, Nth: Range{1, 2}}, "corrupt byte -1 nth 1..2"},
		{"corrupt bit 96 sealed nth 5..", Rule{Action: Corrupt, Change: Change{Unit: Bit, At: 96, Sealed: true}, Nth: Range{5, 0}}, ""},
		{"corrupt sealed", Rule{Action: Corrupt, Change: Change{Sealed: true}}, ""},
		{"reorder 4 qp 0x11", Rule{Action: Reorder, Places: 4, QP: 17}, ""},
		{"reorder local-qp 17 remote-qp 18 psn 7", Rule{Action: Reorder, LocalQP: 17, RemoteQP: 18, PSN: Range{7, 7}, ByPSN: true}, "reorder local-qp 0x11 remote-qp 0x12 psn 7"},
		{"drop psn 16777215..3", Rule{PSN: Range{16777215, 3}, ByPSN: true}, ""},
		{"count ACK", Rule{Action: Count, Ops: []string{"ACK"}}, ""},
		{"drop first", Rule{Ops: []string{"FIRST"}}, "drop FIRST"},
		{"drop first first 2", Rule{Ops: []string{"FIRST"}, Nth: Range{1, 2}}, "drop FIRST nth 1..2"},
		{"rate 10mbit", Rule{Action: Rate, BitsPerSecond: 1e7}, ""},
		{"rate 1500kbit to 192.0.2.1", Rule{Action: Rate, BitsPerSecond: 15e5, Dir: Sent, Peer: peer}, ""},
		{"partition 192.0.2.1 in 1s for 500ms", Rule{Action: Partition, Peer: peer, In: time.Second, For: 500 * time.Millisecond}, ""},
		{"drop RC-RDMA-WRITE-FIRST,0x11", Rule{Ops: []string{"RC-RDMA-WRITE-FIRST", "0X11"}}, "drop RC-RDMA-WRITE-FIRST,0X11"},
	} {
		rules, err := Parse("# a comment\n\n " + c.text + "\n")
		if err != nil || len(rules) != 1 {
			t.Errorf("%q: %v, %v", c.text, rules, err)
			continue
		}
		if !reflect.DeepEqual(rules[0], c.want) {
			t.Errorf("%q:\n got %+v\nwant %+v", c.text, rules[0], c.want)
		}
		back := c.back
		if back == "" {
			back = c.text
		}
		if got := rules[0].String(); got != back {
			t.Errorf("%q as text: %q, want %q", c.text, got, back)
		}
	}
}

// TestParseRefuses holds each refusal to its line and to what it must say.
func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"dorp 5%", `unknown rule "dorp": a rule begins with one of drop, delay,`},
		{"drop 101%", `"101%" is no percentage: more than 0% and at most 100%`},
		{"drop 0%", "no percentage"},
		{"drop -1%", "no percentage"},
		{"drop NaN%", "no percentage"},
		{"delay -2ms", `"-2ms": a time must not be negative`},
		{"delay", `"" is no time`},
		{"delay 5", `"5" is no time: one as 200us`},
		{"delay 4ms..2ms", "ends before it begins"},
		{"delay 2h", "at most 1h0m0s"},
		{"delay 0s", "must be above 0"},
		{"drop in -1s", "in: \"-1s\": a time must not be negative"},
		{"drop ACKK", `"ACKK" is no opcode: one of ACK, ATOMIC`},
		{"drop ACK SEND", "SEND: the opcode was said before"},
		{"drop sent received", "cannot be both"},
		{"drop received to 192.0.2.1", "cannot be both"},
		{"drop to nowhere", `"nowhere" is no address`},
		{"drop from fe80::1%eth0", "no address"},
		{"partition", `partition: "" is no address`},
		{"partition 192.0.2.1 to 192.0.2.2", "said before"},
		{"drop qp 0", "no queue pair number"},
		{"drop qp 0x1000000", "no queue pair number"},
		{"drop psn 16777216", "no number from 0 to 16777215"},
		{"drop nth 0", "no number from 1"},
		{"drop nth 5..3", "ends before it begins"},
		{"drop nth 5 first 2", "first: the number was said before"},
		{"drop every 0", "no number from 1"},
		{"drop seed -1", "no number"},
		{"duplicate 0", "duplicate: copies must be a number from 1 to 16"},
		{"duplicate 17", "1 to 16"},
		{"reorder -1", "reorder: places must be a number"},
		{"corrupt byte", "byte wants a place"},
		{"corrupt bit 99999999", "beyond every packet"},
		{"rate", "no rate"},
		{"rate 10", "no rate from 1kbit"},
		{"rate 1bit", "no rate"},
		{"rate 99999999999gbit", "no rate"},
		{strings.Repeat("x", 1<<20), `a word of 1048576 bytes is none of a rule: "xxxxxxxxxxxxxxxx" and so on`},
		{"drop ACK," + strings.Repeat("A", 65), "a word of 65 bytes"},
		{strings.Repeat("drop to 192.0.2.0/24 SEND,WRITE,READ,ATOMIC,REQUEST,RESPONSE,FIRST,LAST,MIDDLE,ONLY\n", 250) + "#", "rules of "},
	} {
		_, err := Parse("drop 1%\n# comment\n" + c.text)
		var pe *ParseError
		if !errors.As(err, &pe) || pe.Line != 3 && !strings.HasSuffix(c.text, "#") || len(err.Error()) > 1000 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want line 3 and %q", c.text, err, c.want)
		}
	}
	if _, err := Parse(strings.Repeat("drop\n", MaxRules+1)); err == nil {
		t.Errorf("%d rules were taken, at most %d", MaxRules+1, MaxRules)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"drop sent ACK nth 3", "drop 5% received seed 7", "delay 2ms..4ms sent to 192.0.2.1", "corrupt byte -1 sealed 1%",
		"reorder 3 READ-RESPONSE qp 0x11 psn 5..3", "rate 10mbit from 2001:db8::/32", "partition 192.0.2.1 in 1s for 500ms", "duplicate 2 first first 3 every 2 #x", "reorder 0x3",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rules, err := Parse(text)
		if err != nil {
			return
		}
		for i := range rules {
			line := rules[i].String()
			back, err := Parse(line)
			if err != nil || len(back) != 1 || !reflect.DeepEqual(back[0], rules[i]) {
				t.Fatalf("%q became %q, which is %+v, %v, want %+v", text, line, back, err, rules[i])
			}
		}
	})
}

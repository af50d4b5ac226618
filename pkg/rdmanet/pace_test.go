package rdmanet

import "testing"

// A nap grows and shrinks within its bounds, by what there is after it.
func TestPace(t *testing.T) {
	conf := Config{SendBuffer: 1000, RecvBuffer: 1600}
	c := &Conn{e: &Endpoint{conf: conf}, paceOut: pace{usualNap}, paceIn: pace{usualNap}}
	for _, v := range []struct {
		name              string
		sent, recvd       uint64 // of which nothing is done or read
		out, in           bool
		outGrows, inGrows int // the sign of the change
	}{
		{"nothing has gone", 1000, 0, true, false, 1, 0},
		{"three quarters are still going", 750, 0, true, false, 1, 0},
		{"half is still going", 500, 0, true, false, 0, 0},
		{"it is nearly over", 499, 0, true, false, -1, 0},
		{"little has come", 0, 99, false, true, 0, 1},
		{"some has come", 0, 100, false, true, 0, 0},
		{"much has come", 0, 401, false, true, 0, -1},
		{"both", 1000, 401, true, true, 1, -1},
	} {
		c.paceOut.nap, c.paceIn.nap = usualNap, usualNap
		c.sent, c.recvd = v.sent, v.recvd
		for range 20 {
			c.learn(rest{out: v.out, in: v.in})
		}
		for _, p := range []struct {
			way  string
			pace pace
			sign int
		}{{"out", c.paceOut, v.outGrows}, {"in", c.paceIn, v.inGrows}} {
			if want := map[int]pace{-1: {shortNap}, 0: {usualNap}, 1: {longNap}}[p.sign]; p.pace != want {
				t.Errorf("%s: naps for the way %s become %v, want %v", v.name, p.way, p.pace.nap, want.nap)
			}
		}
	}
}

// Only bulk is napped for, by the shorter of the ways' naps.
func TestRest(t *testing.T) {
	conf := Config{SendBuffer: 1000}
	for _, v := range []struct {
		name        string
		inWrite     bool
		sent, recvd uint64
		want        rest
	}{
		{"nothing", true, 0, 0, rest{}},
		{"a question", true, 500, 0, rest{}},
		{"much, and nobody writes", false, 1000, 0, rest{}},
		{"much to send", true, 501, 0, rest{nap: 2, out: true}},
		{"much to receive", false, 0, bulkAfter + 1, rest{nap: 1, in: true}},
		{"both", true, 501, bulkAfter + 1, rest{nap: 1, out: true, in: true}},
	} {
		c := &Conn{e: &Endpoint{conf: conf}, paceOut: pace{2}, paceIn: pace{1}, inWrite: v.inWrite, sent: v.sent, recvd: v.recvd}
		if got := c.rest(); got != v.want {
			t.Errorf("%s: %+v, want %+v", v.name, got, v.want)
		}
	}
}

package nic

import (
	"testing"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/uapi"
)

// What a connection counts, in a snapshot and in a listing.
func TestCMCounters(t *testing.T) {
	a, b := twoAdapters(t, false)
	client, server := newCMNode(t, a), newCMNode(t, b)
	listener, to := server.listen(cm.SpaceTCP, anyPort(b.Addrs()[0]))
	connectNodes(t, client, server, listener, to)
	s := a.Snapshot().CM
	sent := map[string]uint64{}
	for _, m := range s.Messages {
		sent[m.Name] = m.Sent
		if want := map[string]uint64{"REP": 1}[m.Name]; m.Received != want {
			t.Errorf("%d %s received, want %d", m.Received, m.Name, want)
		}
	}
	if sent["REQ"] != 1 || sent["RTU"] != 1 || sent["REP"] != 0 {
		t.Errorf("sent %v", sent)
	}
	if s.Connections != 1 || s.HalfOpen != 0 || s.Listeners != 0 || s.Events != 3 || s.Held != 0 || s.Lost != 0 {
		t.Errorf("the client's side: %+v", s)
	}
	if s := b.Snapshot().CM; s.Connections != 1 || s.Listeners != 1 || s.Events != 2 {
		t.Errorf("the server's side: %+v", s)
	}
	got := map[string]uint64{}
	for _, c := range must[uapi.ListCountersReply](server.rawClient, uapi.OpListCounters, nil).Counters {
		got[c.Name] = c.Value
	}
	if got["cm_rcvd_req"] != 1 || got["cm_sent_rep"] != 1 || got["cm_rcvd_rtu"] != 1 || got["cm_handled"] != 2 || got["cm_events"] != 2 {
		t.Errorf("listed: %v", got)
	}
}

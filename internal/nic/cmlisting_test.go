package nic

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/uapi"
)

// states are a program's identifiers in a listing, and what each is doing.
func (n *cmNode) states() map[uint32]string {
	n.t.Helper()
	out := make(map[uint32]string)
	all, _ := n.list(uapi.ResourceCMID)
	for _, r := range all {
		out[r.Number] = r.State
	}
	return out
}

// wantStates holds the listing against pairs of an identifier and its state.
func (n *cmNode) wantStates(want map[uint32]string) {
	n.t.Helper()
	if got := n.states(); fmt.Sprint(got) != fmt.Sprint(want) {
		n.t.Errorf("identifiers %v, want %v", got, want)
	}
}

// A listing has every identifier of a program with what it is doing, from the
// first call to the end of time-wait.
func TestListIdentifiers(t *testing.T) {
	a, b := twoAdapters(t, false)
	client, server := newCMNode(t, a), newCMNode(t, b)
	if got := client.states(); len(got) != 0 {
		t.Errorf("identifiers before the first: %v", got)
	}
	listener, to := server.listen(cm.SpaceTCP, anyPort(b.Addrs()[0]))
	fresh, bound := client.id(cm.SpaceUDP), client.id(cm.SpaceTCP)
	client.bind(bound, netip.AddrPortFrom(netip.IPv6Unspecified(), 0))
	found := client.id(cm.SpaceTCP)
	client.ok(uapi.OpResolveCMAddr, &uapi.CMAddrRequest{ID: found, Peer: cmAddr(to)})
	client.next(uapi.CMAddrResolved)
	routed := client.route(cm.SpaceTCP, to)
	idle := map[uint32]string{fresh: "IDLE", bound: "ADDR_BOUND", found: "ADDR_RESOLVED", routed: "ROUTE_RESOLVED"}
	client.wantStates(idle)
	server.wantStates(map[uint32]string{listener: "LISTEN"})

	l := connectNodes(t, client, server, listener, to)
	idle[l.clientID] = "ESTABLISHED"
	client.wantStates(idle)
	server.wantStates(map[uint32]string{listener: "LISTEN", l.serverID: "ESTABLISHED"})
	got, _ := server.list(uapi.ResourceCMID)
	own := netip.AddrPortFrom(a.Addrs()[0], 0)
	for _, r := range got {
		if r.Program != server.program() || r.Type != "TCP" || r.From != to.String() {
			t.Errorf("%+v, want an identifier of TCP at %v", r, to)
		}
		peer, _ := netip.ParseAddrPort(r.To)
		if r.Number == l.serverID && (r.QPN != uint32(l.serverQP.QPN) || peer.Addr() != own.Addr() || peer.Port() == 0) {
			t.Errorf("%+v, want queue pair %v and peer %v", r, l.serverQP.QPN, own.Addr())
		}
		if r.Number == listener && (r.QPN != 0 || r.To != "") {
			t.Errorf("listener %+v", r)
		}
	}
	client.ok(uapi.OpDisconnectCM, &uapi.HandleRequest{Handle: l.clientID})
	idle[l.clientID] = "DREQ_SENT"
	client.wantStates(idle)
	server.next(uapi.CMDisconnected)
	server.wantStates(map[uint32]string{listener: "LISTEN", l.serverID: "DREQ_RCVD"})
	server.ok(uapi.OpDisconnectCM, &uapi.HandleRequest{Handle: l.serverID})
	client.next(uapi.CMDisconnected)
	idle[l.clientID] = "TIMEWAIT"
	client.wantStates(idle)
	later(a, time.Minute)
	idle[l.clientID] = "IDLE"
	client.wantStates(idle)
	for id := range idle {
		client.destroy(id)
	}
	client.wantStates(nil)
}

// program is the program's number, as a listing has it.
func (n *cmNode) program() uint32 {
	n.t.Helper()
	all, _ := n.list(uapi.ResourceProgram)
	if len(all) != 1 {
		n.t.Fatalf("programs %+v", all)
	}
	return all[0].Number
}

// A thousand connections come up and end, from either side in turn, while both
// programs live on; after time-wait no identifier, timer, port or queue pair of
// them is left in either adapter.
func TestThousandConnectionsLeaveNothing(t *testing.T) {
	n := 1000
	if testing.Short() {
		n = 100
	}
	a, b := twoAdapters(t, false)
	client, server := newCMNode(t, a), newCMNode(t, b)
	listener, to := server.listen(cm.SpaceTCP, anyPort(b.Addrs()[0]))
	for i := range n {
		l := connectNodes(t, client, server, listener, to)
		ender, other, endID, otherID := client, server, l.clientID, l.serverID
		if i%2 == 1 {
			ender, other, endID, otherID = server, client, l.serverID, l.clientID
		}
		ender.ok(uapi.OpDisconnectCM, &uapi.HandleRequest{Handle: endID})
		other.next(uapi.CMDisconnected)
		other.ok(uapi.OpDisconnectCM, &uapi.HandleRequest{Handle: otherID})
		ender.next(uapi.CMDisconnected)
		for node, qp := range map[*cmNode]uapi.CreateQPReply{client: l.clientQP, server: l.serverQP} {
			must[uapi.DestroyReply](node.rawClient, uapi.OpDestroyQP, &uapi.HandleRequest{Handle: qp.Handle})
		}
		client.destroy(l.clientID)
		server.destroy(l.serverID)
	}
	client.wantStates(nil)
	server.wantStates(map[uint32]string{listener: "LISTEN"})
	// What lingers has its time: the last of it, at least, is still there.
	if s := b.cmSnapshot(); s.Connections == 0 {
		t.Error("no connection is in time-wait")
	}
	server.destroy(listener)
	for _, node := range []*cmNode{client, server} {
		later(node.a, 10*time.Minute)
		if s := node.a.cmSnapshot(); s.Connections != 0 {
			t.Errorf("%d connections after time-wait", s.Connections)
		}
		if qps, _ := node.list(uapi.ResourceQP); len(qps) != 0 {
			t.Errorf("%d queue pairs are left", len(qps))
		}
		for i, w := range node.a.workers {
			w.do(func() {
				timers := slices.DeleteFunc(slices.Clone(w.timers.q), func(q *qp) bool { return q.qpn == gsiQPN })
				if len(timers) != 0 || len(w.byQPN) != 0 {
					t.Errorf("worker %d: %d timers, %d queue pairs", i, len(timers), len(w.byQPN))
				}
			})
		}
		node.quiet()
		node.hangUp(t)
		wantNoCM(t, node.a)
	}
}

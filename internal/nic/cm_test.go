package nic

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// anyPort is an address with a port that the adapter chooses.
func anyPort(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, 0) }

// hangUp ends a node and waits until everything of it is gone.
func (n *cmNode) hangUp(t *testing.T) {
	t.Helper()
	before := len(n.a.programList())
	_ = n.c.Close()
	waitPrograms(t, n.a, before-1)
}

// A connection between two adapters, and between two programs of one: events in
// librdmacm's order, attributes that the queue pairs take, private data, both
// sides' numbers; then its end, from either side.
func TestCMConnection(t *testing.T) {
	for _, same := range []bool{false, true} {
		for _, clientEnds := range []bool{false, true} {
			name := "two adapters"
			if same {
				name = "one adapter"
			}
			if clientEnds {
				name += ", the client ends"
			} else {
				name += ", the server ends"
			}
			t.Run(name, func(t *testing.T) {
				a, b := twoAdapters(t, same)
				client, server := newCMNode(t, a), newCMNode(t, b)
				listener, to := server.listen(cm.SpaceTCP, anyPort(b.Addrs()[0]))
				l := connectNodes(t, client, server, listener, to)
				checkConnected(t, l)
				ender, other, endID, otherID := client, server, l.clientID, l.serverID
				if !clientEnds {
					ender, other, endID, otherID = server, client, l.serverID, l.clientID
				}
				ender.ok(uapi.OpDisconnectCM, &uapi.HandleRequest{Handle: endID})
				if rec := other.next(uapi.CMDisconnected); rec.ID != otherID || rec.Status != 0 {
					t.Errorf("disconnected: %+v", rec)
				}
				other.ok(uapi.OpDisconnectCM, &uapi.HandleRequest{Handle: otherID})
				ender.next(uapi.CMDisconnected)
				later(a, time.Minute)
				later(b, time.Minute)
				ender.next(uapi.CMTimewaitExit)
				other.next(uapi.CMTimewaitExit)
				// 2 of the route, RESPONSE or ESTABLISHED, DISCONNECTED, TIMEWAIT_EXIT.
				if n := client.destroy(l.clientID); n != 5 {
					t.Errorf("%d events of the client's identifier, want 5", n)
				}
				if n := server.destroy(l.serverID); n != 3 {
					t.Errorf("%d events of the server's identifier, want 3", n)
				}
				if n := server.destroy(listener); n != 1 {
					t.Errorf("%d events of the listener, want the 1 request", n)
				}
				client.hangUp(t)
				server.hangUp(t)
				wantNoCM(t, a)
				wantNoCM(t, b)
			})
		}
	}
}

// checkConnected holds both queue pairs' attributes against each other.
func checkConnected(t *testing.T, l *cmLink) {
	t.Helper()
	x := must[uapi.QueryQPReply](l.client.rawClient, uapi.OpQueryQP, &uapi.HandleRequest{Handle: l.clientQP.Handle}).Attr
	y := must[uapi.QueryQPReply](l.server.rawClient, uapi.OpQueryQP, &uapi.HandleRequest{Handle: l.serverQP.Handle}).Attr
	if x.State != qpstate.RTS || y.State != qpstate.RTS || x.DestQPN != l.serverQP.QPN || y.DestQPN != l.clientQP.QPN ||
		x.SQPSN != y.RQPSN || x.RQPSN != y.SQPSN || x.PathMTU != y.PathMTU {
		t.Errorf("client's queue pair %+v,\nserver's %+v", x, y)
	}
	if x.MinRNRTimer != minRNRTimer || y.MinRNRTimer != minRNRTimer {
		t.Errorf("RNR timers %d and %d, want %d", x.MinRNRTimer, y.MinRNRTimer, minRNRTimer)
	}
	if x.MaxRDAtomic != 3 || x.MaxDestRDAtomic != 3 || y.MaxDestRDAtomic != 3 {
		t.Errorf("client %d in flight, takes %d, server takes %d; the client asked for 3 of its own", x.MaxRDAtomic, x.MaxDestRDAtomic, y.MaxDestRDAtomic)
	}
	rep := must[uapi.CMAddrReply](l.client.rawClient, uapi.OpQueryCM, &uapi.HandleRequest{Handle: l.clientID})
	back := must[uapi.CMAddrReply](l.server.rawClient, uapi.OpQueryCM, &uapi.HandleRequest{Handle: l.serverID})
	if rep.Own != back.Peer || rep.Peer != back.Own || rep.AH.DGID != rep.Peer.GID || !rep.AH.IsGlobal || rep.MTU == 0 {
		t.Errorf("the client is %+v,\nthe server %+v", rep, back)
	}
}

// What the events of a connection carry.
func TestCMEventContents(t *testing.T) {
	a, b := twoAdapters(t, false)
	client, server := newCMNode(t, a), newCMNode(t, b)
	_, to := server.listen(cm.SpaceTCP, anyPort(b.Addrs()[0]))
	qp, sqp := client.rcQP(), server.rcQP()
	id := client.route(cm.SpaceTCP, to)
	client.ok(uapi.OpConnectCM, &uapi.CMCallRequest{ID: id, Param: paramOfQP(qp.QPN), Private: []byte("hello")})
	req := server.next(uapi.CMConnectRequest)
	p := &req.Param
	if p.QPN != qp.QPN || p.ResponderResources != 3 || p.InitiatorDepth != 4 || p.RetryCount != 7 || p.RNRRetryCount != 6 {
		t.Errorf("request's parameters %+v", p)
	}
	if string(req.Private[:5]) != "hello" || len(req.Private) != cm.PrivateREQ-cm.CMALen {
		t.Errorf("request's private data %q", req.Private)
	}
	if req.Own.Port != to.Port() || req.Own.GID != bth.GIDFromAddr(to.Addr()) || req.Peer.GID != bth.GIDFromAddr(a.Addrs()[0]) || req.Peer.Port == 0 {
		t.Errorf("request from %+v to %+v", req.Peer, req.Own)
	}
	server.bring(req.ID, sqp, qpstate.Init, qpstate.RTR, qpstate.RTS)
	server.ok(uapi.OpAcceptCM, &uapi.CMCallRequest{ID: req.ID, Param: paramOfQP(sqp.QPN), Private: []byte("welcome")})
	rsp := client.next(uapi.CMConnectResponse)
	if rsp.ID != id || rsp.Param.QPN != sqp.QPN || string(rsp.Private[:7]) != "welcome" || len(rsp.Private) != cm.PrivateREP {
		t.Errorf("response %+v", rsp)
	}
}

// A refusal: with the program's private data and reason, and by nobody.
func TestCMRefused(t *testing.T) {
	a, b := twoAdapters(t, false)
	client, server := newCMNode(t, a), newCMNode(t, b)
	listener, to := server.listen(cm.SpaceTCP, anyPort(b.Addrs()[0]))
	connectTo := func(to netip.AddrPort) uint32 {
		id := client.route(cm.SpaceTCP, to)
		client.ok(uapi.OpConnectCM, &uapi.CMCallRequest{ID: id, Param: paramOfQP(client.rcQP().QPN)})
		return id
	}
	wantRejected := func(id uint32, reason cm.RejectReason) uapi.CMRecord {
		t.Helper()
		rec := client.next(uapi.CMRejected)
		if rec.ID != id || rec.Status != int32(reason) {
			t.Errorf("refused with %+v, want %v", rec, reason)
		}
		return rec
	}
	id := connectTo(to)
	req := server.next(uapi.CMConnectRequest)
	server.ok(uapi.OpRejectCM, &uapi.CMCallRequest{ID: req.ID, Private: []byte("no")})
	if rec := wantRejected(id, cm.RejConsumer); string(rec.Private[:3]) != "no\x00" {
		t.Errorf("private data %q", rec.Private)
	}
	server.destroy(req.ID)

	id = connectTo(to)
	req = server.next(uapi.CMConnectRequest)
	server.destroy(req.ID) // without an answer
	wantRejected(id, cm.RejConsumer)

	server.destroy(listener)
	id = connectTo(to)
	wantRejected(id, cm.RejInvalidServiceID)
	client.wantRefusal(client.call(uapi.OpEstablishCM, &uapi.HandleRequest{Handle: id}), syscall.EINVAL)
	client.hangUp(t)
	server.hangUp(t)
	wantNoCM(t, a)
	wantNoCM(t, b)
}

// Nobody answers: an event, and nothing stays.
func TestCMUnreachable(t *testing.T) {
	a := startAdapter(t, nil)
	client := newCMNode(t, a)
	nobody := netip.MustParseAddrPort("127.127.0.1:7174")
	for _, space := range []cm.PortSpace{cm.SpaceTCP, cm.SpaceUDP} {
		id := client.route(space, nobody)
		m := &uapi.CMCallRequest{ID: id}
		if space == cm.SpaceTCP {
			m.Param = paramOfQP(client.rcQP().QPN)
		}
		client.ok(uapi.OpConnectCM, m)
		later(a, 5*time.Minute)
		if rec := client.next(uapi.CMUnreachable); rec.ID != id || rec.Status != -int32(syscall.ETIMEDOUT) {
			t.Errorf("unreachable: %+v", rec)
		}
	}
	client.hangUp(t)
	wantNoCM(t, a)
}

// A program that dies at any step of a handshake leaves nothing behind, and the
// other side learns of it.
func TestCMDeathAtEachStep(t *testing.T) {
	const steps = 8
	for _, clientDies := range []bool{false, true} {
		for step := range steps {
			a, b := twoAdapters(t, false)
			client, server := newCMNode(t, a), newCMNode(t, b)
			dies, lives := server, client
			if clientDies {
				dies, lives = client, server
			}
			walkTo(client, server, b.Addrs()[0], step)
			dies.hangUp(t)
			later(a, 5*time.Minute)
			later(b, 5*time.Minute)
			lives.hangUp(t)
			wantNoCM(t, a)
			wantNoCM(t, b)
			if t.Failed() {
				t.Fatalf("client dies %v, at step %d", clientDies, step)
			}
		}
	}
}

// walkTo makes the first steps of a connection.
func walkTo(client, server *cmNode, addr netip.Addr, steps int) {
	var listener, id, peer uint32
	var to netip.AddrPort
	var qp, sqp uapi.CreateQPReply
	_ = listener
	walk := []func(){
		func() { listener, to = server.listen(cm.SpaceTCP, anyPort(addr)) },
		func() { id = client.route(cm.SpaceTCP, to) },
		func() {
			qp = client.rcQP()
			client.ok(uapi.OpConnectCM, &uapi.CMCallRequest{ID: id, Param: paramOfQP(qp.QPN)})
		},
		func() { peer = server.next(uapi.CMConnectRequest).ID },
		func() {
			sqp = server.rcQP()
			server.bring(peer, sqp, qpstate.Init, qpstate.RTR, qpstate.RTS)
			server.ok(uapi.OpAcceptCM, &uapi.CMCallRequest{ID: peer, Param: paramOfQP(sqp.QPN)})
		},
		func() { client.next(uapi.CMConnectResponse) },
		func() {
			client.bring(id, qp, qpstate.Init, qpstate.RTR, qpstate.RTS)
			client.ok(uapi.OpEstablishCM, &uapi.HandleRequest{Handle: id})
		},
	}
	for _, f := range walk[:min(steps, len(walk))] {
		f()
	}
}

// Two programs that ask each other at the same time have two connections.
func TestCMCrossing(t *testing.T) {
	a, b := twoAdapters(t, false)
	x, y := newCMNode(t, a), newCMNode(t, b)
	_, toX := x.listen(cm.SpaceTCP, anyPort(a.Addrs()[0]))
	_, toY := y.listen(cm.SpaceTCP, anyPort(b.Addrs()[0]))
	idX, idY := x.route(cm.SpaceTCP, toY), y.route(cm.SpaceTCP, toX)
	qx, qy := x.rcQP(), y.rcQP()
	x.ok(uapi.OpConnectCM, &uapi.CMCallRequest{ID: idX, Param: paramOfQP(qx.QPN)})
	y.ok(uapi.OpConnectCM, &uapi.CMCallRequest{ID: idY, Param: paramOfQP(qy.QPN)})
	for _, n := range []*cmNode{x, y} {
		req := n.next(uapi.CMConnectRequest)
		qp := n.rcQP()
		n.bring(req.ID, qp, qpstate.Init, qpstate.RTR, qpstate.RTS)
		n.ok(uapi.OpAcceptCM, &uapi.CMCallRequest{ID: req.ID, Param: paramOfQP(qp.QPN)})
	}
	for _, side := range []struct {
		n  *cmNode
		id uint32
		qp uapi.CreateQPReply
	}{{x, idX, qx}, {y, idY, qy}} {
		side.n.next(uapi.CMConnectResponse)
		side.n.bring(side.id, side.qp, qpstate.Init, qpstate.RTR, qpstate.RTS)
		side.n.ok(uapi.OpEstablishCM, &uapi.HandleRequest{Handle: side.id})
	}
	x.next(uapi.CMEstablished)
	y.next(uapi.CMEstablished)
	x.hangUp(t)
	y.next(uapi.CMDisconnected)
	y.next(uapi.CMDisconnected)
	y.hangUp(t)
	wantNoCM(t, a)
	wantNoCM(t, b)
}

package nic

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// A datagram program asks for a queue pair by address: the event has all that it
// takes to send there. And it is refused.
func TestCMDatagrams(t *testing.T) {
	a, b := twoAdapters(t, false)
	client, server := newCMNode(t, a), newCMNode(t, b)
	listener, to := server.listen(cm.SpaceUDP, anyPort(b.Addrs()[0]))
	ask := func() (id uint32, req uapi.CMRecord) {
		id = client.route(cm.SpaceUDP, to)
		client.ok(uapi.OpConnectCM, &uapi.CMCallRequest{ID: id, Private: []byte("who?")})
		req = server.next(uapi.CMConnectRequest)
		if req.Listen != listener || string(req.Private[:4]) != "who?" || req.Param.AH.DGID != bth.GIDFromAddr(a.Addrs()[0]) {
			t.Errorf("request %+v", req)
		}
		return id, req
	}
	qp := server.udQP()
	id, req := ask()
	server.bring(req.ID, qp, qpstate.Init, qpstate.RTR, qpstate.RTS)
	server.ok(uapi.OpAcceptCM, &uapi.CMCallRequest{ID: req.ID, Param: uapi.CMParam{QPN: qp.QPN}, Private: []byte("me")})
	rec := client.next(uapi.CMEstablished)
	if rec.ID != id || rec.Param.QPN != qp.QPN || rec.Param.QKey != udpQKey || string(rec.Private[:2]) != "me" {
		t.Errorf("answer %+v", rec)
	}
	ah := rec.Param.AH
	must[uapi.HandleReply](client.rawClient, uapi.OpCreateAH, &uapi.CreateAHRequest{PD: client.pd, Attr: ah})
	if ah.DGID != bth.GIDFromAddr(b.Addrs()[0]) || !ah.IsGlobal || ah.PortNum != 1 {
		t.Errorf("address vector %+v", ah)
	}
	attr := must[uapi.QueryQPReply](server.rawClient, uapi.OpQueryQP, &uapi.HandleRequest{Handle: qp.Handle}).Attr
	if attr.State != qpstate.RTS || attr.QKey != udpQKey {
		t.Errorf("the server's queue pair: %+v", attr)
	}

	id, req = ask()
	server.ok(uapi.OpRejectCM, &uapi.CMCallRequest{ID: req.ID})
	if rec := client.next(uapi.CMUnreachable); rec.ID != id || rec.Status != int32(cm.SIDRReject) {
		t.Errorf("refused: %+v", rec)
	}
	client.wantRefusal(client.call(uapi.OpDisconnectCM, &uapi.HandleRequest{Handle: id}), syscall.EINVAL)
	client.hangUp(t)
	server.hangUp(t)
	wantNoCM(t, a)
	wantNoCM(t, b)
}

// A join tells where the group's datagrams go; it is charged for and ends with
// the identifier.
func TestCMMulticast(t *testing.T) {
	a := startAdapter(t, func(c *Config) { c.Limits.Program.Mcast = 2 })
	n := newCMNode(t, a)
	group := groupOf(a)
	id := n.id(cm.SpaceUDP)
	join := func(id uint32, g bth.GID) answer {
		return n.call(uapi.OpJoinCM, &uapi.CMMcastRequest{ID: id, Group: g})
	}
	n.wantRefusal(join(id, group), syscall.EINVAL, "idle")
	n.bind(id, anyPort(a.Addrs()[0]))
	n.wantRefusal(join(id, bth.GIDFromAddr(a.Addrs()[0])), syscall.EINVAL, "no multicast group")
	n.wantRefusal(join(id, bth.GIDFromAddr(netip.MustParseAddr("ff0e::1"))), syscall.ENODEV, "family")
	if got := join(id, group); got.errno != 0 {
		t.Fatal(got.text)
	}
	rec := n.next(uapi.CMMulticastJoin)
	p := &rec.Param
	if rec.ID != id || p.QPN != bth.MulticastQPN || p.QKey != udpQKey || p.AH.DGID != group || !p.AH.IsGlobal {
		t.Errorf("joined: %+v", rec)
	}
	must[uapi.HandleReply](n.rawClient, uapi.OpCreateAH, &uapi.CreateAHRequest{PD: n.pd, Attr: p.AH})
	n.wantRefusal(join(id, group), syscall.EADDRINUSE, "already")
	more := group
	more[13]++
	if got := join(id, more); got.errno != 0 {
		t.Fatal(got.text)
	}
	more[13]++
	n.wantRefusal(join(id, more), syscall.ENOMEM, "limit")
	n.ok(uapi.OpLeaveCM, &uapi.CMMcastRequest{ID: id, Group: group})
	n.wantRefusal(n.call(uapi.OpLeaveCM, &uapi.CMMcastRequest{ID: id, Group: group}), syscall.EADDRNOTAVAIL, "not joined")
	tcp := n.id(cm.SpaceTCP)
	n.bind(tcp, anyPort(a.Addrs()[0]))
	n.wantRefusal(join(tcp, group), syscall.EINVAL, "UDP port space")
	n.destroy(id)
	if use := a.ledger.usage(); use[ResourceMcast] != 0 {
		t.Errorf("%d groups booked", use[ResourceMcast])
	}
	n.hangUp(t)
	wantNoCM(t, a)
}

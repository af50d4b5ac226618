package nic

import (
	"syscall"
	"testing"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/uapi"
)

// A program that does not read its channel loses nothing: what the pipe does not
// take waits, in order, and a call that would make one event more than an
// identifier may have waiting is refused.
func TestFullEventPipe(t *testing.T) {
	a := startAdapter(t, nil)
	n := newCMNode(t, a)
	nowhere := uapi.CMAddrRequest{Timeout: 1, Peer: cmAddr(anyPort(a.Addrs()[0]))}
	nowhere.Peer.Port = 7174
	const ids = 400 // 150 KiB of events
	var made []uint32
	for range ids {
		nowhere.ID = n.id(cm.SpaceTCP)
		made = append(made, nowhere.ID)
		n.ok(uapi.OpResolveCMAddr, &nowhere)
		n.ok(uapi.OpResolveCMRoute, &uapi.HandleRequest{Handle: nowhere.ID})
	}
	a.gsi.w.do(func() {
		if len(a.gsi.waiting) != 1 || !a.gsi.waiting[0].full || a.gsi.retryAt.IsZero() {
			t.Errorf("%d channels wait, next try %v", len(a.gsi.waiting), a.gsi.retryAt)
		}
	})
	// What was not written goes with its identifier.
	if events := n.destroy(made[ids-1]); events != 0 {
		t.Errorf("%d events of the last identifier were written", events)
	}
	for _, id := range made[:ids-1] {
		if rec := n.next(uapi.CMAddrResolved); rec.ID != id {
			t.Fatalf("event of identifier %d, want %d", rec.ID, id)
		}
		n.next(uapi.CMRouteResolved)
	}
	n.quiet()
	for _, id := range made[:ids-1] {
		if events := n.destroy(id); events != 2 {
			t.Fatalf("%d events of identifier %d were written", events, id)
		}
	}
	n.hangUp(t)
	wantNoCM(t, a)
}

// An identifier whose events are not read gets no more of them by asking.
func TestEventsOfOneIdentifierAreBounded(t *testing.T) {
	a := startAdapter(t, nil)
	n := newCMNode(t, a)
	id := n.id(cm.SpaceUDP)
	n.bind(id, anyPort(a.Addrs()[0]))
	join := &uapi.CMMcastRequest{ID: id, Group: groupOf(a)}
	for i := range 2000 {
		got := n.call(uapi.OpJoinCM, join)
		if got.errno != 0 {
			n.wantRefusal(got, syscall.ENOBUFS, "wait to be read")
			if i < maxCMWaiting {
				t.Errorf("refused after %d events", i)
			}
			return
		}
		n.ok(uapi.OpLeaveCM, join)
	}
	t.Error("2000 events, none of them read")
}

// An identifier moves to another channel: what was written stays, what waits and
// what comes goes there.
func TestMigrateIdentifier(t *testing.T) {
	a := startAdapter(t, nil)
	n := newCMNode(t, a)
	other, events := n.channel()
	id := n.id(cm.SpaceTCP)
	peer := anyPort(a.Addrs()[0])
	req := &uapi.CMAddrRequest{ID: id, Peer: cmAddr(peer)}
	req.Peer.Port = 5000
	n.ok(uapi.OpResolveCMAddr, req)
	rep := must[uapi.CMEventsReply](n.rawClient, uapi.OpMigrateCM, &uapi.CMValueRequest{ID: id, Value: other})
	if rep.Events != 1 {
		t.Errorf("%d events on the first channel, want 1", rep.Events)
	}
	n.next(uapi.CMAddrResolved)
	n.ok(uapi.OpResolveCMRoute, &uapi.HandleRequest{Handle: id})
	n.nextOn(events, uapi.CMRouteResolved)
	n.wantRefusal(n.call(uapi.OpDestroyCMChannel, &uapi.HandleRequest{Handle: other}), syscall.EBUSY, "identifiers")
	n.ok(uapi.OpDestroyCMChannel, &uapi.HandleRequest{Handle: n.ch})
	n.wantRefusal(n.call(uapi.OpMigrateCM, &uapi.CMValueRequest{ID: id, Value: n.ch}), syscall.EINVAL, "event channel")
	if events := n.destroy(id); events != 2 {
		t.Errorf("%d events in all, want 2", events)
	}
	n.ok(uapi.OpDestroyCMChannel, &uapi.HandleRequest{Handle: other})
}

// Requests that a program's listener has no quota for are refused for want of
// resources, those that a program never got go with the listener.
func TestRequestsBeyondTheQuota(t *testing.T) {
	a, b := startAdapter(t, nil), startAdapter(t, func(c *Config) { c.Limits.Program.CMIDs = 3 })
	client, server := newCMNode(t, a), newCMNode(t, b)
	listener, to := server.listen(cm.SpaceTCP, anyPort(b.Addrs()[0]))
	for range 3 {
		id := client.route(cm.SpaceTCP, to)
		client.ok(uapi.OpConnectCM, &uapi.CMCallRequest{ID: id, Param: paramOfQP(client.rcQP().QPN)})
	}
	if rec := client.next(uapi.CMRejected); rec.Status != int32(cm.RejNoResources) {
		t.Errorf("refused with %d", rec.Status)
	}
	server.wantRefusal(server.call(uapi.OpCreateCMID, &uapi.CreateCMIDRequest{Channel: server.ch, Space: uint32(cm.SpaceTCP)}),
		syscall.ENOMEM, "connection identifiers", "limit 3")
	server.next(uapi.CMConnectRequest)
	server.next(uapi.CMConnectRequest)
	server.destroy(listener)
	server.hangUp(t)
	client.next(uapi.CMRejected)
	client.next(uapi.CMRejected)
	client.hangUp(t)
	wantNoCM(t, a)
	wantNoCM(t, b)
}

// A listener that ends takes the requests with it that its program never got.
func TestListenerEndsWithRequestsThatWait(t *testing.T) {
	a, b := twoAdapters(t, false)
	client, server := newCMNode(t, a), newCMNode(t, b)
	listener, to := server.listen(cm.SpaceTCP, anyPort(b.Addrs()[0]))
	id := client.route(cm.SpaceTCP, to)
	b.gsi.w.do(func() { // as if the pipe were full, for ever
		for _, l := range b.gsi.byListener {
			l.ch.full, l.ch.listed = true, true
		}
	})
	client.ok(uapi.OpConnectCM, &uapi.CMCallRequest{ID: id, Param: paramOfQP(client.rcQP().QPN)})
	ctx := within(t)
	for n := uint64(0); n < 2 && ctx.Err() == nil; n = b.ledger.usage()[ResourceCMIDs] {
		b.gsi.w.quiesce()
	}
	if events := server.destroy(listener); events != 0 {
		t.Errorf("%d events written", events)
	}
	client.next(uapi.CMRejected)
	if use := b.ledger.usage(); use[ResourceCMIDs] != 0 {
		t.Errorf("%d identifiers booked", use[ResourceCMIDs])
	}
	client.hangUp(t)
	server.hangUp(t)
	wantNoCM(t, a)
	wantNoCM(t, b)
}

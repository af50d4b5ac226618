package nic

import (
	"syscall"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// A silentPeer plays a part of a handshake with the one connection of a program,
// and then says nothing more.
type silentPeer struct {
	*rawSender
	n  *cmNode
	id uint32
	qp uapi.CreateQPReply
}

// peerID is what the silent peer calls the connection.
const peerID cm.CommID = 7

// say sends a message about the connection, filled in by f with the program's number
// of it, and waits until it met a verdict.
func (p *silentPeer) say(name string, want cm.Verdict, f func(ours cm.CommID) cm.Message) {
	p.t.Helper()
	var ours cm.CommID
	p.n.a.gsi.w.do(func() {
		if ids := p.n.a.gsi.machine.IDs(); len(ids) > 0 {
			ours = ids[0]
		}
	})
	h := cm.Header{BaseVersion: cm.BaseVersion, Class: cm.ClassCM, ClassVersion: cm.ClassVersion, Method: cm.MethodSend, TID: 7}
	before := p.n.a.cmCounters().Verdicts
	p.send(p.n.a.Addrs()[0], mad(cm.AppendMAD(nil, h, f(ours))))
	awaitMAD(p.t, p.n.a, name, want, before)
}

// asks sends a REQ, which the program grants.
func (p *silentPeer) asks() {
	p.t.Helper()
	_, to := p.n.listen(cm.SpaceTCP, anyPort(p.n.a.Addrs()[0]))
	p.send(p.n.a.Addrs()[0], requestOf(p.rawSender, p.n.a, peerID, to.Port(), nil))
	p.id, p.qp = p.n.next(uapi.CMConnectRequest).ID, p.n.rcQP()
	p.n.bring(p.id, p.qp, qpstate.Init, qpstate.RTR, qpstate.RTS)
	p.n.ok(uapi.OpAcceptCM, &uapi.CMCallRequest{ID: p.id, Param: paramOfQP(p.qp.QPN)})
}

// rtu makes the connection that it asked for come up.
func (p *silentPeer) rtu() {
	p.t.Helper()
	p.say("RTU", cm.Handled, func(ours cm.CommID) cm.Message { return &cm.RTU{LocalID: peerID, RemoteID: ours} })
	p.n.next(uapi.CMEstablished)
}

// asked is asked for a connection by the program.
func (p *silentPeer) asked() {
	p.t.Helper()
	p.id, p.qp = p.n.route(cm.SpaceTCP, addrPortOf(bth.GIDFromAddr(p.addr), 7174)), p.n.rcQP()
	p.n.bring(p.id, p.qp, qpstate.Init)
	p.n.ok(uapi.OpConnectCM, &uapi.CMCallRequest{ID: p.id, Param: paramOfQP(p.qp.QPN)})
}

// rep grants it.
func (p *silentPeer) rep() {
	p.t.Helper()
	p.say("REP", cm.Handled, func(ours cm.CommID) cm.Message {
		return &cm.REP{LocalID: peerID, RemoteID: ours, QPN: 0x4711, PSN: 9, CAGUID: 0x1234567890, ResponderResources: 1, InitiatorDepth: 1}
	})
	p.n.next(uapi.CMConnectResponse)
}

func (p *silentPeer) establish() {
	p.t.Helper()
	p.n.bring(p.id, p.qp, qpstate.RTR, qpstate.RTS)
	p.n.ok(uapi.OpEstablishCM, &uapi.HandleRequest{Handle: p.id})
}

func (p *silentPeer) disconnect() {
	p.t.Helper()
	p.n.ok(uapi.OpDisconnectCM, &uapi.HandleRequest{Handle: p.id})
}

// wantEvent lets time pass and expects an event with a status.
func (p *silentPeer) wantEvent(kind uapi.CMEvent, status syscall.Errno) {
	p.t.Helper()
	later(p.n.a, 5*time.Minute)
	if rec := p.n.next(kind); rec.ID != p.id || rec.Status != -int32(status) {
		p.t.Errorf("%+v, want identifier %d and status %d", rec, p.id, -int32(status))
	}
}

// A peer that says no more, at every step of a handshake, on either side of it:
// the program is told with the field's status, and nothing is left.
func TestCMPeerVanishes(t *testing.T) {
	for _, row := range []struct {
		name string
		play func(p *silentPeer)
	}{
		{"after its REQ", func(p *silentPeer) { p.asks(); p.wantEvent(uapi.CMUnreachable, syscall.ETIMEDOUT) }},
		{"after its RTU", func(p *silentPeer) {
			p.asks()
			p.rtu()
			p.disconnect()
			p.wantEvent(uapi.CMDisconnected, syscall.ETIMEDOUT)
			p.wantEvent(uapi.CMTimewaitExit, 0)
		}},
		{"after its DREQ", func(p *silentPeer) {
			p.asks()
			p.rtu()
			p.say("DREQ", cm.Handled, func(ours cm.CommID) cm.Message {
				return &cm.DREQ{LocalID: peerID, RemoteID: ours, RemoteQPN: p.qp.QPN}
			})
			p.wantEvent(uapi.CMDisconnected, 0)
			p.disconnect()
			p.wantEvent(uapi.CMTimewaitExit, 0)
		}},
		{"before anything", func(p *silentPeer) { p.asked(); p.wantEvent(uapi.CMUnreachable, syscall.ETIMEDOUT) }},
		{"after its MRA", func(p *silentPeer) {
			p.asked()
			p.say("MRA", cm.Handled, func(ours cm.CommID) cm.Message {
				return &cm.MRA{LocalID: peerID, RemoteID: ours, Subject: cm.SubjectREQ, ServiceTimeout: 20}
			})
			p.wantEvent(uapi.CMUnreachable, syscall.ETIMEDOUT)
		}},
		{"after its REP", func(p *silentPeer) {
			p.asked()
			p.rep()
			p.establish()
			p.disconnect()
			p.wantEvent(uapi.CMDisconnected, syscall.ETIMEDOUT)
			p.wantEvent(uapi.CMTimewaitExit, 0)
		}},
		{"after its REP, which the program does not want", func(p *silentPeer) { p.asked(); p.rep() }},
		{"after its SIDR_REQ", func(p *silentPeer) {
			_, to := p.n.listen(cm.SpaceUDP, anyPort(p.n.a.Addrs()[0]))
			p.say("SIDR_REQ", cm.Handled, func(cm.CommID) cm.Message {
				m := &cm.SIDRREQ{RequestID: peerID, PKey: bth.DefaultPKey, ServiceID: cm.IPService(cm.SpaceUDP, to.Port())}
				src := addrPortOf(bth.GIDFromAddr(p.addr), 5555)
				(&cm.CMA{Src: src, Dst: to.Addr()}).Put(m.Private[:])
				return m
			})
			p.id = p.n.next(uapi.CMConnectRequest).ID
			p.n.ok(uapi.OpAcceptCM, &uapi.CMCallRequest{ID: p.id, Param: paramOfQP(p.n.udQP().QPN)})
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := startAdapter(t, nil)
			p := &silentPeer{rawSender: newRawSender(t), n: newCMNode(t, a)}
			row.play(p)
			later(a, 5*time.Minute)
			p.n.quiet()
			p.n.destroy(p.id)
			p.n.hangUp(t)
			wantNoCM(t, a)
			for _, w := range a.workers {
				w.do(func() {
					if len(w.byQPN) != 0 {
						t.Errorf("%d queue pairs are left", len(w.byQPN))
					}
				})
			}
		})
	}
}

// A peer that started anew asks with a queue pair that it is connected with, as far
// as is known here: it is refused, the old connection ends, and it may ask again.
func TestCMStaleConnection(t *testing.T) {
	a := startAdapter(t, nil)
	p := &silentPeer{rawSender: newRawSender(t), n: newCMNode(t, a)}
	p.asks()
	p.rtu()
	own := must[uapi.CMAddrReply](p.n.rawClient, uapi.OpQueryCM, &uapi.HandleRequest{Handle: p.id}).Own.Port
	again := func(id cm.CommID) []byte { return requestOf(p.rawSender, a, id, own, nil) }
	before, sent := a.cmCounters().Verdicts, a.cmCounters().Sent
	p.send(a.Addrs()[0], again(peerID+1))
	awaitMAD(t, a, "a REQ of a queue pair that is in use", cm.Answered, before)
	now := a.cmCounters().Sent
	for attr, more := range map[cm.AttrID]uint64{cm.AttrREJ: 1, cm.AttrDREQ: 1, cm.AttrREP: 0} {
		if got := now[attr-cm.AttrREQ] - sent[attr-cm.AttrREQ]; got != more {
			t.Errorf("%d messages %v, want %d", got, attr, more)
		}
	}
	p.say("DREP", cm.Handled, func(ours cm.CommID) cm.Message { return &cm.DREP{LocalID: peerID, RemoteID: ours} })
	if rec := p.n.next(uapi.CMDisconnected); rec.ID != p.id || rec.Status != 0 {
		t.Errorf("%+v", rec)
	}
	p.send(a.Addrs()[0], again(peerID+2))
	fresh := p.n.next(uapi.CMConnectRequest)
	if fresh.ID == p.id || fresh.Param.QPN != 0x4711 {
		t.Errorf("%+v", fresh)
	}
	p.n.hangUp(t)
	wantNoCM(t, a)
}

package cm_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/pkg/qpstate"
)

func sidrArgs() cm.ConnectArgs {
	return cm.ConnectArgs{
		Type: qpstate.UD, Service: cm.IPService(cm.SpaceUDP, port),
		CMA: cm.CMA{Src: netip.AddrPortFrom(addrA, 35405), Dst: addrB}, Path: path(addrA, addrB), Private: []byte("who"),
	}
}

func (e *end) listenUD() {
	e.t.Helper()
	must[cm.ListenerID](e.t)(e.Listen(cm.ListenArgs{Type: qpstate.UD, Service: cm.IPService(cm.SpaceUDP, port), Addr: e.addr}))
}

// TestSIDR: the answer may be lost; the program is asked once.
func TestSIDR(t *testing.T) {
	p := newPair(t)
	p.b.listenUD()
	id := must[cm.CommID](t)(p.a.Connect(p.now, sidrArgs()))
	p.exchange()
	p.advance(5 * time.Second) // the request comes again while the program thinks
	ev := p.b.expect(cm.ConnectRequest)
	p.b.quiet()
	if string(ev.Private[:4]) != "who\x00" || ev.PrivateLen != 180 || ev.Local.Port() != port {
		t.Errorf("%+v", ev)
	}
	lost := 0
	p.lose = func(_ *end, attr cm.AttrID) bool {
		if attr == cm.AttrSIDRREP && lost < 2 {
			lost++
			return true
		}
		return false
	}
	ok(t, p.b.Accept(p.now, ev.ID, cm.Param{QPN: qpnB, QKey: 0x1234567}, []byte("me")))
	p.exchange()
	ok(t, p.b.Destroy(p.now, ev.ID)) // the answer outlives the id
	p.a.quiet()
	p.advance(9 * time.Second)
	got := p.a.expect(cm.Established)
	if got.ID != id || got.Param.QPN != qpnB || got.Param.QKey != 0x1234567 || got.PrivateLen != cm.PrivateSIDRREP ||
		string(got.Private[:3]) != "me\x00" || got.Path != sidrArgs().Path || lost != 2 {
		t.Errorf("%+v, %d lost", got, lost)
	}
	p.b.quiet()
	p.nothingLeft()
}

// TestSIDRRefusals: why there is no queue pair, and the status of it.
func TestSIDRRefusals(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*cm.SIDRREQ)
		answer func(p *pair, id cm.CommID) // nil: the machine answers
		want   cm.SIDRStatus
	}{
		{name: "nobody listens", change: func(r *cm.SIDRREQ) { r.ServiceID++ }, want: cm.SIDRUnsupported},
		{name: "RC listens", change: func(r *cm.SIDRREQ) { r.ServiceID = cm.IPService(cm.SpaceTCP, port) }, want: cm.SIDRUnsupported},
		{name: "CMA version", change: func(r *cm.SIDRREQ) { r.Private[0] = 1 }, want: cm.SIDRVersion},
		{name: "another address", change: func(r *cm.SIDRREQ) { r.Private[35]++ }, want: cm.SIDRReject},
		{name: "refused", answer: func(p *pair, id cm.CommID) { ok(p.t, p.b.Reject(p.now, id, cm.RejConsumer, nil)) }, want: cm.SIDRReject},
		{name: "program gone", answer: func(p *pair, id cm.CommID) { ok(p.t, p.b.Destroy(p.now, id)) }, want: cm.SIDRReject},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPair(t)
			p.b.listenUD()
			p.b.listen()
			must[cm.CommID](t)(p.a.Connect(p.now, sidrArgs()))
			_, mad, _ := p.a.PollSend()
			h, msg, err := cm.ParseMAD(mad)
			ok(t, err)
			req, _ := msg.(*cm.SIDRREQ)
			if tt.change != nil {
				tt.change(req)
			}
			p.b.HandleMAD(p.now, path(addrB, addrA), cm.AppendMAD(nil, h, req))
			if tt.answer != nil {
				tt.answer(p, p.b.expect(cm.ConnectRequest).ID)
			}
			p.exchange()
			p.b.quiet()
			if ev := p.a.expect(cm.Unreachable); ev.Status != int32(tt.want) {
				t.Errorf("status %v, want %v", cm.SIDRStatus(ev.Status), tt.want)
			}
			p.nothingLeft()
		})
	}
}

// TestSIDRUnanswered: nobody is there.
func TestSIDRUnanswered(t *testing.T) {
	p := newPair(t)
	must[cm.CommID](t)(p.a.Connect(p.now, sidrArgs()))
	p.lose = func(*end, cm.AttrID) bool { return true }
	p.advance(16*4096*time.Millisecond - 1)
	p.a.quiet()
	p.advance(1)
	if ev := p.a.expect(cm.Unreachable); ev.Status != cm.StatusTimeout {
		t.Errorf("%+v", ev)
	}
	p.nothingLeft()
}

// TestSIDRBacklog: requests beyond it wait in the network.
func TestSIDRBacklog(t *testing.T) {
	p := newPair(t)
	must[cm.ListenerID](t)(p.b.Listen(cm.ListenArgs{Type: qpstate.UD, Service: cm.IPService(cm.SpaceUDP, port), Backlog: 1}))
	for range 2 {
		must[cm.CommID](t)(p.a.Connect(p.now, sidrArgs()))
	}
	p.exchange()
	first := p.b.expect(cm.ConnectRequest)
	p.b.quiet()
	ok(t, p.b.Taken(first.ID))
	p.advance(5 * time.Second)
	p.b.expect(cm.ConnectRequest)
	p.nothingLeftNow()
}

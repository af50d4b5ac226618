package nic

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// cmCounters reads the machine's counters between two turns.
func (a *Adapter) cmCounters() (c cm.Counters) {
	a.gsi.w.do(func() { c = a.gsi.machine.Counters() })
	return c
}

// awaitMAD waits until one more MAD met a verdict.
func awaitMAD(t testing.TB, a *Adapter, name string, want cm.Verdict, before [cm.VerdictCount]uint64) {
	t.Helper()
	ctx := within(t)
	for {
		now := a.cmCounters().Verdicts
		if now != before {
			before[want]++
			if now != before {
				t.Errorf("%s: verdicts %v, want one more %v", name, now, want)
			}
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s: no verdict", name)
		}
		runtime.Gosched()
	}
}

// mad is a datagram to queue pair 1.
func mad(payload []byte) []byte { return rawDatagram(gsiQPN, gsiQKey, payload) }

// requestOf is a REQ from a raw sender to a port of a.
func requestOf(s *rawSender, a *Adapter, id cm.CommID, port uint16, change func(*cm.Header, *cm.REQ)) []byte {
	dst := a.Addrs()[0]
	h := cm.Header{BaseVersion: cm.BaseVersion, Class: cm.ClassCM, ClassVersion: cm.ClassVersion, Method: cm.MethodSend, TID: uint64(id)}
	m := &cm.REQ{
		LocalID: id, ServiceID: cm.IPService(cm.SpaceTCP, port), CAGUID: 0x1234567890, QPN: 0x4711, ResponderResources: 1, InitiatorDepth: 1,
		RemoteTimeout: 20, LocalTimeout: 20, PSN: 100, RetryCount: 7, PKey: bth.DefaultPKey, MTU: bth.MTU1024, RNRRetry: 7, MaxCMRetries: 15,
		Primary: cm.PathRecord{
			LocalLID: 0xFFFF, RemoteLID: 0xFFFF, LocalGID: bth.GIDFromAddr(s.addr), RemoteGID: bth.GIDFromAddr(dst), HopLimit: 64, AckTimeout: 17,
		},
	}
	cma := cm.CMA{Src: addrPortOf(bth.GIDFromAddr(s.addr), 5555), Dst: dst}
	cma.Put(m.Private[:])
	if change != nil {
		change(&h, m)
	}
	return mad(cm.AppendMAD(nil, h, m))
}

// What comes to queue pair 1 and is no management datagram of ours is dropped and
// counted, and the next good one is served.
func TestBadMADs(t *testing.T) {
	a := startAdapter(t, nil)
	n := newCMNode(t, a)
	_, to := n.listen(cm.SpaceTCP, anyPort(a.Addrs()[0]))
	raw := newRawSender(t)
	dst := a.Addrs()[0]
	good := requestOf(raw, a, 7, to.Port(), nil)
	payload := good[bth.BTHLen+8:]
	t.Run("no datagram of 256 bytes", func(t *testing.T) {
		for _, size := range []int{0, 1, 24, 255, 257, 1024, 4096} {
			_, drops := a.verdicts()
			raw.send(dst, mad(make([]byte, size)))
			awaitDrop(t, a, fmt.Sprintf("%d bytes", size), DropMAD, drops)
		}
	})
	t.Run("keys", func(t *testing.T) {
		for _, row := range []struct {
			name, verdict string
			packet        []byte
		}{
			{"Q_Key 0", "drop_qkey", rawDatagram(gsiQPN, 0, payload)},
			{"Q_Key of rdma_cm's UD", "drop_qkey", rawDatagram(gsiQPN, udpQKey, payload)},
			{"P_Key", "drop_pkey", func() []byte {
				b := append([]byte(nil), good...)
				b[2], b[3] = 0x12, 0x34
				return b
			}()},
		} {
			before, _ := a.verdicts()
			raw.send(dst, row.packet)
			awaitVerdict(t, a, row.name, row.verdict, before)
		}
	})
	t.Run("headers", func(t *testing.T) {
		for _, row := range []struct {
			name   string
			want   cm.Verdict
			change func(*cm.Header, *cm.REQ)
		}{
			{"base version", cm.DropMalformed, func(h *cm.Header, _ *cm.REQ) { h.BaseVersion = 2 }},
			{"class", cm.DropMalformed, func(h *cm.Header, _ *cm.REQ) { h.Class = 3 }},
			{"class version", cm.DropMalformed, func(h *cm.Header, _ *cm.REQ) { h.ClassVersion = 1 }},
			{"method", cm.DropMalformed, func(h *cm.Header, _ *cm.REQ) { h.Method = 1 }},
			{"nobody listens", cm.Answered, func(_ *cm.Header, m *cm.REQ) { m.ServiceID++ }},
		} {
			before := a.cmCounters().Verdicts
			raw.send(dst, requestOf(raw, a, 7, to.Port(), row.change))
			awaitMAD(t, a, row.name, row.want, before)
		}
		unknown := append([]byte(nil), good...)
		unknown[bth.BTHLen+8+17] = 0x1B
		before := a.cmCounters().Verdicts
		raw.send(dst, unknown)
		awaitMAD(t, a, "attribute", cm.DropMalformed, before)
		raw.send(dst, good)
		if rec := n.next(uapi.CMConnectRequest); rec.Param.QPN != 0x4711 || rec.Peer.Port != 5555 {
			t.Errorf("the good one: %+v", rec)
		}
	})
	n.hangUp(t)
	wantNoCM(t, a)
}

// Noise of all kinds to queue pair 1: nothing ends, nothing stays, and a real
// connection comes up all the same.
func TestMADNoise(t *testing.T) {
	a, b := twoAdapters(t, false)
	client, server := newCMNode(t, a), newCMNode(t, b)
	listener, to := server.listen(cm.SpaceTCP, anyPort(b.Addrs()[0]))
	raw := newRawSender(t)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 2000 {
		p := requestOf(raw, b, cm.CommID(r.Uint32N(8)), to.Port()+1, nil)
		body := p[bth.BTHLen+8:]
		body[17] = byte(0x10 + r.UintN(12)) // the attribute
		for range r.IntN(20) {
			body[r.IntN(len(body))] = byte(r.UintN(256))
		}
		raw.send(b.Addrs()[0], p)
		if i%100 == 0 {
			b.gsi.w.quiesce()
		}
	}
	l := connectNodes(t, client, server, listener, to)
	checkConnected(t, l)
	client.hangUp(t)
	server.hangUp(t)
	wantNoCM(t, a)
	wantNoCM(t, b)
}

// The first packet of the queue pair is as good as an RTU, which was lost.
func TestFirstPacketStandsForRTU(t *testing.T) {
	a := startAdapter(t, nil)
	n := newCMNode(t, a)
	_, to := n.listen(cm.SpaceTCP, anyPort(a.Addrs()[0]))
	raw := newRawSender(t)
	for _, notify := range []bool{false, true} {
		raw.send(a.Addrs()[0], requestOf(raw, a, 7, to.Port(), func(_ *cm.Header, m *cm.REQ) {
			if notify {
				m.LocalID, m.QPN = m.LocalID+1, m.QPN+1
			}
		}))
		req := n.next(uapi.CMConnectRequest)
		qp := n.rcQP()
		n.bring(req.ID, qp, qpstate.Init, qpstate.RTR, qpstate.RTS)
		n.ok(uapi.OpAcceptCM, &uapi.CMCallRequest{ID: req.ID, Param: paramOfQP(qp.QPN)})
		n.ok(uapi.OpNotifyCM, &uapi.CMValueRequest{ID: req.ID, Value: uint32(uapi.EventSQDrained)})
		n.quiet()
		if notify {
			n.ok(uapi.OpNotifyCM, &uapi.CMValueRequest{ID: req.ID, Value: uint32(uapi.EventCommEst)})
		} else {
			attr := must[uapi.QueryQPReply](n.rawClient, uapi.OpQueryQP, &uapi.HandleRequest{Handle: qp.Handle}).Attr
			h := bth.Headers{
				BTH:  bth.BTHFields{Opcode: bth.RCWriteOnly, PKey: bth.DefaultPKey, MigReq: true, DestQP: qp.QPN, PSN: attr.RQPSN, AckReq: true},
				RETH: bth.RETHFields{},
			}
			raw.send(a.Addrs()[0], h.Append(nil))
		}
		if rec := n.next(uapi.CMEstablished); rec.ID != req.ID {
			t.Errorf("established: %+v", rec)
		}
	}
	n.hangUp(t)
	wantNoCM(t, a)
}

// Peers in great number take no memory: the ways to them are bounded, and so are
// the machine's answers.
func TestWaysToPeersAreBounded(t *testing.T) {
	a := startAdapter(t, nil)
	g := a.gsi
	g.w.do(func() {
		local := bth.GIDFromAddr(a.Addrs()[0])
		for i := range 3 * maxGSIPaths {
			remote := bth.GID{10: 0xFF, 11: 0xFF, 12: 127, 13: 200, 14: byte(i >> 8), 15: byte(i)}
			if n := g.wayTo(&cm.Path{Local: local, Remote: remote}); n == 0 || g.ways[n] == nil {
				t.Fatalf("no way to %s", remote)
			}
		}
		if len(g.ways) > maxGSIPaths || len(g.paths) != len(g.ways) {
			t.Errorf("%d ways, %d keys", len(g.ways), len(g.paths))
		}
		for _, p := range []cm.Path{
			{Local: local},
			{Remote: local},
			{Local: local, Remote: bth.GID{0: 0xFF}},
			{Local: local, Remote: bth.GID{10: 0xFF, 11: 0xFF}},
			{Local: local, Remote: bth.GID{0: 0xFD, 15: 1}},
		} {
			if g.wayTo(&p) != 0 {
				t.Errorf("there is a way from %s to %s", p.Local, p.Remote)
			}
		}
		g.forgetAll()
	})
}

// A capture has the datagrams of queue pair 1 as the wire has them.
func TestMADCapture(t *testing.T) {
	var tape bytes.Buffer
	w, err := capture.NewWriter(&tape, "cm", capture.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a, b := startAdapter(t, func(c *Config) { c.Capture = w }), startAdapter(t, nil)
	client, server := newCMNode(t, a), newCMNode(t, b)
	listener, to := server.listen(cm.SpaceTCP, anyPort(b.Addrs()[0]))
	connectNodes(t, client, server, listener, to)
	a.quiesce()
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	var seen []capture.Record
	if err := capture.Decode(&tape, func(r capture.Record) { seen = append(seen, r) }); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 3 { // REQ, REP, RTU
		t.Fatalf("%d packets captured, want 3", len(seen))
	}
	for i, p := range seen {
		if want := []string{"qp 0x000001", "accepted", "qp 0x000001"}[i]; p.Opcode != bth.UDSendOnly || p.QPN != gsiQPN || p.Bad() || !strings.HasPrefix(p.Comment, want) {
			t.Errorf("packet %d: %+v, want %q", i, p, want)
		}
	}
}

// What a connection costs from its first call to the end of its identifiers,
// both sides in one process: about thirty requests.
func BenchmarkCMConnect(b *testing.B) {
	x, y := startAdapter(b, nil), startAdapter(b, nil)
	client, server := newCMNode(b, x), newCMNode(b, y)
	listener, to := server.listen(cm.SpaceTCP, anyPort(y.Addrs()[0]))
	b.ReportAllocs()
	for b.Loop() {
		l := connectNodes(b, client, server, listener, to)
		client.ok(uapi.OpDisconnectCM, &uapi.HandleRequest{Handle: l.clientID})
		server.next(uapi.CMDisconnected)
		server.ok(uapi.OpDisconnectCM, &uapi.HandleRequest{Handle: l.serverID})
		client.next(uapi.CMDisconnected)
		client.destroy(l.clientID)
		server.destroy(l.serverID)
		client.ok(uapi.OpDestroyQP, &uapi.HandleRequest{Handle: l.clientQP.Handle})
		server.ok(uapi.OpDestroyQP, &uapi.HandleRequest{Handle: l.serverQP.Handle})
	}
}

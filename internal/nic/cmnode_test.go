package nic

import (
	"io"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// A cmNode is a program that uses the connection manager with no library in
// between.
type cmNode struct {
	*rawClient
	a      *Adapter
	ch     uint32
	events *os.File
	pd, cq uint32
}

func newCMNode(t testing.TB, a *Adapter) *cmNode {
	t.Helper()
	n := &cmNode{rawClient: rawHello(t, a), a: a}
	n.pd = n.rawClient.pd()
	n.cq = n.rawClient.cq(64)
	n.ch, n.events = n.channel()
	return n
}

// channel makes an event channel.
func (n *cmNode) channel() (uint32, *os.File) {
	n.t.Helper()
	got := n.call(uapi.OpCreateCMChannel, nil)
	var rep uapi.HandleReply
	if err := rep.Decode(got.body); got.errno != 0 || err != nil || len(got.fds) != 1 {
		n.t.Fatal(got.errno, got.text, err, got.fds)
	}
	fd, err := unix.FcntlInt(uintptr(got.fds[0]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		n.t.Fatal(err)
	}
	f, err := shm.OpenRecordReader(fd)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = f.Close() })
	return rep.Handle, f
}

// next reads the next event of a channel, which has to be of a kind.
func (n *cmNode) nextOn(f *os.File, want uapi.CMEvent) uapi.CMRecord {
	n.t.Helper()
	if err := f.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		n.t.Fatal(err)
	}
	var b [uapi.CMRecordSize]byte
	if _, err := io.ReadFull(f, b[:]); err != nil {
		n.t.Fatalf("no event, want %d: %v", want, err)
	}
	rec, ok := uapi.DecodeCMRecord(b[:])
	if !ok || rec.Event != want {
		n.t.Fatalf("event %+v, want %d", rec, want)
	}
	return rec
}

func (n *cmNode) next(want uapi.CMEvent) uapi.CMRecord {
	n.t.Helper()
	return n.nextOn(n.events, want)
}

// quiet checks that no event waits on the node's channel.
func (n *cmNode) quiet() {
	n.t.Helper()
	n.a.gsi.w.quiesce()
	if err := n.events.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		n.t.Fatal(err)
	}
	var b [uapi.CMRecordSize]byte
	conn, err := n.events.SyscallConn()
	if err != nil {
		n.t.Fatal(err)
	}
	_ = conn.Control(func(fd uintptr) {
		if k, _ := unix.Read(int(fd), b[:]); k > 0 {
			rec, _ := uapi.DecodeCMRecord(b[:])
			n.t.Errorf("an event that nobody expected: %+v", rec)
		}
	})
}

func (n *cmNode) id(space cm.PortSpace) uint32 {
	n.t.Helper()
	return must[uapi.HandleReply](n.rawClient, uapi.OpCreateCMID, &uapi.CreateCMIDRequest{Channel: n.ch, Space: uint32(space)}).Handle
}

func (n *cmNode) ok(op uapi.Op, body uapi.Body) {
	n.t.Helper()
	if got := n.call(op, body); got.errno != 0 {
		n.t.Fatalf("%v: %v: %s", op, got.errno, got.text)
	}
}

func (n *cmNode) bind(id uint32, own netip.AddrPort) uapi.CMAddrReply {
	n.t.Helper()
	return must[uapi.CMAddrReply](n.rawClient, uapi.OpBindCM, &uapi.CMAddrRequest{ID: id, Own: cmAddr(own)})
}

// listen makes a listener and returns it and its address.
func (n *cmNode) listen(space cm.PortSpace, own netip.AddrPort) (uint32, netip.AddrPort) {
	n.t.Helper()
	id := n.id(space)
	rep := n.bind(id, own)
	n.ok(uapi.OpListenCM, &uapi.CMValueRequest{ID: id, Value: 100})
	return id, addrOf(&rep.Own)
}

// route makes an identifier whose route to a peer is known.
func (n *cmNode) route(space cm.PortSpace, peer netip.AddrPort) uint32 {
	n.t.Helper()
	id := n.id(space)
	n.ok(uapi.OpResolveCMAddr, &uapi.CMAddrRequest{ID: id, Timeout: 1000, Peer: cmAddr(peer)})
	if rec := n.next(uapi.CMAddrResolved); rec.ID != id || rec.Status != 0 {
		n.t.Fatalf("resolved: %+v, want identifier %d", rec, id)
	}
	n.ok(uapi.OpResolveCMRoute, &uapi.HandleRequest{Handle: id})
	n.next(uapi.CMRouteResolved)
	return id
}

func (n *cmNode) rcQP() uapi.CreateQPReply { n.t.Helper(); return n.rawClient.qp(n.pd, n.cq) }

func (n *cmNode) udQP() uapi.CreateQPReply {
	n.t.Helper()
	m := rcRequest(n.pd, n.cq)
	m.Type = qpstate.UD
	return must[uapi.CreateQPReply](n.rawClient, uapi.OpCreateQP, m)
}

// bring modifies a queue pair as the identifier says, through states.
func (n *cmNode) bring(id uint32, qp uapi.CreateQPReply, states ...qpstate.State) {
	n.t.Helper()
	for _, s := range states {
		rep := must[uapi.QPAttrCMReply](n.rawClient, uapi.OpQPAttrCM, &uapi.CMValueRequest{ID: id, Value: uint32(s)})
		n.ok(uapi.OpModifyQP, &uapi.ModifyQPRequest{Handle: qp.Handle, Mask: rep.Mask, Attr: rep.Attr})
	}
}

func paramOfQP(qpn bth.QPN) uapi.CMParam {
	return uapi.CMParam{QPN: qpn, ResponderResources: 4, InitiatorDepth: 3, RetryCount: 7, RNRRetryCount: 6}
}

// A cmLink is a connection between two nodes.
type cmLink struct {
	client, server     *cmNode
	clientID, serverID uint32
	clientQP, serverQP uapi.CreateQPReply
}

// connectNodes brings a connection up, from a client to a listener of the server.
func connectNodes(t testing.TB, client, server *cmNode, listener uint32, to netip.AddrPort) *cmLink {
	t.Helper()
	l := &cmLink{client: client, server: server}
	l.clientQP, l.serverQP = client.rcQP(), server.rcQP()
	l.clientID = client.route(cm.SpaceTCP, to)
	client.bring(l.clientID, l.clientQP, qpstate.Init)
	client.ok(uapi.OpConnectCM, &uapi.CMCallRequest{ID: l.clientID, Param: paramOfQP(l.clientQP.QPN), Private: []byte("hello")})
	req := server.next(uapi.CMConnectRequest)
	if req.Listen != listener {
		t.Fatalf("request %+v of another listener than %d", req, listener)
	}
	l.serverID = req.ID
	server.bring(l.serverID, l.serverQP, qpstate.Init, qpstate.RTR, qpstate.RTS)
	granted := paramOfQP(l.serverQP.QPN)
	granted.ResponderResources = req.Param.ResponderResources
	server.ok(uapi.OpAcceptCM, &uapi.CMCallRequest{ID: l.serverID, Param: granted, Private: []byte("welcome")})
	client.next(uapi.CMConnectResponse)
	client.bring(l.clientID, l.clientQP, qpstate.Init, qpstate.RTR, qpstate.RTS)
	client.ok(uapi.OpEstablishCM, &uapi.HandleRequest{Handle: l.clientID})
	server.next(uapi.CMEstablished)
	return l
}

// destroy ends an identifier and returns how many of its events were written.
func (n *cmNode) destroy(id uint32) uint32 {
	n.t.Helper()
	return must[uapi.CMEventsReply](n.rawClient, uapi.OpDestroyCMID, &uapi.HandleRequest{Handle: id}).Events
}

// later lets the connection manager of an adapter believe that d has passed.
func later(a *Adapter, d time.Duration) {
	a.gsi.w.do(func() {
		end := time.Now().Add(d)
		for {
			due := a.gsi.machine.NextTimeout()
			if due.IsZero() || due.After(end) {
				return
			}
			a.gsi.machine.HandleTimeout(due)
			a.gsi.settle()
		}
	})
}

// wantNoCM checks that nothing of the connection manager is left on an adapter,
// when all of time-wait has passed.
func wantNoCM(t testing.TB, a *Adapter) {
	t.Helper()
	later(a, 10*time.Minute)
	a.gsi.w.do(func() {
		g, c := a.gsi, a.gsi.machine.Counters()
		if c.Conns != 0 || c.HalfOpen != 0 || c.Listeners != 0 || !g.machine.NextTimeout().IsZero() {
			t.Errorf("the machine still has %d ids, %d half open, %d listeners, a deadline at %v", c.Conns, c.HalfOpen, c.Listeners, g.machine.NextTimeout())
		}
		if len(g.byComm) != 0 || len(g.byListener) != 0 || len(g.byQPN) != 0 || len(g.ports.at) != 0 || len(g.waiting) != 0 || g.awaited.Load() != 0 {
			t.Errorf("still there: %d connections, %d listeners, %d awaited, %d ports, %d channels that wait",
				len(g.byComm), len(g.byListener), len(g.byQPN), len(g.ports.at), len(g.waiting))
		}
	})
	use := a.ledger.usage()
	for _, r := range []Resource{ResourceCMIDs, ResourceCMChannels, ResourceMcast} {
		if use[r] != 0 {
			t.Errorf("%d %v still booked", use[r], r)
		}
	}
}

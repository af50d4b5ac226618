package nic

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
)

// cmRequest makes the body of a request of the connection manager; nil for
// another one.
func (h *hostile) cmRequest(op uapi.Op) uapi.Body {
	switch {
	case op == uapi.OpCreateCMID:
		return &uapi.CreateCMIDRequest{Channel: 1 + h.Uint32N(2), Space: uint32(h.pick(uint64(cm.SpaceTCP), uint64(cm.SpaceUDP), uint64(cm.SpaceUDP), 0, 1<<31))}
	case op == uapi.OpBindCM || op == uapi.OpResolveCMAddr:
		return &uapi.CMAddrRequest{ID: h.handle(), Own: h.cmAddr(), Peer: h.cmAddr()}
	case op == uapi.OpConnectCM || op == uapi.OpAcceptCM || op == uapi.OpRejectCM:
		m := &uapi.CMCallRequest{ID: h.handle(), Reason: h.Uint32N(40), Private: make([]byte, h.pick(0, 1, 56, 57, 136, 180, 181, 224))}
		m.Param = uapi.CMParam{QPN: bth.QPN(h.pick(0, 1, 2, uint64(h.Uint32N(1<<24)))), ResponderResources: uint8(h.UintN(256)), RetryCount: uint8(h.UintN(256))}
		return m
	case op == uapi.OpListenCM || op == uapi.OpNotifyCM || op == uapi.OpMigrateCM || op == uapi.OpQPAttrCM || op == uapi.OpSetCMOption:
		return &uapi.CMValueRequest{ID: h.handle(), Value: uint32(h.pick(0, 1, 2, 3, 4, 255, 1<<32-1)), Option: h.Uint32N(6)}
	case op == uapi.OpJoinCM || op == uapi.OpLeaveCM:
		return &uapi.CMMcastRequest{ID: h.handle(), Flags: h.Uint32N(3), Group: h.group()}
	case op >= uapi.OpDestroyCMChannel && op <= uapi.OpLeaveCM:
		return &uapi.HandleRequest{Handle: h.handle()}
	}
	return nil
}

// cmAddr is one of few addresses, so that programs meet.
func (h *hostile) cmAddr() uapi.CMAddr {
	a := uapi.CMAddr{Port: uint16(h.pick(0, 5000, 5001, 40000, 7))}
	switch h.IntN(6) {
	case 0:
		a.GID = bth.GIDFromAddr(netip.IPv4Unspecified())
	case 1:
	case 2:
		a.GID = h.group()
	default:
		a.GID = h.gid
	}
	return a
}

// A cmRogue is a program that makes every call of the connection manager in any
// order, with identifiers and queue pairs that are its own.
type cmRogue struct {
	*cmNode
	*rand.Rand
	qps   []uapi.CreateQPReply
	ids   []uint32
	ports []netip.AddrPort // of everybody's listeners
	seen  map[uapi.CMEvent]int
}

func newCMRogue(t testing.TB, a *Adapter, ports []netip.AddrPort, seed uint64) *cmRogue {
	r := &cmRogue{cmNode: newCMNode(t, a), Rand: rand.New(rand.NewPCG(seed, 5)), ports: ports, seen: map[uapi.CMEvent]int{}}
	for range 3 {
		r.qps = append(r.qps, r.rcQP(), r.udQP())
	}
	for _, p := range ports {
		if p.Addr() == a.Addrs()[0] {
			id, _ := r.listen(cm.SpaceTCP, p)
			udp, _ := r.listen(cm.SpaceUDP, p)
			r.ids = append(r.ids, id, udp)
		}
	}
	return r
}

// drain takes the events that are there.
func (r *cmRogue) drain() {
	conn, err := r.events.SyscallConn()
	if err != nil {
		r.t.Fatal(err)
	}
	_ = conn.Control(func(fd uintptr) {
		var b [uapi.CMRecordSize]byte
		for {
			if n, _ := unix.Read(int(fd), b[:]); n != len(b) {
				return
			}
			rec, _ := uapi.DecodeCMRecord(b[:])
			r.seen[rec.Event]++
			if rec.Event == uapi.CMConnectRequest {
				r.ids = append(r.ids, rec.ID)
			}
		}
	})
}

// step makes one call.
func (r *cmRogue) step() {
	if r.IntN(4) > 0 {
		r.drain()
	}
	if len(r.ids) < 4 || r.IntN(30) == 0 {
		r.ids = append(r.ids, r.id([]cm.PortSpace{cm.SpaceTCP, cm.SpaceUDP}[r.IntN(2)]))
	}
	i := r.IntN(len(r.ids))
	id, qp, peer := r.ids[i], r.qps[r.IntN(len(r.qps))], r.ports[r.IntN(len(r.ports))]
	handle := &uapi.HandleRequest{Handle: id}
	switch n := r.IntN(40); {
	case n == 0:
		r.destroy(id)
		r.ids = append(r.ids[:i], r.ids[i+1:]...)
	case n < 8:
		r.call(uapi.OpResolveCMAddr, &uapi.CMAddrRequest{ID: id, Peer: cmAddr(peer)})
	case n < 14:
		r.call(uapi.OpResolveCMRoute, handle)
	case n < 20:
		r.call(uapi.OpConnectCM, &uapi.CMCallRequest{ID: id, Param: paramOfQP(qp.QPN)})
	case n < 27:
		r.call(uapi.OpAcceptCM, &uapi.CMCallRequest{ID: id, Param: paramOfQP(qp.QPN)})
	case n < 31:
		r.call(uapi.OpEstablishCM, handle)
	case n < 33:
		r.call(uapi.OpDisconnectCM, handle)
	case n < 34:
		r.call(uapi.OpRejectCM, &uapi.CMCallRequest{ID: id})
	case n < 36:
		r.call(uapi.OpQPAttrCM, &uapi.CMValueRequest{ID: id, Value: 1 + r.Uint32N(3)})
	case n < 37:
		r.call(uapi.OpNotifyCM, &uapi.CMValueRequest{ID: id, Value: uint32(uapi.EventCommEst)})
	case n < 38:
		ch, f := r.channel()
		r.ok(uapi.OpMigrateCM, &uapi.CMValueRequest{ID: id, Value: ch})
		r.ok(uapi.OpMigrateCM, &uapi.CMValueRequest{ID: id, Value: r.ch})
		r.ok(uapi.OpDestroyCMChannel, &uapi.HandleRequest{Handle: ch})
		_ = f.Close()
	default:
		r.call(uapi.OpQueryCM, handle)
	}
}

// Programs that call in any order, of two adapters that lose time as they like:
// every call has an answer, connections come up among all that, and nothing
// stays behind.
func TestCMAnyOrder(t *testing.T) {
	a, b := twoAdapters(t, false)
	ports := []netip.AddrPort{netip.AddrPortFrom(a.Addrs()[0], 7400), netip.AddrPortFrom(b.Addrs()[0], 7400)}
	other := []netip.AddrPort{netip.AddrPortFrom(a.Addrs()[0], 7401), netip.AddrPortFrom(b.Addrs()[0], 7401)}
	both := append(ports[:2:2], other...)
	seen := map[uapi.CMEvent]int{}
	for seed := range uint64(4) {
		rogues := []*cmRogue{newCMRogue(t, a, ports, seed), newCMRogue(t, b, ports, seed+100), newCMRogue(t, a, other, seed+200)}
		for _, r := range rogues {
			r.ports = both
		}
		for i := range 1500 {
			rogues[i%3].step()
			if i%100 == 0 {
				later(a, time.Second)
				later(b, 10*time.Second)
			}
		}
		for _, r := range rogues {
			r.drain()
			for k, n := range r.seen {
				seen[k] += n
			}
			r.hangUp(t)
		}
		wantNoCM(t, a)
		wantNoCM(t, b)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	for _, k := range []uapi.CMEvent{
		uapi.CMConnectRequest, uapi.CMConnectResponse, uapi.CMEstablished, uapi.CMRejected, uapi.CMDisconnected, uapi.CMTimewaitExit,
	} {
		if seen[k] == 0 {
			t.Errorf("no event %d came: the calls are no good; %v", k, seen)
		}
	}
}

package nic

import (
	"net/netip"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/udp4791"
)

// An ahPath is the way of an address handle from one worker, for remote queue
// pairs of one steering key: a send socket carries one.
type ahPath struct {
	key   uint64
	ah    *ahObject
	path  transport.Path
	flow  udp4791.FlowID
	route *route
}

// ahPaths are the ways of a program's address handles on one worker: what its
// engines ask for each datagram. A way is made at first use and kept until its
// handle goes.
type ahPaths struct {
	w     *worker
	table *ahTable
	paths map[uint64]*ahPath
	last  *ahPath // of the packet built last
}

func pathKey(handle uint32, remote bth.QPN) uint64 {
	return uint64(handle)<<steerBits | uint64(remote&(steerKeys-1))
}

// Path implements transport.AddressHandles.
func (x *ahPaths) Path(handle uint32, pd mrtable.PD, remote bth.QPN) *transport.Path {
	key := pathKey(handle, remote)
	c := x.last
	if c == nil || c.key != key {
		if c = x.paths[key]; c == nil {
			if c = x.open(handle, key); c == nil {
				return nil
			}
		}
	}
	if c.ah.pd != pd {
		return nil
	}
	x.last = c
	return &c.path
}

// open makes a way; nil when there is no such handle.
func (x *ahPaths) open(handle uint32, key uint64) *ahPath {
	o := x.table.lookup(handle)
	if o == nil {
		return nil
	}
	flow, port, err := x.w.ep.OpenFlow(o.local, uint8(key&(steerKeys-1)), sourcePortOfAH(o.attr.FlowLabel))
	if err != nil {
		flow = 0 // the address is gone: what is sent is lost until it comes back
	}
	hop := o.attr.HopLimit
	if hop == 0 {
		hop = defaultHopLimit
	}
	c := &ahPath{key: key, ah: o, flow: flow, route: x.w.routeOf(o.attr.DGID.Addr())}
	c.path = transport.Path{
		Src: o.src, Dst: o.attr.DGID, SrcPort: port, TrafficClass: o.attr.TrafficClass, HopLimit: hop,
		FlowLabel: o.attr.FlowLabel, Flow: int32(flow), MTU: o.mtu,
	}
	if x.paths == nil {
		x.paths = make(map[uint64]*ahPath)
	}
	x.paths[key] = c
	return c
}

// forget gives back the ways of a handle.
func (x *ahPaths) forget(handle uint32) {
	for k := range bth.QPN(steerKeys) {
		key := pathKey(handle, k)
		if c := x.paths[key]; c != nil {
			x.w.ep.CloseFlow(c.flow)
			delete(x.paths, key)
		}
	}
	x.last = nil
}

// forgetWays has the ways from a local address made anew: it went, or came back.
func (w *worker) forgetWays(addr netip.Addr) {
	if w.gsi != nil {
		w.gsi.forget(addr)
	}
	for _, l := range w.links {
		for key, c := range l.ahs.paths {
			if c.ah.local == addr {
				w.ep.CloseFlow(c.flow)
				delete(l.ahs.paths, key)
				l.ahs.last = nil
			}
		}
	}
}

// close gives back all ways.
func (x *ahPaths) close() {
	for _, c := range x.paths {
		x.w.ep.CloseFlow(c.flow)
	}
	x.paths, x.last = nil, nil
}

// hasDatagrams says whether a UD queue pair of the program has something to
// send, in its ring, its engine or a batch that a full socket refused.
func (l *programLink) hasDatagrams() bool {
	for _, q := range l.datagrams {
		if !q.dead && (q.sq.Pending() > 0 || q.engine.SendsWaiting() > 0 || q.worker.batch.holds(q)) {
			return true
		}
	}
	return false
}

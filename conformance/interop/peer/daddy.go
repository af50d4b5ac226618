package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/softroce/softroce/pkg/rdmacm"
	"github.com/softroce/softroce/pkg/verbs"
)

// daddy is what rdma-core's udaddy does, on softroce: datagrams to an address that the connection manager resolves, and answers
// to where they came from. It has matose's options.
type daddy struct {
	*matose
	ch  *rdmacm.EventChannel
	ids []*rdmacm.ID
}

const daddyPort = 7174

func (m *matose) daddy(ctx context.Context, server string, listens func()) (err error) {
	d := &daddy{matose: m}
	if d.ch, err = rdmacm.NewEventChannel(m.dev); err != nil {
		return err
	}
	if server == "" {
		return d.serve(ctx, listens)
	}
	return d.connect(ctx, server)
}

// event returns the next event, which must be of a type.
func (d *daddy) event(ctx context.Context, want rdmacm.EventType) (*rdmacm.Event, error) {
	e, err := d.ch.Get(ctx)
	if err != nil {
		return nil, err
	}
	e.Ack()
	if e.Type != want {
		return nil, fmt.Errorf("event %v (%w), want %v", e.Type, e.Err(), want)
	}
	return e, nil
}

// ready makes an identifier's queue pair and posts its receives.
func (d *daddy) ready(id *rdmacm.ID) error {
	e := &matoseEnd{head: verbs.GRHSize}
	var err error
	if e.pd, err = d.dev.AllocPD(); err != nil {
		return err
	}
	if e.cq, err = d.dev.CreateCQ(2*d.count, nil, 0); err != nil {
		return err
	}
	if e.mr, err = e.pd.AllocMR(verbs.GRHSize+d.size, verbs.AccessLocalWrite); err != nil {
		return err
	}
	limits := verbs.QPCap{MaxSendWR: uint32(d.count), MaxRecvWR: uint32(d.count), MaxSendSGE: 1, MaxRecvSGE: 1}
	if err := id.CreateQP(e.pd, &verbs.QPInitAttr{Type: verbs.UD, SendCQ: e.cq, RecvCQ: e.cq, Cap: limits}); err != nil {
		return err
	}
	for range d.count {
		if _, err := id.QP().PostRecv(verbs.RecvWR{SGList: []verbs.SGE{e.mr.SGE(0, verbs.GRHSize+d.size)}}); err != nil {
			return err
		}
	}
	d.ids, d.ends = append(d.ids, id), append(d.ends, e)
	return nil
}

func (d *daddy) connect(ctx context.Context, server string) error {
	addr, err := netip.ParseAddr(server)
	if err != nil {
		return err
	}
	for i := range d.conns {
		id, err := d.ch.CreateID(rdmacm.PSUDP)
		if err != nil {
			return err
		}
		if err := id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(addr, daddyPort), 2*time.Second); err != nil {
			return err
		}
		if _, err := d.event(ctx, rdmacm.EventAddrResolved); err != nil {
			return err
		}
		if err := id.ResolveRoute(2 * time.Second); err != nil {
			return err
		}
		if _, err := d.event(ctx, rdmacm.EventRouteResolved); err != nil {
			return err
		}
		if err := d.ready(id); err != nil {
			return err
		}
		if err := id.Connect(nil); err != nil {
			return err
		}
		e, err := d.event(ctx, rdmacm.EventEstablished)
		if err != nil {
			return err
		}
		if err := d.datagrams(i, e.UD.AH, e.UD.QPN, e.UD.QKey); err != nil {
			return err
		}
	}
	if err := d.await(ctx, 1); err != nil {
		return err
	}
	return d.await(ctx, 0)
}

// datagrams posts the sends of one identifier. Their immediate data is its queue pair's number, as the peer's program has it.
func (d *daddy) datagrams(i int, to verbs.AHAttr, qpn verbs.QPN, key verbs.QKey) error {
	e, qp := d.ends[i], d.ids[i].QP()
	ah, err := e.pd.CreateAH(&to)
	if err != nil {
		return err
	}
	for range d.count {
		wr := verbs.SendWR{
			WRID: 1, Opcode: verbs.WRSendWithImm, Flags: verbs.SendSignaled, ImmData: uint32(qp.Num()),
			AH: ah.Handle(), RemoteQPN: qpn, RemoteQKey: key, SGList: []verbs.SGE{e.mr.SGE(verbs.GRHSize, d.size)},
		}
		if _, err := qp.PostSend(wr); err != nil {
			return err
		}
	}
	return nil
}

func (d *daddy) serve(ctx context.Context, listens func()) error {
	l, err := d.ch.CreateID(rdmacm.PSUDP)
	if err != nil {
		return err
	}
	if err := l.Bind(netip.AddrPortFrom(netip.Addr{}, daddyPort)); err != nil {
		return err
	}
	if err := l.Listen(0); err != nil {
		return err
	}
	listens()
	for range d.conns {
		e, err := d.event(ctx, rdmacm.EventConnectRequest)
		if err != nil {
			return err
		}
		if err := d.ready(e.ID); err != nil {
			return err
		}
		if err := e.ID.Accept(nil); err != nil {
			return err
		}
	}
	if err := d.await(ctx, 0); err != nil {
		return err
	}
	for i, e := range d.ends {
		to, err := d.dev.InitAHFromWC(1, &e.last, e.mr.Bytes()[:verbs.GRHSize])
		if err != nil {
			return err
		}
		if err := d.datagrams(i, to, e.last.SrcQP, rdmacm.QKeyUDP); err != nil {
			return err
		}
	}
	return d.await(ctx, 1)
}

package main

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

func parseGID(s string) (verbs.GID, error) {
	addr, err := netip.ParseAddr(s)
	return bth.GIDFromAddr(addr.Unmap()), err
}

func (e *localEnd) handle(ah *verbs.AH, err error) (int, error) {
	e.ahs = append(e.ahs, ah)
	return len(e.ahs) - 1, err
}

func (e *localEnd) Handle(gid string) (int, error) {
	to, err := parseGID(gid)
	if err != nil {
		return 0, err
	}
	return e.handle(e.pd.CreateAH(&verbs.AHAttr{DGID: to, SGIDIndex: uint8(e.gid), HopLimit: 64, IsGlobal: true, PortNum: 1}))
}

func (e *localEnd) Answer(id uint64, off int) (int, error) {
	wc := e.wcs[id]
	return e.handle(e.pd.CreateAHFromWC(1, &wc, e.mr.Bytes()[off:][:verbs.GRHSize]))
}

func (e *localEnd) Group(gid string, join bool) error {
	group, err := parseGID(gid)
	if err != nil {
		return err
	}
	if join {
		return e.qps[0].AttachMcast(group, 0)
	}
	return e.qps[0].DetachMcast(group, 0)
}

func (e *localEnd) Window(typ int) (int, uint32, error) {
	mw, err := e.pd.AllocMW(verbs.WindowType(typ))
	if err != nil {
		return 0, 0, err
	}
	e.mws = append(e.mws, mw)
	return len(e.mws) - 1, uint32(mw.RKey()), nil
}

func (e *localEnd) Bind(b bindWR) (uint32, error) {
	mw, addr := e.mws[b.MW], e.mr.Addr()+uint64(b.Off)
	e.log("softroce: bind %+v", b)
	if mw.Type() == verbs.MWType1 {
		err := e.qps[0].BindMW(mw, verbs.MWBind{
			WRID: b.ID, Flags: verbs.SendFlags(b.Flags), MR: e.mr, Addr: addr, Length: uint64(b.Len), Access: verbs.Access(b.Access),
		})
		return uint32(mw.RKey()), err
	}
	wr := mw.BindWR(e.mr, addr, uint64(b.Len), verbs.Access(b.Access))
	wr.WRID, wr.Flags = b.ID, verbs.SendFlags(b.Flags)
	n, err := e.qps[0].PostSend(wr)
	return uint32(mw.RKey()), posted(n, 1, err)
}

func (e *localEnd) Rereg(access int) (uint32, error) {
	err := e.mr.Rereg(verbs.ReregChangeAccess, nil, nil, verbs.Access(access))
	return uint32(e.mr.RKey()), err
}

func (e *localEnd) Limit(limit int) error {
	return e.srq.Modify(verbs.SRQAttr{Limit: uint32(limit)}, verbs.SRQLimitMask)
}

func (e *localEnd) Event(ms int) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(ms)*time.Millisecond)
	defer cancel()
	ev, err := e.dev.AsyncEvent(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return -1, nil
	}
	ev.Ack()
	e.log("softroce: event %v", ev.Type)
	return int(ev.Type), err
}

package nic

import (
	"syscall"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/mrtable"
)

// mwObject is a memory window.
type mwObject struct {
	pd     *pdObject
	window *mrtable.Window
}

// allocMW makes a memory window (ibv_alloc_mw), which work requests bind.
func (p *program) allocMW(m *uapi.AllocMWRequest) (reply, error) {
	d, ok := p.pds.lookup(m.PD)
	if !ok {
		return reply{}, errHandle("protection domain", m.PD)
	}
	if err := p.account.charge(ResourceMWs, 1); err != nil {
		return reply{}, err
	}
	w, err := p.a.keys.AllocWindow(d.pd, m.Type, random32())
	if err != nil {
		p.account.release(ResourceMWs, 1)
		return reply{}, refuseKeys(err)
	}
	d.users++
	h := p.mws.add(&mwObject{pd: d, window: w})
	return reply{body: &uapi.AllocMWReply{Handle: h, RKey: w.RKey()}}, nil
}

// deallocMW ends a window, bound or not (ibv_dealloc_mw): its key stops at once.
func (p *program) deallocMW(m *uapi.HandleRequest) (reply, error) {
	o, ok := p.mws.lookup(m.Handle)
	if !ok {
		return reply{}, errHandle("memory window", m.Handle)
	}
	if err := p.a.keys.MarkWindow(o.window); err != nil {
		return reply{}, refuse(syscall.EINVAL, "%v", err)
	}
	p.mws.remove(m.Handle)
	p.a.keys.FreeWindow(o.window) // its memory is the region's, whose end waits for who uses it
	o.pd.users--
	p.account.release(ResourceMWs, 1)
	return reply{}, nil
}

// allocMR makes a region without memory, to which work requests give pages
// (ib_alloc_mr).
func (p *program) allocMR(m *uapi.AllocMRRequest) (reply, error) {
	d, ok := p.pds.lookup(m.PD)
	if !ok {
		return reply{}, errHandle("protection domain", m.PD)
	}
	if err := p.account.charge(ResourceMRs, 1); err != nil {
		return reply{}, err
	}
	region, err := p.a.keys.AllocRegion(d.pd, m.MaxPages, random32())
	if err != nil {
		p.account.release(ResourceMRs, 1)
		return reply{}, refuseKeys(err)
	}
	d.users++
	h := p.mrs.add(&mrObject{pd: d, region: region, fast: true})
	return reply{body: &uapi.RegMRReply{Handle: h, LKey: region.LKey(), RKey: region.RKey()}}, nil
}

// markKeys ends the look-ups of all of a dead program's keys: first the windows,
// which hold their regions. Of a region that a work request binds a window to
// meanwhile the end comes at the next call.
func (p *program) markKeys() {
	for _, o := range p.mws.byHandle {
		_ = p.a.keys.MarkWindow(o.window) // fails only when marked already
	}
	for _, o := range p.mrs.byHandle {
		_ = p.a.keys.Mark(o.region) // as above
	}
}

package tiny

import (
	"net/netip"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/pkg/bth"
)

func (t *Target) doPD(_ *agent.Request, a *agent.Answer) error {
	a.PD = t.handle()
	t.pds[a.PD] = true
	return nil
}

// checkAccess refuses remote writing without local writing.
func (t *Target) checkAccess(names []string) (access, error) {
	acc, err := parseAccess(names)
	if err != nil {
		return 0, err
	}
	if acc&(remoteWrite|remoteAtomic) != 0 && acc&localWrite == 0 && !t.broken("reg-mr-unchecked") {
		return 0, invalid("remote writing needs LOCAL_WRITE")
	}
	return acc, nil
}

func (t *Target) doMR(r *agent.Request, a *agent.Answer) error {
	if _, err := find(t.pds, "pd", r.PD); err != nil {
		return err
	}
	acc, err := t.checkAccess(r.Access)
	switch {
	case err != nil:
		return err
	case r.Length <= 0 || r.Length > maxData:
		return invalid("length %d", r.Length)
	}
	mr := &region{handle: t.handle(), pd: r.PD, mem: make([]byte, r.Length), access: acc, key: t.newKey()}
	switch {
	case acc&zeroBased != 0:
	case r.Iova != nil:
		mr.addr = *r.Iova
		if mr.addr+uint64(r.Length) < mr.addr {
			return invalid("the region wraps")
		}
		if t.broken("iova-ignored") {
			mr.addr &= 0xFFFFFF
		}
	default:
		t.addrs += (uint64(r.Length) + 0xFFFFF) &^ 0xFFFFF
		mr.addr = 0x7F00_0000_0000 + t.addrs
		t.addrs += 0x100000
	}
	t.mrs[mr.handle] = mr
	a.MR, a.Addr, a.LKey, a.RKey = mr.handle, mr.addr, mr.key, mr.key
	if t.broken("iova-ignored") && r.Iova != nil {
		a.Addr = *r.Iova
	}
	return nil
}

func (t *Target) doRereg(r *agent.Request, a *agent.Answer) error {
	mr, err := find(t.mrs, "mr", r.MR)
	if err != nil {
		return err
	}
	acc, err := t.checkAccess(r.Access)
	if err != nil {
		return err
	}
	if mr.windows > 0 {
		return &errno{"EBUSY", "windows are bound to the region"}
	}
	mr.access, mr.key = acc, t.newKey()
	a.LKey, a.RKey = mr.key, mr.key
	return nil
}

func (t *Target) piece(r *agent.Request, n int) ([]byte, error) {
	mr, err := find(t.mrs, "mr", r.MR)
	if err != nil {
		return nil, err
	}
	if r.Off < 0 || n < 0 || r.Off > len(mr.mem) || n > len(mr.mem)-r.Off {
		return nil, invalid("%d bytes at %d of a region of %d", n, r.Off, len(mr.mem))
	}
	return mr.mem[r.Off:][:n], nil
}

func (t *Target) doWrite(r *agent.Request, _ *agent.Answer) error {
	b, err := t.piece(r, len(r.Data))
	copy(b, r.Data)
	return err
}

func (t *Target) doRead(r *agent.Request, a *agent.Answer) error {
	b, err := t.piece(r, r.Length)
	a.Data = append([]byte(nil), b...)
	return err
}

func (t *Target) doCQ(r *agent.Request, a *agent.Answer) error {
	if r.CQE < 0 || r.CQE > 1<<20 {
		return invalid("cqe %d", r.CQE)
	}
	c := &cq{t: t, handle: t.handle(), cqe: r.CQE, channel: r.Channel}
	if c.cqe == 0 {
		c.cqe = 256
	}
	t.cqs[c.handle] = c
	a.CQ = c.handle
	return nil
}

func (t *Target) doArm(r *agent.Request, _ *agent.Answer) error {
	c, err := find(t.cqs, "cq", r.CQ)
	if err == nil {
		c.armed, c.onlySE = true, r.Solicited
	}
	return err
}

func (t *Target) doEvent(r *agent.Request, a *agent.Answer) error {
	c, err := find(t.cqs, "cq", r.CQ)
	if err != nil {
		return err
	}
	t.await(r.MS, func() bool { return c.events > 0 })
	if c.events > 0 {
		c.events--
		a.Event = true
	}
	return nil
}

func (t *Target) doPoll(r *agent.Request, a *agent.Answer) error {
	c, err := find(t.cqs, "cq", r.CQ)
	if err != nil {
		return err
	}
	n := max(r.N, 1)
	t.await(r.MS, func() bool { return len(c.wcs) >= n })
	n = min(n, len(c.wcs))
	a.WCs = append([]agent.WC{}, c.wcs[:n]...)
	c.wcs = append([]agent.WC(nil), c.wcs[n:]...)
	return nil
}

func (t *Target) doSRQ(r *agent.Request, a *agent.Answer) error {
	if _, err := find(t.pds, "pd", r.PD); err != nil {
		return err
	}
	s := &srq{handle: t.handle(), pd: r.PD, max: orElse(r.RecvWRs, 64), sges: orElse(r.RecvSGEs, 4)}
	t.srqs[s.handle] = s
	a.SRQ = s.handle
	return nil
}

func (t *Target) doSRQLimit(r *agent.Request, _ *agent.Answer) error {
	s, err := find(t.srqs, "srq", r.SRQ)
	if err != nil {
		return err
	}
	if r.Limit < 0 || r.Limit > s.max {
		return invalid("limit %d of %d", r.Limit, s.max)
	}
	s.limit = r.Limit
	return nil
}

func orElse(v, otherwise int) int {
	if v == 0 {
		return otherwise
	}
	return v
}

func (t *Target) doQP(r *agent.Request, a *agent.Answer) error {
	if _, err := find(t.pds, "pd", r.PD); err != nil {
		return err
	}
	send, err := find(t.cqs, "cq", r.SendCQ)
	if err != nil {
		return err
	}
	recv, err := find(t.cqs, "cq", r.RecvCQ)
	if err != nil {
		return err
	}
	q := &qp{t: t, handle: t.handle(), typ: r.Type, pd: r.PD, sendCQ: send, recvCQ: recv, caps: *r, sigAll: r.SigAll, state: "RESET"}
	if r.SRQ != 0 {
		if q.srq, err = find(t.srqs, "srq", r.SRQ); err != nil {
			return err
		}
	}
	c := &q.caps
	c.SendWRs, c.RecvWRs, c.SendSGEs, c.RecvSGEs = orElse(c.SendWRs, 64), orElse(c.RecvWRs, 64), orElse(c.SendSGEs, 4), orElse(c.RecvSGEs, 4)
	if c.SendSGEs > maxSGE || c.RecvSGEs > maxSGE || c.Inline > maxInline || c.SendWRs < 0 || c.RecvWRs < 0 {
		return invalid("more than the target has")
	}
	switch r.Type {
	case "RC", "UC", "UD":
		t.qpns++
		q.num = t.qpns
	case "GSI":
		q.num = bth.GSIQPN
	default:
		return invalid("queue pair type %q", r.Type)
	}
	t.qps[q.handle], t.byNum[q.num] = q, q
	a.QP, a.QPN = q.handle, uint32(q.num)
	return nil
}

func (t *Target) doModify(r *agent.Request, _ *agent.Answer) error {
	q, err := find(t.qps, "qp", r.QP)
	if err != nil {
		return err
	}
	if r.Attrs == nil {
		return nil
	}
	if err := q.modify(r.Attrs); err != nil {
		return invalid("%v", err)
	}
	return nil
}

func (t *Target) doQuery(r *agent.Request, a *agent.Answer) error {
	q, err := find(t.qps, "qp", r.QP)
	if err == nil {
		a.Attrs = q.attrs()
	}
	return err
}

func (t *Target) doMW(r *agent.Request, a *agent.Answer) error {
	if _, err := find(t.pds, "pd", r.PD); err != nil {
		return err
	}
	w := &window{handle: t.handle(), pd: r.PD, key: t.newKey() | 1<<31}
	switch r.Type {
	case "1":
		w.typ = 1
	case "2":
		w.typ = 2
	default:
		return invalid("window type %q", r.Type)
	}
	t.mws[w.handle] = w
	a.MW, a.RKey = w.handle, w.key
	return nil
}

func (t *Target) doAH(r *agent.Request, a *agent.Answer) error {
	if _, err := find(t.pds, "pd", r.PD); err != nil {
		return err
	}
	if r.Path == nil || r.Path.GIDIndex != 0 {
		return invalid("no path, or no such GID")
	}
	if _, err := netip.ParseAddr(r.Path.Addr); err != nil {
		return invalid("%v", err)
	}
	a.AH = t.handle()
	t.ahs[a.AH] = &addressHandle{pd: r.PD, path: *r.Path}
	return nil
}

func (t *Target) group(r *agent.Request) (*qp, netip.Addr, error) {
	q, err := find(t.qps, "qp", r.QP)
	if err != nil {
		return nil, netip.Addr{}, err
	}
	g, err := netip.ParseAddr(r.GID)
	if err != nil || !g.IsMulticast() || q.typ != "UD" {
		return nil, g, invalid("%q is no group for a %s queue pair", r.GID, q.typ)
	}
	return q, g, nil
}

func (t *Target) doAttach(r *agent.Request, _ *agent.Answer) error {
	q, g, err := t.group(r)
	if err == nil {
		t.groups[g] = append(t.groups[g], q)
	}
	return err
}

func (t *Target) doDetach(r *agent.Request, _ *agent.Answer) error {
	q, g, err := t.group(r)
	if err != nil {
		return err
	}
	for i, o := range t.groups[g] {
		if o == q {
			t.groups[g] = append(t.groups[g][:i:i], t.groups[g][i+1:]...)
			return nil
		}
	}
	return invalid("it is not attached")
}

func (t *Target) doAsync(r *agent.Request, a *agent.Answer) error {
	t.await(r.MS, func() bool { return len(t.events) > 0 })
	a.Events, t.events = append([]agent.Event{}, t.events...), nil
	return nil
}

func (t *Target) doCounters(_ *agent.Request, a *agent.Answer) error {
	a.Counters = map[string]uint64{}
	for k, v := range t.counts {
		a.Counters[k] = v
	}
	return nil
}

func (t *Target) doDestroy(r *agent.Request, _ *agent.Answer) error {
	switch {
	case r.MR != 0:
		mr, err := find(t.mrs, "mr", r.MR)
		if err != nil {
			return err
		}
		if mr.windows > 0 && !t.broken("dereg-with-windows") {
			return &errno{"EBUSY", "windows are bound to the region"}
		}
		if !t.broken("dereg-does-nothing") {
			delete(t.mrs, r.MR)
		}
	case r.MW != 0:
		w, err := find(t.mws, "mw", r.MW)
		if err != nil {
			return err
		}
		w.free()
		delete(t.mws, r.MW)
	case r.QP != 0:
		q, err := find(t.qps, "qp", r.QP)
		if err != nil {
			return err
		}
		q.destroy()
	case r.CQ != 0:
		return drop(t.cqs, "cq", r.CQ)
	case r.SRQ != 0:
		return drop(t.srqs, "srq", r.SRQ)
	case r.AH != 0:
		return drop(t.ahs, "ah", r.AH)
	case r.PD != 0:
		return drop(t.pds, "pd", r.PD)
	}
	return nil
}

func drop[T any](m map[int]T, what string, handle int) error {
	if _, err := find(m, what, handle); err != nil {
		return err
	}
	delete(m, handle)
	return nil
}

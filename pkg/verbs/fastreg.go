package verbs

import "github.com/softroce/softroce/internal/uapi"

// AllocFastMR makes a region without memory, for fast registration: a request
// with WRRegMR gives it up to maxPages pages, one with WRLocalInv, or the peer's
// SEND_WITH_INV, takes them away (the kernel's ib_alloc_mr, which has no name in
// the verbs manual). EINVAL: maxPages is 0 or over the adapter's limit.
func (p *PD) AllocFastMR(maxPages int) (*MR, error) {
	const op = "allocate fast MR"
	if maxPages < 1 || maxPages > 1<<30 {
		return nil, invalid(op, "%d pages", maxPages)
	}
	d := p.dev
	var rep uapi.RegMRReply
	if err := d.ctl.do(op, uapi.OpAllocMR, &uapi.AllocMRRequest{PD: p.handle, MaxPages: uint32(maxPages)}, &rep); err != nil {
		return nil, err
	}
	m := &MR{pd: p, handle: rep.Handle, lkey: rep.LKey, rkey: rep.RKey}
	d.mu.Lock()
	d.rekeyed[uint32(m.rkey)>>8] = m
	d.mu.Unlock()
	return m, nil
}

// rekey takes over a fast registration that was posted.
func (m *MR) rekey(b *Bind) {
	m.lkey, m.rkey, m.iova, m.size, m.access = LKey(b.RKey), b.RKey, b.Addr, b.Length, b.Access
}

// Pages cuts n bytes of the region from offset off into pages of pageSize bytes,
// for RegWR (ib_map_mr_sg). The last page is whole, too: the region reaches that
// far.
func (m *MR) Pages(off, n, pageSize int) []SGE {
	pages := make([]SGE, 0, (n+pageSize-1)/pageSize)
	for end := off + n; off < end; off += pageSize {
		pages = append(pages, m.SGE(off, pageSize))
	}
	return pages
}

// RegWR is a request that gives a region of AllocFastMR its memory: the pages,
// one behind the other, named by iova, iova+1 … and by the region's next key
// (IB_WR_REG_MR). Pages are of one size, a power of two of at least 4096 bytes,
// and each lies within one region of the same domain; they count as elements:
// max_send_sge bounds them. The caller sets WRID and Flags. When the request is
// posted the region's keys are the new ones, for the requests after it; they are
// good for others once it completed. It is legal while the region has no memory:
// new, or invalidated. Else it fails with WCLocQPOpErr, or with WCLocProtErr when
// it is a page that is not to be had.
func (m *MR) RegWR(iova uint64, access Access, pages []SGE) SendWR {
	wr := SendWR{Opcode: WRRegMR, SGList: pages, Bind: Bind{RKey: IncRKey(m.rkey), Addr: based(iova, access), Access: access}}
	wr.Bind.Length = wr.Length()
	return wr
}

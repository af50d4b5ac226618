package nic

import "time"

// release ends everything a program holds, in the order that memory needs: keys
// stop at once, then its queue pairs leave the workers, then every worker
// passes a turn's boundary and has taken all loans, and only then memory is
// unmapped and closed.
func (p *program) release() {
	p.process.Revoke()
	p.endCaptures()
	p.mu.Lock()
	p.releaseCM()
	p.markKeys()
	for _, c := range p.cqs.byHandle {
		c.retire()
	}
	for _, q := range p.qps.byHandle {
		for gid := range q.groups {
			p.detach(q, gid)
		}
		q.worker.do(func() { q.worker.removeQP(q.qp) })
	}
	p.markKeys() // no work request binds a window any more
	for i, l := range p.links {
		w := p.a.workers[i]
		w.do(func() { w.removeProgram(l) })
	}
	p.a.endLoans()
	p.mu.Unlock()
	// No worker knows the program any more: no new fault can begin.
	p.faults.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.releaseObjects()
	p.releaseDescriptors()
	p.account.close()
	p.a.failures.leave(p.number, time.Now())
	p.a.mu.Lock()
	delete(p.a.programs, p)
	p.a.mu.Unlock()
}

// releaseObjects frees what no worker can reach any more.
func (p *program) releaseObjects() {
	for h, m := range p.mrs.byHandle {
		p.a.keys.Free(m.region)
		p.unmap(m.mapping)
		p.mrs.remove(h)
	}
	for h, m := range p.mws.byHandle {
		p.a.keys.FreeWindow(m.window)
		p.mws.remove(h)
	}
	for h, q := range p.qps.byHandle {
		p.a.qpns.free(q.qp.qpn)
		p.a.unplaceQP(q.worker.index)
		p.qps.remove(h)
	}
	for h := range p.cqs.byHandle {
		p.cqs.remove(h)
	}
	for h := range p.srqs.byHandle {
		p.srqs.remove(h)
	}
	for h, c := range p.channels.byHandle {
		_ = c.pipe.Close()
		p.channels.remove(h)
	}
	for h, d := range p.pds.byHandle {
		p.a.freePD(d.pd)
		p.pds.remove(h)
	}
}

// releaseDescriptors closes the program's segments, eventfds and pipe.
func (p *program) releaseDescriptors() {
	p.rings.close()
	for _, e := range p.eventfds {
		_ = e.Close()
	}
	if p.doorbell != nil {
		_ = p.doorbell.Close()
	}
	if p.async != nil {
		_ = p.async.Close()
		p.async = nil
	}
}

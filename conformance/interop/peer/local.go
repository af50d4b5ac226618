package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

// localEnd is an End on softroce: a program of its own to the daemon.
type localEnd struct {
	d   *daemon
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	mr  *verbs.MR
	srq *verbs.SRQ // nil: each queue pair has its own receives
	qps []*verbs.QP
	gid int
	log logf

	ahs []*verbs.AH
	mws []*verbs.MW
	wcs map[uint64]verbs.WC // by the request's id
}

// depth of the queues: more than any case has outstanding.
const depth = 256

func (d *daemon) newEnd(log logf) (End, error) {
	dev, err := verbs.Open(&verbs.Options{Socket: d.socket})
	if err != nil {
		return nil, err
	}
	return &localEnd{d: d, dev: dev, log: log, wcs: map[uint64]verbs.WC{}}, nil
}

// gid is the index of the daemon's IPv4 or IPv6 GID.
func (d *daemon) gid(ipv6 bool) (int, error) {
	dev, err := verbs.Open(&verbs.Options{Socket: d.socket})
	if err != nil {
		return 0, err
	}
	defer dev.Close()
	return gidIndex(dev, ipv6)
}

func gidIndex(dev *verbs.Device, ipv6 bool) (int, error) {
	table, err := dev.GIDTable()
	if err != nil {
		return 0, err
	}
	for _, e := range table {
		if !e.GID.IsZero() && e.GID.Is4() != ipv6 {
			return int(e.Index), nil
		}
	}
	return 0, fmt.Errorf("no GID of the wanted family (IPv6: %v) in %v", ipv6, table)
}

func (e *localEnd) Open(o openRequest) (identity, error) {
	var id identity
	var err error
	if e.gid, err = gidIndex(e.dev, o.IPv6); err != nil {
		return id, err
	}
	gid, err := e.dev.QueryGID(e.gid)
	if err != nil {
		return id, err
	}
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return id, err
	}
	if e.cq, err = e.dev.CreateCQ(2*depth, nil, 0); err != nil {
		return id, err
	}
	if o.Foreign {
		e.mr, err = e.pd.RegMR(make([]byte, o.Size), verbs.Access(o.Access))
	} else {
		e.mr, err = e.pd.AllocMR(o.Size, verbs.Access(o.Access))
	}
	if err != nil {
		return id, err
	}
	if o.SRQ > 0 {
		if e.srq, err = e.pd.CreateSRQ(verbs.SRQAttr{MaxWR: uint32(o.SRQ), MaxSGE: 4}); err != nil {
			return id, err
		}
	}
	id = identity{GID: netip.AddrFrom16(gid).StringExpanded(), Addr: e.mr.Addr(), RKey: uint32(e.mr.RKey())}
	for range o.QPs {
		qp, err := e.newQP(o)
		if err != nil {
			return id, err
		}
		e.qps = append(e.qps, qp)
		id.QPNs = append(id.QPNs, uint32(qp.Num()))
	}
	return id, nil
}

// newQP makes a queue pair in INIT, or, for datagrams, in RTS.
func (e *localEnd) newQP(o openRequest) (*verbs.QP, error) {
	qp, err := e.pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.QPType(o.Type), SendCQ: e.cq, RecvCQ: e.cq, SRQ: e.srq,
		Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: uint32(o.Inline)},
	})
	if err != nil {
		return nil, err
	}
	if o.Type == typeUD {
		return qp, qp.ReadyUD(verbs.QKey(o.QKey), 0)
	}
	return qp, qp.ToInit(accessWrite | accessRead | accessAtomic)
}

func (e *localEnd) Connect(c connectRequest) error {
	addr, err := netip.ParseAddr(c.GID)
	if err != nil {
		return err
	}
	return e.qps[c.QP].Connect(
		verbs.RCPeer{QPN: verbs.QPN(c.QPN), PSN: verbs.PSN(c.RQPSN), GID: bth.GIDFromAddr(addr.Unmap())},
		verbs.RCConfig{
			SGIDIndex: uint8(e.gid), PSN: verbs.PSN(c.SQPSN), MTU: verbs.MTU(c.MTU), MaxRDAtomic: uint8(c.RDAtomic),
			Timeout: uint8(c.Timeout), RetryCnt: uint8(c.Retry), RNRRetry: uint8(c.RNRRetry), MinRNRTimer: uint8(c.RNRTimer),
		})
}

func (e *localEnd) sges(spans []span) []verbs.SGE {
	list := make([]verbs.SGE, 0, len(spans))
	for _, s := range spans {
		list = append(list, e.mr.SGE(s[0], s[1]))
	}
	return list
}

func (e *localEnd) PostRecv(wrs []recvWR) error {
	list := make([]verbs.RecvWR, 0, len(wrs))
	for _, w := range wrs {
		list = append(list, verbs.RecvWR{WRID: w.ID, SGList: e.sges(w.SGEs)})
	}
	post := e.qps[0].PostRecv
	if e.srq != nil {
		post = e.srq.PostRecv
	}
	n, err := post(list...)
	return posted(n, len(wrs), err)
}

func (e *localEnd) PostSend(wrs []sendWR) error {
	lists := make([][]verbs.SendWR, len(e.qps))
	for _, w := range wrs {
		wr := verbs.SendWR{
			WRID: w.ID, Opcode: verbs.WROpcode(w.Op), Flags: verbs.SendFlags(w.Flags), ImmData: w.Imm, RemoteAddr: w.Addr,
			RKey: verbs.RKey(w.RKey), CompareAdd: w.CompareAdd, Swap: w.Swap, SGList: e.sges(w.SGEs),
			InvalidateRKey: verbs.RKey(w.Inv), RemoteQPN: verbs.QPN(w.RemoteQPN), RemoteQKey: verbs.QKey(w.QKey),
		}
		if w.RemoteQPN != 0 {
			wr.AH = e.ahs[w.AH].Handle()
		}
		lists[w.QP] = append(lists[w.QP], wr)
		e.log("softroce: post %+v", w)
	}
	for i, list := range lists {
		n, err := e.qps[i].PostSend(list...)
		if err := posted(n, len(list), err); err != nil {
			return err
		}
	}
	return nil
}

func posted(n, of int, err error) error {
	if err == nil && n != of {
		err = fmt.Errorf("softroce posted %d of %d requests without an error", n, of)
	}
	return err
}

func (e *localEnd) Poll(count, ms int) ([]completion, error) {
	var got []completion
	wcs := make([]verbs.WC, count)
	for end := time.Now().Add(time.Duration(ms) * time.Millisecond); ; {
		n, err := e.cq.Poll(wcs[:count-len(got)])
		if err != nil {
			return got, err
		}
		for _, w := range wcs[:n] {
			c := completion{
				ID: w.WRID, Status: int(w.Status), Op: int(w.Opcode), Len: int(w.ByteLen), Flags: int(w.Flags), Imm: w.ImmData,
				QPN: uint32(w.QPN), SrcQP: uint32(w.SrcQP), Inv: w.InvalidatedRKey,
			}
			e.wcs[w.WRID] = w
			e.log("softroce: %v", c)
			got = append(got, c)
		}
		if len(got) == count || n == 0 && time.Now().After(end) {
			return got, nil
		}
		if n == 0 {
			time.Sleep(100 * time.Microsecond) // the emulated guest needs the processor more than this loop
		}
	}
}

func (e *localEnd) WriteMem(off int, b []byte) error {
	if copy(e.mr.Bytes()[off:], b) != len(b) {
		return errors.New("a write over the region's end")
	}
	return nil
}

func (e *localEnd) ReadMem(off, n int) ([]byte, error) {
	return append([]byte{}, e.mr.Bytes()[off:off+n]...), nil
}

func (e *localEnd) State() (int, error) {
	a, err := e.qps[0].Query()
	return int(a.State), err
}

// maskState is IBV_QP_STATE.
const maskState verbs.QPAttrMask = 1

func (e *localEnd) Break() error {
	return e.qps[0].Modify(&verbs.QPAttr{State: verbs.StateErr}, maskState)
}

// Close ends the program's life with the daemon; what it held goes with it.
func (e *localEnd) Close() {
	if err := e.dev.Close(); err != nil {
		e.log("softroce: close: %v", err)
	}
}

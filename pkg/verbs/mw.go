package verbs

import (
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/wq"
)

// WindowType is the type of a memory window (ibv_mw_type).
type WindowType = mrtable.WindowType

// Types of windows. Type 2 is 2B: a binding belongs to the queue pair that made
// it.
const (
	MWType1 = mrtable.WindowType1
	MWType2 = mrtable.WindowType2
)

// Bind says what a window opens, or what a fast registration makes of its pages
// (ibv_mw_bind_info): the Bind field of a SendWR with WRBindMW or WRRegMR.
type Bind = wq.Bind

// MW is a memory window (ibv_mw): a key of its own to a part of a region, that
// a queue pair binds, and withdraws, in the order of its requests.
type MW struct {
	pd     *PD
	handle uint32
	typ    WindowType
	rkey   RKey // guarded by pd.dev.mu
}

// rekeyed is an object whose key a request changes.
type rekeyed interface {
	// rekey takes over what the request binds; the device's mu is held.
	rekey(b *Bind)
}

// AllocMW makes a memory window that is not bound (ibv_alloc_mw). EINVAL: the
// type is unknown; ENOMEM: a limit is reached.
func (p *PD) AllocMW(typ WindowType) (*MW, error) {
	var rep uapi.AllocMWReply
	d := p.dev
	if err := d.ctl.do("allocate MW", uapi.OpAllocMW, &uapi.AllocMWRequest{PD: p.handle, Type: typ}, &rep); err != nil {
		return nil, err
	}
	w := &MW{pd: p, handle: rep.Handle, typ: typ, rkey: rep.RKey}
	d.mu.Lock()
	d.rekeyed[uint32(w.rkey)>>8] = w
	d.mu.Unlock()
	return w, nil
}

// IncRKey is the key that a window or a fast region can be bound under next: the
// low byte is one more (ibv_inc_rkey).
func IncRKey(k RKey) RKey { return k&^0xFF | (k+1)&0xFF }

// Type is the window's type.
func (w *MW) Type() WindowType { return w.typ }

// RKey is the key to give to peers: that of the latest bind that was posted.
func (w *MW) RKey() RKey {
	w.pd.dev.mu.Lock()
	defer w.pd.dev.mu.Unlock()
	return w.rkey
}

func (w *MW) rekey(b *Bind) { w.rkey = b.RKey }

// Dealloc ends the window (ibv_dealloc_mw): its key is dead when it returns.
func (w *MW) Dealloc() error {
	d := w.pd.dev
	err := d.ctl.do("deallocate MW", uapi.OpDeallocMW, &uapi.HandleRequest{Handle: w.handle}, nil)
	if err != nil && !d.gone.Load() {
		return err
	}
	d.forget(w, w.RKey())
	return err
}

// BindWR is a request that binds a window of type 2 to length bytes of mr from
// addr on, an address as in the region's elements, under the next key
// (IBV_WR_BIND_MW). The caller sets WRID and Flags. The bind is legal while the
// window is not bound: new, or invalidated by the peer's SEND_WITH_INV or by a
// request with WRLocalInv.
func (w *MW) BindWR(mr *MR, addr, length uint64, access Access) SendWR {
	return SendWR{
		Opcode: WRBindMW,
		Bind:   Bind{RKey: IncRKey(w.RKey()), MR: mr.LKey(), Addr: addr, Length: length, Access: access},
	}
}

// MWBind says what BindMW binds a window to (ibv_mw_bind).
type MWBind struct {
	WRID   uint64
	Flags  SendFlags // SendSignaled, SendFence
	MR     *MR       // with AccessMWBind; nil with Length 0
	Addr   uint64    // as in the region's elements
	Length uint64    // bytes; 0 unbinds
	Access Access
}

// BindMW posts a request that binds a window of type 1, whatever it is bound to
// now (ibv_bind_mw). When it returns, mw.RKey is the new key, which is good once
// the request completed; later requests of the queue pair may rely on it. EINVAL:
// a window of type 2, or a length without a region; EPERM: queue pair, window and
// region are not all of one protection domain; others as for PostSend. What only
// the adapter sees fails in the completion, with WCMWBindErr.
func (q *QP) BindMW(mw *MW, b MWBind) error {
	const op = "bind MW"
	wr := SendWR{
		WRID: b.WRID, Opcode: WRBindMW, Flags: b.Flags,
		Bind: Bind{RKey: IncRKey(mw.RKey()), Addr: b.Addr, Length: b.Length, Access: b.Access},
	}
	switch {
	case mw.typ != MWType1:
		return invalid(op, "the window is of type %d: post a request with WRBindMW", mw.typ)
	case b.MR == nil && b.Length != 0:
		return invalid(op, "%d bytes of no region", b.Length)
	case mw.pd != q.pd || b.MR != nil && b.MR.pd != q.pd:
		return &Error{Op: op, Errno: unix.EPERM, Text: "queue pair, window and region must be of one protection domain"}
	}
	if b.MR != nil {
		wr.Bind.MR = b.MR.lkey
	}
	_, err := q.PostSend(wr)
	return err
}

// bound takes over the keys of requests that were posted.
func (d *Device) bound(binds []Bind) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range binds {
		if o := d.rekeyed[uint32(binds[i].RKey)>>8]; o != nil {
			o.rekey(&binds[i])
		}
	}
}

// forget ends what bound does for an object.
func (d *Device) forget(o rekeyed, k RKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rekeyed[uint32(k)>>8] == o {
		delete(d.rekeyed, uint32(k)>>8)
	}
}

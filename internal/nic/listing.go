package nic

import (
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
)

// Our own tuning of listings. A part of one is bounded in objects, whose program
// cannot work meanwhile, and in bytes.
const (
	listObjects = 128
	listBytes   = uapi.MaxMessage - 4096
	listName    = 64 // bytes of a program's name
)

// overflowUID stands for every user that has no number here (user_namespaces(7)):
// two of that number need not be one user.
const overflowUID = 65534

// A lister lists a program's objects of one kind: it appends those with a handle
// above after, in the order of handles, at most listObjects. The program's lock
// is held.
type lister func(p *program, after uint32, keys bool) []listed

// listed is an object with its place in the listing.
type listed struct {
	handle uint32
	res    uapi.Resource
}

var listers = map[uapi.ResourceKind]lister{
	uapi.ResourceQP:      (*program).listQPs,
	uapi.ResourceCQ:      (*program).listCQs,
	uapi.ResourceMR:      (*program).listMRs,
	uapi.ResourcePD:      (*program).listPDs,
	uapi.ResourceMW:      (*program).listMWs,
	uapi.ResourceSRQ:     (*program).listSRQs,
	uapi.ResourceAH:      (*program).listAHs,
	uapi.ResourceProgram: (*program).listSelf,
	uapi.ResourceCMID:    (*program).listCMIDs,
}

// listResources answers with a part of a listing. Its cursor is an object's
// program and handle, which never change: an object that is there all the time
// comes once, whatever else comes and goes between two parts. It takes the locks
// of other programs, and so holds none itself.
func (p *program) listResources(m *uapi.ListResourcesRequest) (reply, error) {
	list := listers[m.Kind]
	if list == nil {
		return reply{}, refuse(syscall.EINVAL, "no listing of objects of kind %d", uint32(m.Kind))
	}
	r := &uapi.ListResourcesReply{}
	bytes := 0
	for _, o := range p.visible(uint32(m.After >> 32)) {
		after := uint32(0)
		if o.number == uint32(m.After>>32) {
			after = uint32(m.After)
		}
		o.mu.Lock()
		_, keys := p.sight(o)
		part, name := list(o, after, keys), ""
		if len(part) > 0 { // it has said hello
			name = o.listName()
		}
		o.mu.Unlock()
		for i := range part {
			res := &part[i].res
			res.Program, res.PID, res.Name = o.number, o.pid, name
			j, err := json.Marshal(res)
			if err != nil {
				return reply{}, refuse(syscall.EIO, "%v", err)
			}
			if bytes += len(j) + 1; bytes > listBytes || len(r.Resources) == listObjects {
				return reply{body: r}, nil
			}
			r.Resources = append(r.Resources, *res)
			r.Next = uint64(o.number)<<32 | uint64(part[i].handle)
		}
		if len(part) == listObjects {
			return reply{body: r}, nil
		}
	}
	r.Next = 0
	return reply{body: r}, nil
}

// visible are the programs that p may see, in the order of their numbers and
// from one on.
func (p *program) visible(from uint32) []*program {
	out := slices.DeleteFunc(p.a.programList(), func(o *program) bool {
		sees, _ := p.sight(o)
		return o.number < from || !sees
	})
	slices.SortFunc(out, func(x, y *program) int { return cmp.Compare(x.number, y.number) })
	return out
}

// sight says whether p sees another program's objects, and their keys.
func (p *program) sight(o *program) (objects, keys bool) {
	if p == o {
		return true, true
	}
	return sight(p.uid, o.uid, uint32(os.Geteuid()))
}

// sight says what the programs of one user see of another's: root and the
// adapter's own user see the objects of all, and only the owner's user the keys.
func sight(asker, owner, adapter uint32) (objects, keys bool) {
	keys = asker == owner && asker != overflowUID
	return keys || asker == 0 || asker == adapter && asker != overflowUID, keys
}

// listName is the program's name as a listing has it.
func (p *program) listName() string {
	return strings.ToValidUTF8(p.name[:min(len(p.name), listName)], "")
}

// objects are a program's objects of one kind in the order of their handles, as
// far as they belong to one part of a listing.
func objects[T any](h *handles[T], after uint32, f func(handle uint32, o T) uapi.Resource) []listed {
	return ordered(h.byHandle, after, f)
}

// ordered is objects for what is in a map.
func ordered[T any](all map[uint32]T, after uint32, f func(handle uint32, o T) uapi.Resource) []listed {
	order := slices.DeleteFunc(slices.Collect(maps.Keys(all)), func(n uint32) bool { return n <= after })
	slices.Sort(order)
	out := make([]listed, 0, min(len(order), listObjects))
	for _, n := range order[:min(len(order), listObjects)] {
		out = append(out, listed{n, f(n, all[n])})
	}
	return out
}

func (p *program) listPDs(after uint32, _ bool) []listed {
	return objects(&p.pds, after, func(h uint32, o *pdObject) uapi.Resource {
		return uapi.Resource{Number: h, Users: o.users}
	})
}

func (p *program) listCQs(after uint32, _ bool) []listed {
	return objects(&p.cqs, after, func(h uint32, o *cqObject) uapi.Resource {
		return uapi.Resource{Number: h, Users: o.users, CQE: o.slots, Worker: max(0, o.home())}
	})
}

func (p *program) listMRs(after uint32, keys bool) []listed {
	return objects(&p.mrs, after, func(h uint32, o *mrObject) uapi.Resource {
		g := o.region
		r := uapi.Resource{Number: h, PD: o.pd.handle, Length: g.Length(), IOVA: g.Addr(), Access: uint32(g.Access())}
		if keys {
			r.LKey, r.RKey = uint32(g.LKey()), uint32(g.RKey())
		}
		return r
	})
}

func (p *program) listMWs(after uint32, keys bool) []listed {
	return objects(&p.mws, after, func(h uint32, o *mwObject) uapi.Resource {
		w := o.window
		r := uapi.Resource{Number: h, PD: o.pd.handle, Length: w.Length(), IOVA: w.Addr(), Access: uint32(w.Access()), Type: "1"}
		if w.Type() == mrtable.WindowType2 {
			r.Type = "2B"
		}
		if keys {
			r.RKey = uint32(w.RKey())
		}
		return r
	})
}

func (p *program) listSRQs(after uint32, _ bool) []listed {
	return objects(&p.srqs, after, func(h uint32, o *srqObject) uapi.Resource {
		a := o.attr()
		return uapi.Resource{
			Number: h, PD: o.pd.handle, Users: o.users, Worker: max(0, o.home()), MaxWR: a.MaxWR, MaxSGE: a.MaxSGE, Limit: a.Limit,
		}
	})
}

func (p *program) listAHs(after uint32, _ bool) []listed {
	all := make(map[uint32]*ahObject)
	if places := p.ahs.places.Load(); places != nil {
		for i := range *places {
			if o := (*places)[i].Load(); o != nil && !o.retired {
				all[o.handle] = o
			}
		}
	}
	return ordered(all, after, func(h uint32, o *ahObject) uapi.Resource {
		return uapi.Resource{Number: h, PD: o.owner.handle, Peer: o.attr.DGID.String()}
	})
}

// listSelf is the program as an object; its users are its queue pairs.
func (p *program) listSelf(after uint32, _ bool) []listed {
	if after > 0 || p.async == nil {
		return nil // listed, or has not said hello
	}
	return []listed{{1, uapi.Resource{Number: p.number, Users: len(p.qps.byHandle)}}}
}

// listQPs asks each worker once for all of its queue pairs in this part.
func (p *program) listQPs(after uint32, _ bool) []listed {
	var asked []*qpObject
	out := objects(&p.qps, after, func(_ uint32, o *qpObject) uapi.Resource {
		asked = append(asked, o)
		srq := uint32(0)
		if o.srq != nil {
			srq = o.srq.handle
		}
		return uapi.Resource{
			SRQ:    srq,
			Number: uint32(o.qp.qpn), PD: o.pd.handle, Worker: o.worker.index, Type: o.kind.String(),
			SendCQ: o.send.handle, RecvCQ: o.recv.handle,
		}
	})
	for _, w := range p.a.workers {
		w.do(func() {
			for i, o := range asked {
				if o.worker == w {
					o.qp.list(&out[i].res)
				}
			}
		})
	}
	return out
}

// list fills in what the engine knows; on the worker's goroutine.
func (q *qp) list(r *uapi.Resource) {
	var a qpstate.Attr
	q.engine.Query(&a)
	r.State = a.State.String()
	if q.dead {
		r.State = qpstate.Err.String()
	}
	r.SQPSN, r.RQPSN = uint32(a.SQPSN), uint32(a.RQPSN)
	if q.hasFlow {
		r.PeerQPN, r.Peer, r.PathMTU = uint32(a.DestQPN), a.AH.DGID.String(), a.PathMTU.Bytes()
	}
	s := q.engine.Stats()
	r.SentBytes, r.RcvdBytes, r.Resent = s.SentBytes, s.RcvdBytes, s.Retransmits
	r.Timeouts, r.RNRWaits, r.SendQueued = s.Timeouts, s.RNRNAKsRcvd, q.engine.SendsWaiting()
	r.SentMsgs, r.RcvdMsgs, r.SentPkts, r.RcvdPkts = s.SentMsgs, s.RcvdMsgs, s.SentPkts, s.RcvdPkts
	r.SeqNAKs, r.SentNAKs, r.SentRNRs, r.RNRWaitNS = s.SeqNAKsRcvd, s.SeqNAKsSent, s.RNRNAKsSent, uint64(s.RNRWait)
	r.Duplicates, r.OutOfSequence = s.Duplicates, s.OutOfSequence
	if h := q.engine.History(); h != nil && h.First.Kind != transport.TroubleNone {
		r.Faults, r.LastFault = h.Troubles, h.First.Kind.String()
	}
}

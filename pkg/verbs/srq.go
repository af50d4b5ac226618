package verbs

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/devctl"
	"github.com/softroce/softroce/internal/uapi"
)

// SRQAttr are a shared receive queue's sizes in requests and elements, and its
// limit (ibv_srq_attr).
type SRQAttr = uapi.SRQAttr

// SRQAttrMask says which attributes [SRQ.Modify] sets (ibv_srq_attr_mask).
type SRQAttrMask = uapi.SRQMask

// Attributes of a shared receive queue (ibv_srq_attr_mask).
const (
	SRQMaxWRMask = uapi.SRQMaxWR
	SRQLimitMask = uapi.SRQLimit
)

// SRQ is a shared receive queue (ibv_srq): whichever of its queue pairs
// receives a message takes the oldest request, and WC.QPN tells which it was.
type SRQ struct {
	pd     *PD
	handle uint32
	num    uint32

	mu     sync.Mutex
	ring   *uapi.RQProducer
	attr   SRQAttr // max_wr and max_sge as granted
	closed bool

	asyncAcks devctl.Acks
}

// CreateSRQ makes a shared receive queue of at least the sizes of attr, whose
// limit is armed when it is not 0 (ibv_create_srq). EINVAL: a size is 0 or over
// the device's max_srq_wr or max_srq_sge, or the limit is over max_wr; ENOMEM: a
// limit of the adapter is reached.
func (p *PD) CreateSRQ(attr SRQAttr) (*SRQ, error) {
	const op = "create SRQ"
	d := p.dev
	var rep uapi.CreateSRQReply
	d.ringMu.Lock()
	defer d.ringMu.Unlock()
	fds, err := d.ctl.call(op, uapi.OpCreateSRQ, &uapi.CreateSRQRequest{PD: p.handle, Attr: attr}, &rep, nil)
	if err != nil {
		return nil, err
	}
	s := &SRQ{pd: p, handle: rep.Handle, num: rep.Number}
	if err := s.use(op, rep.Attr, rep.Ring, fds); err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.srqs[s.handle] = s
	d.mu.Unlock()
	return s, nil
}

// use makes the ring at ref the queue's; it takes over fds.
func (s *SRQ) use(op string, attr SRQAttr, ref uapi.RingRef, fds []int) error {
	mem, err := s.pd.dev.ringMemory(op, fds, ref)
	if err != nil {
		return err
	}
	ring, err := uapi.NewRQProducer(mem[0], ref)
	if err != nil {
		return &Error{Op: op, Errno: unix.EPROTO, Text: err.Error()}
	}
	s.ring, s.attr = ring, attr
	return nil
}

// Num is the queue's number (ibv_get_srq_num).
func (s *SRQ) Num() uint32 { return s.num }

// PostRecv posts receive requests in order (ibv_post_srq_recv). It returns how
// many were queued; the one after them is the bad one. It makes no system call,
// ever. EINVAL: more elements than max_sge; ENOMEM: max_wr requests wait
// already. A request leaves the queue when a message takes it. Lists are copied;
// the memory that elements name belongs to the adapter until the completion.
func (s *SRQ) PostRecv(wrs ...RecvWR) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	var err error
	for ; n < len(wrs); n++ {
		if err = s.put(&wrs[n]); err != nil {
			break
		}
	}
	if n > 0 {
		s.ring.Publish()
		s.pd.dev.busy()
	}
	return n, err
}

func (s *SRQ) put(wr *RecvWR) error {
	const op = "post SRQ receive"
	switch {
	case s.pd.dev.gone.Load():
		return dead(op)
	case s.closed:
		return invalid(op, "the shared receive queue is destroyed")
	}
	if err := s.ring.Put(wr); err != nil {
		return checkError(op, err)
	}
	return nil
}

// Modify sets the attributes that mask names (ibv_modify_srq). With
// SRQLimitMask the limit is armed: EventSRQLimitReached is raised once, when
// fewer requests than attr.Limit wait; 0 disarms. With SRQMaxWRMask the queue
// takes at least attr.MaxWR requests from now on; what waits stays. EINVAL: the
// limit is over max_wr, or max_wr is 0, over the device's, or below what waits
// or the limit; nothing is then changed.
func (s *SRQ) Modify(attr SRQAttr, mask SRQAttrMask) error {
	const op = "modify SRQ"
	if u := mask &^ (SRQMaxWRMask | SRQLimitMask); u != 0 {
		return invalid(op, "unknown attributes %#x", uint32(u))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return invalid(op, "the shared receive queue is destroyed")
	}
	var rep uapi.ModifySRQReply
	req := uapi.ModifySRQRequest{Handle: s.handle, Mask: mask, Attr: attr}
	s.pd.dev.ringMu.Lock()
	defer s.pd.dev.ringMu.Unlock()
	fds, err := s.pd.dev.ctl.call(op, uapi.OpModifySRQ, &req, &rep, nil)
	if err != nil {
		return err
	}
	if rep.Ring.Slots == 0 {
		closeAll(fds)
		s.attr = rep.Attr
		return nil
	}
	return s.use(op, rep.Attr, rep.Ring, fds)
}

// Query returns the sizes and the limit as they are (ibv_query_srq). The limit
// is 0 once its event was raised.
func (s *SRQ) Query() (SRQAttr, error) {
	var rep uapi.QuerySRQReply
	err := s.pd.dev.ctl.do("query SRQ", uapi.OpQuerySRQ, &uapi.HandleRequest{Handle: s.handle}, &rep)
	return rep.Attr, err
}

// Destroy ends the queue (ibv_destroy_srq). Requests that wait in it make no
// completions. It waits until every asynchronous event of the queue that was
// returned is acknowledged and drops those not yet read. EBUSY: a queue pair
// uses it.
func (s *SRQ) Destroy() error {
	d := s.pd.dev
	err := d.ctl.do("destroy SRQ", uapi.OpDestroySRQ, &uapi.HandleRequest{Handle: s.handle}, nil)
	if err != nil && !d.gone.Load() {
		return err
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	d.mu.Lock()
	delete(d.srqs, s.handle)
	d.mu.Unlock()
	s.asyncAcks.Wait(d.dying)
	return err
}

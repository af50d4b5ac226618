package verbs

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/cq"
)

// A fake is the adapter's end of a Device: it answers as it is told and has the
// adapter's side of the rings in hand, and no engine.
type fake struct {
	t     *testing.T
	conn  *shm.Conn
	async *shm.RecordWriter
	bell  *uapi.AdapterDoorbell

	mu       sync.Mutex
	on       map[uapi.Op]answerer
	segments uint32
	handles  uint32
	state    QPState // what ModifyQP answers
	cqs      map[uint32]*uapi.CQRing
	channels map[uint32]*shm.RecordWriter
	sqs      map[uint32]*uapi.SQConsumer
	rqs      map[uint32]*uapi.RQConsumer // of queue pairs and of shared queues
	asked    []uapi.Op
}

// answerer answers a request; errno 0 is success.
type answerer func(body []byte, fds []int) (uapi.Body, []int, unix.Errno)

func newFake(t *testing.T) (*fake, *Device) {
	t.Helper()
	theirs, ours, err := shm.Socketpair()
	check(t, err)
	f := &fake{
		t: t, conn: ours, cqs: map[uint32]*uapi.CQRing{}, channels: map[uint32]*shm.RecordWriter{},
		sqs: map[uint32]*uapi.SQConsumer{}, rqs: map[uint32]*uapi.RQConsumer{},
	}
	f.on = map[uapi.Op]answerer{
		uapi.OpHello: f.hello, uapi.OpCreateChannel: f.createChannel, uapi.OpCreateCQ: f.createCQ,
		uapi.OpCreateQP: f.createQP, uapi.OpCreateSRQ: f.createSRQ, uapi.OpModifyQP: f.modifyQP,
		uapi.OpDestroyCQ: f.destroyed, uapi.OpDestroyQP: f.destroyed, uapi.OpDestroySRQ: f.destroyed,
		uapi.OpAllocPD: f.handle, uapi.OpCreateAH: f.handle,
	}
	var served sync.WaitGroup
	served.Go(f.serve)
	d, err := OpenConn(theirs)
	check(t, err)
	t.Cleanup(func() {
		check(t, d.Close())
		_ = ours.Close() // its end may be seen already
		served.Wait()
	})
	return f, d
}

// answered orders what a fake did for an answer before what the test does after
// it, which the race detector does not see through a socket.
var answered sync.Mutex

func check(t *testing.T, err error) {
	t.Helper()
	answered.Lock()
	defer answered.Unlock()
	if err != nil {
		t.Fatal(err)
	}
}

// want checks an error's errno; 0 is success.
func want(t *testing.T, what string, err error, errno unix.Errno) {
	t.Helper()
	answered.Lock()
	defer answered.Unlock()
	if errno == 0 && err != nil || errno != 0 && !errors.Is(err, errno) {
		t.Errorf("%s: %v, want errno %d (%v)", what, err, int(errno), errno)
	}
}

// patience ends waits of a test that hangs; nothing is measured by it.
func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func (f *fake) serve() {
	buf := make([]byte, uapi.MaxMessage)
	for {
		n, fds, err := f.conn.Recv(buf)
		if err != nil || n == 0 {
			return
		}
		h, body, err := uapi.DecodeHeader(buf[:n])
		if err != nil {
			f.t.Errorf("the library sent %x: %v", buf[:n], err)
			return
		}
		f.mu.Lock()
		f.asked = append(f.asked, h.Op)
		answer := f.on[h.Op]
		f.mu.Unlock()
		var rep uapi.Body
		var out []int
		errno := unix.Errno(0)
		if answer != nil {
			rep, out, errno = answer(body, fds)
		}
		answered.Lock()
		answered.Unlock() //nolint:staticcheck // see there: an edge, not a section (2026-11)
		closeAll(fds)
		h.Errno = int32(errno)
		if errno != 0 {
			rep = nil
		}
		err = f.conn.Send(uapi.AppendMessage(nil, h, rep), out)
		closeAll(out)
		if err != nil {
			return
		}
	}
}

// answer sets what an operation is answered with.
func (f *fake) answer(op uapi.Op, a answerer) {
	f.mu.Lock()
	f.on[op] = a
	f.mu.Unlock()
}

// says is an answerer that always says the same.
func says(rep uapi.Body, errno unix.Errno) answerer {
	return func([]byte, []int) (uapi.Body, []int, unix.Errno) { return rep, nil, errno }
}

// decodes is an answerer that keeps the request in m.
func decodes(t *testing.T, m reply, rep uapi.Body) answerer {
	return func(body []byte, _ []int) (uapi.Body, []int, unix.Errno) {
		if err := m.Decode(body); err != nil {
			t.Error(err)
		}
		return rep, nil, 0
	}
}

// segment makes memory and a descriptor of it to send.
func (f *fake) segment(size int) (*shm.Segment, int) {
	s, err := shm.Create("fake", size)
	if err != nil {
		f.t.Error(err)
	}
	f.t.Cleanup(func() { _ = s.Close() }) // unmapping what we mapped
	return s, f.dup(s.FD())
}

func (f *fake) dup(fd int) int {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		f.t.Error(err)
	}
	return n
}

func (f *fake) hello([]byte, []int) (uapi.Body, []int, unix.Errno) {
	_, status := f.segment(uapi.StatusSize)
	bells, bellsFD := f.segment(uapi.DoorbellSize(1))
	var err error
	if f.bell, err = uapi.NewAdapterDoorbell(bells, 0); err != nil {
		f.t.Error(err)
	}
	w, read, err := shm.NewRecordPipe()
	if err != nil {
		f.t.Error(err)
	}
	f.async = w
	wake, err := shm.NewDoorbell()
	if err != nil {
		f.t.Error(err)
	}
	f.t.Cleanup(func() { _, _ = wake.Close(), w.Close() }) // descriptors of our own
	rep := &uapi.HelloReply{Version: uapi.Version, Workers: 1, Name: "fake"}
	return rep, []int{status, bellsFD, read, f.dup(wake.FD())}, 0
}

func (f *fake) next() uint32 { f.handles++; return f.handles }

// ring makes a segment for one ring.
func (f *fake) ring(ref *uapi.RingRef, size int) (*shm.Segment, int) {
	f.segments++
	ref.Segment = f.segments
	return f.segment(size)
}

func (f *fake) handle([]byte, []int) (uapi.Body, []int, unix.Errno) {
	return &uapi.HandleReply{Handle: f.next()}, nil, 0
}

func (f *fake) createChannel([]byte, []int) (uapi.Body, []int, unix.Errno) {
	w, read, err := shm.NewRecordPipe()
	if err != nil {
		f.t.Error(err)
	}
	f.t.Cleanup(func() { _ = w.Close() }) // a descriptor of our own
	h := f.next()
	f.channels[h] = w
	return &uapi.HandleReply{Handle: h}, []int{read}, 0
}

func (f *fake) createCQ(body []byte, _ []int) (uapi.Body, []int, unix.Errno) {
	var m uapi.CreateCQRequest
	if err := m.Decode(body); err != nil {
		f.t.Error(err)
	}
	h := f.next()
	ref := uapi.RingRef{Slots: uapi.SlotCount(m.CQE)}
	mem, fd := f.ring(&ref, uapi.CQRingSize(ref.Slots))
	r, err := uapi.NewCQRing(mem, ref)
	if err != nil {
		f.t.Error(err)
	}
	f.cqs[h] = r
	return &uapi.CreateCQReply{Handle: h, CQE: ref.Slots, Ring: ref}, []int{fd}, 0
}

func (f *fake) createQP(body []byte, _ []int) (uapi.Body, []int, unix.Errno) {
	var m uapi.CreateQPRequest
	if err := m.Decode(body); err != nil {
		f.t.Error(err)
	}
	h := f.next()
	c := m.Cap
	rep := &uapi.CreateQPReply{Handle: h, QPN: QPN(0x100 + h), DoorbellIndex: h, Cap: c}
	rep.SQ = uapi.RingRef{Slots: uapi.SlotCount(c.MaxSendWR), MaxSGE: c.MaxSendSGE, MaxInline: c.MaxInlineData}
	mem, fd := f.ring(&rep.SQ, uapi.SQRingSize(rep.SQ.Slots, c.MaxSendSGE, c.MaxInlineData))
	fds := []int{fd}
	var err error
	if f.sqs[h], err = uapi.NewSQConsumer(mem, rep.SQ); err != nil {
		f.t.Error(err)
	}
	if m.SRQ != 0 {
		rep.Cap.MaxRecvWR = 1 // means nothing
	} else {
		rep.RQ = uapi.RingRef{Slots: uapi.SlotCount(c.MaxRecvWR), MaxSGE: c.MaxRecvSGE}
		fds = append(fds, f.newRQ(h, &rep.RQ))
	}
	return rep, fds, 0
}

// newRQ makes the receive ring of an object.
func (f *fake) newRQ(h uint32, ref *uapi.RingRef) (fd int) {
	mem, fd := f.ring(ref, uapi.RQRingSize(ref.Slots, ref.MaxSGE))
	r, err := uapi.NewRQConsumer(mem, *ref)
	if err != nil {
		f.t.Error(err)
	}
	f.rqs[h] = r
	return fd
}

func (f *fake) createSRQ(body []byte, _ []int) (uapi.Body, []int, unix.Errno) {
	var m uapi.CreateSRQRequest
	if err := m.Decode(body); err != nil {
		f.t.Error(err)
	}
	h := f.next()
	rep := &uapi.CreateSRQReply{Handle: h, Number: 0x700 + h, Attr: m.Attr}
	rep.Attr.MaxWR = uapi.SlotCount(m.Attr.MaxWR)
	rep.Ring = uapi.RingRef{Slots: rep.Attr.MaxWR, MaxSGE: m.Attr.MaxSGE}
	return rep, []int{f.newRQ(h, &rep.Ring)}, 0
}

func (f *fake) modifyQP(body []byte, _ []int) (uapi.Body, []int, unix.Errno) {
	var m uapi.ModifyQPRequest
	if err := m.Decode(body); err != nil {
		f.t.Error(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.Mask&QPStateMask != 0 {
		f.state = m.Attr.State
	}
	return &uapi.ModifyQPReply{State: f.state}, nil, 0
}

func (f *fake) destroyed([]byte, []int) (uapi.Body, []int, unix.Errno) {
	return &uapi.DestroyReply{}, nil, 0
}

// complete puts completions into a queue.
func (f *fake) complete(c *CQ, wcs ...WC) {
	r := f.cqs[c.handle]
	for i := range wcs {
		r.Put(&wcs[i])
	}
	r.Publish()
}

// raise writes an asynchronous event.
func (f *fake) raise(ev EventType, kind uapi.Element, handle uint32) {
	r := uapi.AsyncRecord{Event: uapi.AsyncEvent(ev), Kind: kind, Handle: handle}
	if !f.async.Write(r.Append(nil)) {
		f.t.Error("the event pipe is full")
	}
}

// sent takes what was posted to a queue pair.
func (f *fake) sent(q *QP) (wrs []SendWR) {
	f.t.Helper()
	s := f.sqs[q.handle]
	for {
		var wr SendWR
		ok, err := s.Peek(&wr)
		check(f.t, err)
		if !ok {
			return wrs
		}
		wr.Inline = append([]byte(nil), wr.Inline...)
		wrs = append(wrs, wr)
		s.Consume()
	}
}

// objects are what most tests start from.
type objects struct {
	pd *PD
	ch *CompChannel
	cq *CQ
	qp *QP
}

var smallCap = QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 64}

func newObjects(t *testing.T, d *Device, typ QPType, state QPState) *objects {
	t.Helper()
	o := &objects{}
	var err error
	o.pd, err = d.AllocPD()
	check(t, err)
	o.ch, err = d.CreateCompChannel()
	check(t, err)
	o.cq, err = d.CreateCQ(8, o.ch, 0)
	check(t, err)
	o.qp, err = o.pd.CreateQP(&QPInitAttr{Type: typ, SendCQ: o.cq, RecvCQ: o.cq, Cap: smallCap})
	check(t, err)
	if state != StateReset {
		check(t, o.qp.Modify(&QPAttr{State: state}, QPStateMask))
	}
	return o
}

// poll takes what there is.
func (o *objects) poll(t *testing.T) []WC {
	t.Helper()
	var wcs [16]WC
	n, err := o.cq.Poll(wcs[:])
	check(t, err)
	return wcs[:n]
}

func success(q *QP, wrid uint64, op WCOpcode) WC {
	return WC{WRID: wrid, Status: cq.Success, Opcode: op, QPN: q.qpn}
}

func failure(q *QP, wrid uint64, op WCOpcode, s WCStatus) WC {
	return WC{WRID: wrid, Status: s, Opcode: op, QPN: q.qpn}
}

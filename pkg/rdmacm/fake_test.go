package rdmacm

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/verbs"
)

// A fake is the adapter's end of a device: it answers as it is told, and knows
// nothing of connections.
type fake struct {
	t    *testing.T
	conn *shm.Conn

	mu       sync.Mutex
	on       map[uapi.Op]answerer
	handles  uint32
	pipes    map[uint32]*shm.RecordWriter // of event channels
	written  map[uint32]uint32            // events by identifier
	asked    []string
	modifies []qpstate.Attr
}

// answerer answers a request; errno 0 is success.
type answerer func(body []byte) (uapi.Body, []int, unix.Errno)

func newFake(t *testing.T) (*fake, *verbs.Device) {
	t.Helper()
	theirs, ours, err := shm.Socketpair()
	check(t, err)
	f := &fake{t: t, conn: ours, pipes: map[uint32]*shm.RecordWriter{}, written: map[uint32]uint32{}}
	f.on = map[uapi.Op]answerer{
		uapi.OpHello: f.hello, uapi.OpAllocPD: f.handle, uapi.OpCreateChannel: f.createChannel, uapi.OpCreateCQ: f.createCQ,
		uapi.OpCreateQP: f.createQP, uapi.OpModifyQP: f.modifyQP, uapi.OpDestroyCQ: says(&uapi.DestroyReply{}),
		uapi.OpDestroyQP: says(&uapi.DestroyReply{}), uapi.OpCreateCMChannel: f.createChannel, uapi.OpCreateCMID: f.handle,
		uapi.OpDestroyCMID: f.events, uapi.OpMigrateCM: f.events, uapi.OpQPAttrCM: f.qpAttr,
		uapi.OpBindCM: f.addresses, uapi.OpResolveCMAddr: f.addresses, uapi.OpQueryCM: f.addresses,
	}
	var served sync.WaitGroup
	served.Go(f.serve)
	d, err := verbs.OpenConn(theirs)
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
		shm.CloseFDs(fds)
		if err != nil || n == 0 {
			return
		}
		h, body, err := uapi.DecodeHeader(buf[:n])
		if err != nil {
			f.t.Errorf("the library sent %x: %v", buf[:n], err)
			return
		}
		f.mu.Lock()
		f.asked = append(f.asked, h.Op.String())
		answer := f.on[h.Op]
		f.mu.Unlock()
		var rep uapi.Body
		var out []int
		errno := unix.Errno(0)
		if answer != nil {
			rep, out, errno = answer(body)
		}
		answered.Lock()
		answered.Unlock() //nolint:staticcheck // see there: an edge, not a section (2026-11)
		h.Errno = int32(errno)
		if errno != 0 {
			rep = nil
		}
		err = f.conn.Send(uapi.AppendMessage(nil, h, rep), out)
		shm.CloseFDs(out)
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

// took returns what was asked since the last call.
func (f *fake) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.asked
	f.asked = nil
	return a
}

func says(rep uapi.Body) answerer {
	return func([]byte) (uapi.Body, []int, unix.Errno) { return rep, nil, 0 }
}

func fails(errno unix.Errno) answerer {
	return func([]byte) (uapi.Body, []int, unix.Errno) { return nil, nil, errno }
}

// keeps is an answerer that keeps the request in m.
func keeps(t *testing.T, m interface{ Decode([]byte) error }, rep uapi.Body) answerer {
	return func(body []byte) (uapi.Body, []int, unix.Errno) {
		if err := m.Decode(body); err != nil {
			t.Error(err)
		}
		return rep, nil, 0
	}
}

func (f *fake) segment(size int) int {
	s, err := shm.Create("fake", size)
	check(f.t, err)
	f.t.Cleanup(func() { _ = s.Close() }) // unmapping what we mapped
	return f.dup(s.FD())
}

func (f *fake) dup(fd int) int {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	check(f.t, err)
	return n
}

func (f *fake) hello([]byte) (uapi.Body, []int, unix.Errno) {
	w, read, err := shm.NewRecordPipe()
	check(f.t, err)
	wake, err := shm.NewDoorbell()
	check(f.t, err)
	f.t.Cleanup(func() { _, _ = wake.Close(), w.Close() }) // descriptors of our own
	rep := &uapi.HelloReply{Version: uapi.Version, Workers: 1, Name: "fake"}
	return rep, []int{f.segment(uapi.StatusSize), f.segment(uapi.DoorbellSize(1)), read, f.dup(wake.FD())}, 0
}

func (f *fake) next() uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handles++
	return f.handles
}

func (f *fake) handle([]byte) (uapi.Body, []int, unix.Errno) {
	return &uapi.HandleReply{Handle: f.next()}, nil, 0
}

func (f *fake) createChannel([]byte) (uapi.Body, []int, unix.Errno) {
	w, read, err := shm.NewRecordPipe()
	check(f.t, err)
	f.t.Cleanup(func() { _ = w.Close() }) // a descriptor of our own
	h := f.next()
	f.mu.Lock()
	f.pipes[h] = w
	f.mu.Unlock()
	return &uapi.HandleReply{Handle: h}, []int{read}, 0
}

func (f *fake) createCQ(body []byte) (uapi.Body, []int, unix.Errno) {
	var m uapi.CreateCQRequest
	check(f.t, m.Decode(body))
	ref := uapi.RingRef{Segment: f.next(), Slots: uapi.SlotCount(m.CQE)}
	return &uapi.CreateCQReply{Handle: f.next(), CQE: ref.Slots, Ring: ref}, []int{f.segment(uapi.CQRingSize(ref.Slots))}, 0
}

func (f *fake) createQP(body []byte) (uapi.Body, []int, unix.Errno) {
	var m uapi.CreateQPRequest
	check(f.t, m.Decode(body))
	h, c := f.next(), m.Cap
	rep := &uapi.CreateQPReply{Handle: h, QPN: verbs.QPN(0x100 + h), DoorbellIndex: h, Cap: c}
	rep.SQ = uapi.RingRef{Segment: f.next(), Slots: uapi.SlotCount(c.MaxSendWR), MaxSGE: c.MaxSendSGE, MaxInline: c.MaxInlineData}
	rep.RQ = uapi.RingRef{Segment: f.next(), Slots: uapi.SlotCount(c.MaxRecvWR), MaxSGE: c.MaxRecvSGE}
	return rep, []int{
		f.segment(uapi.SQRingSize(rep.SQ.Slots, c.MaxSendSGE, c.MaxInlineData)), f.segment(uapi.RQRingSize(rep.RQ.Slots, rep.RQ.MaxSGE)),
	}, 0
}

func (f *fake) modifyQP(body []byte) (uapi.Body, []int, unix.Errno) {
	var m uapi.ModifyQPRequest
	check(f.t, m.Decode(body))
	f.mu.Lock()
	f.modifies = append(f.modifies, m.Attr)
	f.mu.Unlock()
	return &uapi.ModifyQPReply{State: m.Attr.State}, nil, 0
}

// states are those that queue pairs were taken to since the last call, and the
// depths that were set.
func (f *fake) states() (states []verbs.QPState, resources, depth uint8) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.modifies {
		a := &f.modifies[i]
		states = append(states, a.State)
		resources, depth = max(resources, a.MaxDestRDAtomic), max(depth, a.MaxRDAtomic)
	}
	f.modifies = nil
	return states, resources, depth
}

// qpAttr gives attributes with depths that a test recognises.
func (f *fake) qpAttr(body []byte) (uapi.Body, []int, unix.Errno) {
	var m uapi.CMValueRequest
	check(f.t, m.Decode(body))
	a := qpstate.Attr{State: qpstate.State(m.Value)}
	if a.State == qpstate.RTR {
		a.MaxDestRDAtomic = 7
	} else if a.State == qpstate.RTS {
		a.MaxRDAtomic = 9
	}
	return &uapi.QPAttrCMReply{Mask: qpstate.MaskState, Attr: a}, nil, 0
}

func (f *fake) events(body []byte) (uapi.Body, []int, unix.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := uint32(body[0]) | uint32(body[1])<<8 // a handle or an identifier comes first
	return &uapi.CMEventsReply{Events: f.written[h]}, nil, 0
}

func (f *fake) addresses(body []byte) (uapi.Body, []int, unix.Errno) {
	var m uapi.CMAddrRequest
	if len(body) > 4 {
		check(f.t, m.Decode(body))
	}
	return &uapi.CMAddrReply{Own: m.Own, Peer: m.Peer, MTU: verbs.MTU1024}, nil, 0
}

// raise writes an event.
func (f *fake) raise(ch *EventChannel, rec uapi.CMRecord) {
	f.t.Helper()
	f.mu.Lock()
	w := f.pipes[ch.handle]
	f.written[subject(&rec)]++
	f.mu.Unlock()
	if !w.Write(rec.Append(nil)) {
		f.t.Error("the channel's pipe is full")
	}
}

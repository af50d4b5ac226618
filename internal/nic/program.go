package nic

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/shm/foreign"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
)

// A program is one connection to the adapter and all it holds. Its requests
// are served one at a time by one goroutine; mu is for those who come from
// elsewhere (a fault, a snapshot).
type program struct {
	a      *Adapter
	conn   *shm.Conn
	pid    int // as seen from here, 0 when not visible
	uid    uint32
	name   string // as it called itself
	number uint32 // of the adapter's programs, in the order of their coming
	cred   shm.Cred
	exited atomic.Bool
	// announced says that its coming is in the log; of the goroutine that serves it.
	announced bool
	pidfd     *shm.Pidfd       // nil when the process is not visible
	process   *foreign.Process // whose memory foreign regions reach
	account   *account
	since     time.Time
	async     *shm.RecordWriter
	doorbell  *shm.Segment
	eventfds  []*shm.Doorbell // by worker
	links     []*programLink  // by worker

	faulting atomic.Bool // killQPs is on its way
	faults   sync.WaitGroup

	asyncMu   sync.Mutex
	asyncSent map[element]uint32 // records written, by live element

	mu       sync.Mutex
	rings    *carver
	index    indices // of QPs in the doorbell area
	pds      handles[*pdObject]
	mrs      handles[*mrObject]
	mws      handles[*mwObject]
	channels handles[*channelObject]
	cqs      handles[*cqObject]
	qps      handles[*qpObject]
	byQPN    map[bth.QPN]*qpObject
	cm       *cmProgram // nil: none yet; it is the worker's that has queue pair 1
	srqs     handles[*srqObject]
	ahs      ahTable
	retired  []*ahObject // destroyed, and perhaps named by a request that waits
	mappings map[fileID]*mapping
}

// The objects behind a program's handles.
type (
	pdObject struct {
		pd     mrtable.PD
		handle uint32
		users  int // objects in it
	}
	mrObject struct {
		pd      *pdObject
		region  *mrtable.Region
		bytes   uint64   // booked
		mapping *mapping // nil: foreign
		fast    bool     // for fast registration: it has no memory of its own
		kind    uapi.MRKind
		iova    uint64 // as the program gave it, also of a zero-based region
		length  uint64
		access  mrtable.Access
	}
	channelObject struct {
		channel
		users int // CQs
		room  int // the most CQs
	}
	cqObject struct {
		*cqueue
		area    ringArea
		slots   uint32
		channel *channelObject // nil: none
		homes   []int          // QPs by worker
		vector  int            // completion vector
	}
	qpObject struct {
		qp     *qp
		pd     *pdObject
		send   *cqObject
		recv   *cqObject
		sq, rq ringArea
		worker *worker
		caps   qpstate.Cap // actual
		told   bool        // QP_FATAL was posted for a stopped one
		kind   qpstate.Type
		srq    *srqObject       // nil: none
		groups map[bth.GID]bool // multicast groups that it is attached to
	}
)

// Elements and events of async records, as postAsync takes them.
const (
	asyncCQ = uapi.ElementCQ
	asyncQP = uapi.ElementQP

	eventCQErr   = uapi.EventCQErr
	eventQPFatal = uapi.EventQPFatal
)

// An element is what an async event is about.
type element struct {
	kind   uapi.Element
	handle uint32
}

// postAsync writes one async event record for the program: the event
// (ibv_event_type), the kind of the element and its handle. It never blocks;
// a program that does not read loses events, which is counted. Callable from
// workers.
func (p *program) postAsync(event uapi.AsyncEvent, kind uapi.Element, handle uint32) {
	r := uapi.AsyncRecord{Event: event, Kind: kind, Handle: handle}
	if !p.async.Write(r.Append(nil)) {
		p.a.control.asyncLost.Add(1)
		return
	}
	p.a.control.asyncEvents.Add(1)
	p.asyncMu.Lock()
	p.asyncSent[element{kind, handle}]++
	p.asyncMu.Unlock()
}

// endAsync returns how many async events of an element were written in its
// life, which is over.
func (p *program) endAsync(kind uapi.Element, handle uint32) uint32 {
	p.asyncMu.Lock()
	defer p.asyncMu.Unlock()
	e := element{kind, handle}
	n := p.asyncSent[e]
	delete(p.asyncSent, e)
	return n
}

// fault ends the program's queue pairs, from a worker that met a memory fault
// or a ring that no library writes. It returns at once; one kill is on its
// way at a time.
func (p *program) fault(reason string) {
	if !p.faulting.CompareAndSwap(false, true) {
		return
	}
	p.faults.Go(func() {
		defer p.faulting.Store(false)
		p.killQPs(reason)
	})
}

// killQPs moves every queue pair of the program to ERR and tells it.
func (p *program) killQPs(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for handle, o := range p.qps.byHandle {
		var stopped bool
		o.worker.do(func() { stopped = o.worker.killQP(o.qp) })
		if stopped && !o.told {
			o.told = true
			p.postAsync(eventQPFatal, asyncQP, handle)
		}
		n++
	}
	p.a.control.faults.Add(1)
	if more, ok := p.a.allowLog(&p.a.faultLog); ok {
		p.a.log.Warn("queue pairs of a program ended", keyAdapter, p.a.cfg.Name, keyPID, p.pid, keyUID, p.uid, keyReason, reason, keyQPs, n,
			keySuppressed, more)
	}
}

// killQP ends a queue pair and tells its program; on its worker's goroutine.
// One that a fault stopped in its tracks is not touched any more, since its
// engine may be half-way through something: stopped is true, and the caller
// tells the program.
func (w *worker) killQP(q *qp) (stopped bool) {
	if q.dead || q.removed {
		return q.dead
	}
	q.engine.Fatal(w.now)
	w.settle(q)
	w.active.push(q)
	return false
}

// errStopped is the answer to a request that needs a worker when the workers
// have stopped.
func (a *Adapter) errStopped() error {
	return refuse(syscall.EIO, "adapter %s is closing", a.cfg.Name)
}

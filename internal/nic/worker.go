package nic

import (
	"math"
	"net/netip"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/udp4791"
	"github.com/softroce/softroce/pkg/wq"
)

// Our own tuning of a worker's turn.
const (
	// spinTurns is how many empty turns a worker makes, yielding between
	// them, before it sleeps.
	spinTurns = 40
	// fewTurns is how many it makes after a turn of nothing but commands: on a
	// host of few CPUs polling takes them from the program that is to go on.
	fewTurns = 2
	// turnBytes and qpTurnBytes bound what one turn transmits, in all and for
	// one queue pair, so that a bulk sender does not starve a ping-pong: about
	// what makes one segmented send.
	turnBytes   = 60 << 10
	qpTurnBytes = 60 << 10
	// bulkBytes is what a queue pair sends in one turn to count as a bulk sender.
	bulkBytes = 16 << 10
	// yieldEvery is how long a worker is busy before it yields.
	yieldEvery = 50 * time.Microsecond
	// A yield that took longer than longYield shows that others need the CPU:
	// for crowdedFor the worker sleeps instead of polling, and yields only then.
	longYield  = time.Millisecond
	crowdedFor = 20 * time.Millisecond
	// blockedWait is how long a worker sleeps at most while a send socket
	// refuses packets.
	blockedWait = time.Millisecond
	// turnBells bounds the doorbells of one program that a turn serves.
	turnBells = 256
	// turnSlots and visitSlots bound the posted requests that a turn takes, in
	// all and from one queue pair at a time.
	turnSlots  = 4096
	visitSlots = 256
	// slabLimit bounds the copies of requests in flight of one program on one
	// worker, so that a program which fills it waits alone.
	slabLimit = 64 << 20
)

// A worker owns one receive endpoint and the queue pairs steered to it: it is
// one goroutine, and all it owns is touched by that goroutine alone. Others
// reach it through do and post.
type worker struct {
	a     *Adapter
	index int
	ep    udp4791.Queue

	// The rest up to the command queue belongs to the worker's goroutine.
	now      time.Time
	byQPN    map[bth.QPN]*qp
	lastQP   *qp // that a packet came for
	taken    *qp // that accepted the last packet, which nobody captures
	links    []*programLink
	gsi      *gsi // queue pair 1, on the one worker that has it
	active   active
	timers   timerHeap
	dirty    []*stage
	batch    batcher
	stage    transport.Stage
	peers    *transport.Peers // windows of those that queue pairs here are connected to
	learner  learner
	routes   map[netip.Addr]*route
	groups   map[netip.Addr]*groupHere // multicast
	counters transport.Counters
	stats    WorkerStats
	pkt      transport.Packet
	scratch  wq.SendWR
	current  *qp // whose memory is being touched, for a fault
	spins    int
	// onlyCommands: the last turn did what the control plane asked for, and nothing
	// else.
	onlyCommands bool
	yielder      shm.Yielder
	yielded      time.Time // after a turn that found something
	crowded      time.Time // until then others need the CPU
	waiting      []*qp     // that found a lane full
	held         []*qp     // with an acknowledgement that waits for a turn
	got          uint64    // packets received in this turn
	here         handed    // between two queue pairs of this worker
	loan         *handed   // that is being taken
	lentBuf      [transport.TransmitSpace]byte
	impaired     impaired // by rules
	// unsteered: the kernel spreads packets over the workers as it likes (TUN), so
	// that a full lane is nothing out of the way, and is waited for. canWait says that
	// the packet of now can; full that its lane is; rest, the endpoint's memory, is
	// what was read and has to wait.
	unsteered bool
	canWait   bool
	full      bool
	rest      []udp4791.RecvSlot

	later     []*qp      // whose rings a turn did not come to the end of
	slots     int        // that this turn may still take
	firstLink int        // where the turns' doorbells begin
	over      []*program // with queues that overflowed

	icrcLog, recvLog, sendLog         rateLimit
	ringLog, cqLog, faultLog, noteLog rateLimit

	poller *shm.Poller
	events []uint64
	wake   *shm.Doorbell
	asleep *atomic.Uint32

	pending atomic.Uint32 // commands or handed-over packets wait
	running []func()      // commands that are being run; the worker's own
	mu      sync.Mutex
	cmds    []func()
	closed  bool
	lanes   [udp4791.MaxWorkers]atomic.Pointer[lane] // from each worker
	done    chan struct{}
	quit    bool
}

// Tokens of the poller: what woke the worker.
const (
	tokenSocket uint64 = iota
	tokenWake
	tokenProgram // and above: eventfds of programs, by descriptor
)

func newWorker(a *Adapter, index int, ep udp4791.Queue) (*worker, error) {
	w := &worker{
		a: a, index: index, ep: ep, unsteered: a.cfg.Backend == BackendTUN,
		byQPN:  make(map[bth.QPN]*qp),
		routes: make(map[netip.Addr]*route),
		groups: make(map[netip.Addr]*groupHere),
		events: make([]uint64, 64),
		done:   make(chan struct{}),
	}
	w.yielder.InProcess = !a.cfg.OwnProcess
	w.batch.init(a.group.Segments())
	w.peers = transport.NewPeers(2 * a.cfg.Window)
	w.learner.init(a.cfg.StrictICRC)
	var err error
	if w.asleep, err = a.status.SleepWord(index); err != nil {
		return nil, err
	}
	if w.poller, err = shm.NewPoller(); err != nil {
		return nil, err
	}
	if w.wake, err = shm.NewDoorbell(); err != nil {
		_ = w.poller.Close() // the first error is the one to report
		return nil, err
	}
	if err = w.poller.Add(w.wake.FD(), tokenWake); err == nil {
		for _, fd := range ep.FDs() {
			if err = w.poller.Add(fd, tokenSocket); err != nil {
				break
			}
		}
	}
	if err != nil {
		_ = w.poller.Close() // the first error is the one to report
		_ = w.wake.Close()
		return nil, err
	}
	return w, nil
}

func (w *worker) start() { go w.run() }

// stop ends the worker and waits for it. Commands posted before still run;
// later ones are refused.
func (w *worker) stop() {
	w.post(func() { w.quit = true })
	<-w.done
	_ = w.poller.Close() // descriptors of our own, at the end
	_ = w.wake.Close()
}

// post queues f to run on the worker's goroutine between turns and returns at
// once; false when the worker has stopped.
func (w *worker) post(f func()) bool {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return false
	}
	w.cmds = append(w.cmds, f)
	w.mu.Unlock()
	w.signal()
	return true
}

// signal makes the worker look at its commands and its lanes, waking it when it
// sleeps.
func (w *worker) signal() {
	w.pending.Store(1)
	if w.asleep.Load() != 0 {
		w.wake.Ring()
	}
}

// do runs f on the worker's goroutine between turns and waits for it; false
// when the worker has stopped and f did not run. Not to be called from a
// worker.
func (w *worker) do(f func()) bool {
	ran := make(chan struct{})
	if !w.post(func() { f(); close(ran) }) {
		return false
	}
	<-ran
	return true
}

// quiesce returns once the worker has passed a turn's boundary: no look-up
// made before the call is still in use by it.
func (w *worker) quiesce() { w.do(func() {}) }

// commands runs what others queued, each when all is served that was in the
// worker's lanes as the command came. What is queued meanwhile is for the next
// turn, so that programs which ask without end do not hold this one. It returns
// how many ran.
func (w *worker) commands() int {
	if w.pending.Load() == 0 {
		return 0
	}
	w.pending.Store(0)
	if len(w.running) > 0 {
		w.pending.Store(1) // a fault left some: what came since is not among them
	} else {
		w.mu.Lock()
		w.running, w.cmds = w.cmds, nil
		w.mu.Unlock()
	}
	if len(w.running) == 0 {
		return w.takeLanes(turnLent)
	}
	n := w.takeLanes(math.MaxInt)
	for len(w.running) > 0 {
		f := w.running[0]
		w.running = w.running[1:]
		f()
		n++
	}
	return n
}

// run is the worker's goroutine. It is not locked to a thread: a locked
// goroutine that yields hands its P to another thread and back, which costs
// hundreds of times more (docs/adr/0006-workers-not-locked.md).
func (w *worker) run() {
	defer close(w.done)
	debug.SetPanicOnFault(true)
	for !w.quit {
		if w.guardedTurn() > 0 {
			w.spins = 0
			if w.onlyCommands {
				w.spins = spinTurns - fewTurns // traffic is not what comes next
			}
			if w.full {
				runtime.Gosched() // to the worker that is to empty the lane, however long
				shm.SchedYield()
			} else if len(w.held) > 0 || w.now.Sub(w.yielded) >= yieldEvery {
				w.yielded = w.now
				w.giveWay(shm.SchedYield)
			}
			continue
		}
		w.spins++
		if len(w.waiting) > 0 {
			w.yielder.Yield()
			continue
		}
		if w.spins < spinTurns && w.giveWay(w.yielder.Yield) {
			continue
		}
		w.sleep()
		w.spins = 0
	}
	w.mu.Lock()
	w.closed = true
	left := append(w.running, w.cmds...)
	w.running, w.cmds = nil, nil
	w.mu.Unlock()
	for _, f := range left {
		f()
	}
}

// giveWay yields the CPU, and tells whether to go on polling. On a crowded CPU
// a yield costs the time slices of all others, and a thread that wakes up comes
// before them.
func (w *worker) giveWay(yield func()) bool {
	if w.now.Before(w.crowded) {
		return false
	}
	before := time.Now()
	yield()
	if now := time.Now(); now.Sub(before) > longYield {
		w.crowded = now.Add(crowdedFor)
		w.stats.Crowded++
	}
	return true
}

// sleep waits for a packet, a doorbell, a command or the next deadline. The
// flag is set first and everything looked at again, so that no wake is lost.
func (w *worker) sleep() {
	w.asleep.Store(1)
	if w.pending.Load() != 0 || w.anyDoorbell() {
		w.asleep.Store(0)
		return
	}
	timeout := time.Duration(-1)
	if d, ok := w.timers.next(); ok {
		timeout = max(time.Until(d), 0)
	}
	if d, ok := w.nextDelayed(); ok && (timeout < 0 || time.Until(d) < timeout) {
		timeout = max(time.Until(d), 0)
	}
	if w.batch.blocked() && (timeout < 0 || timeout > blockedWait) {
		timeout = blockedWait
	}
	w.stats.Sleeps++
	n, err := w.poller.Wait(timeout, w.events)
	w.asleep.Store(0)
	if err != nil {
		w.a.log.Error("poll failed", keyWorker, w.index, keyErr, err)
		return
	}
	for _, token := range w.events[:n] {
		switch {
		case token == tokenWake:
			w.wake.Drain()
		case token >= tokenProgram:
			w.drainProgram(token)
		}
	}
}

// rateLimit lets a few lines a second through and counts the rest.
type rateLimit struct {
	since      time.Time // when the second began
	lines      int       // in it
	suppressed uint64
}

// allow says whether a line may be written now, of which there is to be one a
// second, and how many were kept back since the last.
func (r *rateLimit) allow(now time.Time) (uint64, bool) { return r.allowSome(now, 1) }

// allowSome is allow for most lines a second.
func (r *rateLimit) allowSome(now time.Time, most int) (uint64, bool) {
	if r.since.IsZero() || now.Sub(r.since) >= time.Second {
		r.since, r.lines = now, 0
	}
	if r.lines >= most {
		r.suppressed++
		return 0, false
	}
	r.lines++
	n := r.suppressed
	r.suppressed = 0
	return n, true
}

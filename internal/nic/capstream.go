package nic

import (
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
)

// Our own tuning of captures that programs ask for.
const (
	captureRoom       = 4 << 20 // bytes that wait for a slow reader
	capturePipe       = 1 << 20 // wanted size of the pipe
	maxCaptures       = 16      // of the adapter
	maxProgramCapture = 4
)

// captures are the adapter's captures for programs.
type captures struct {
	mu   sync.Mutex
	last uint32
	all  []*capStream
	file *capture.Writer // of the configuration, while it can be written
	// icrc says that queue pairs of this adapter give each other packets as the
	// wire has them: somebody captures, or is about to.
	icrc   atomic.Bool
	failed atomic.Bool // file cannot be written
}

// A capStream is a capture for a program: the adapter makes the pipe, so that no
// descriptor of the program's can make it wait, and the program writes the file.
type capStream struct {
	handle uint32
	owner  *program
	qpns   []uint32 // none: all
	peer   netip.Addr
	all    bool // root and the adapter's own user see all
	queue  *capture.Queue
	pipe   *os.File
	done   chan struct{} // closed when the pipe is
	over   bool          // what waits is still written
}

// wants says whether the program may see a packet, and asked for it. Packets hold
// payloads and keys: a user sees those of its own queue pairs, root and the
// adapter's own user see all.
func (c *capStream) wants(s *sighting) bool {
	if c.peer.IsValid() {
		peer := s.Src
		if s.Outbound {
			peer = s.Dst
		}
		if peer.Unmap().WithZone("") != c.peer {
			return false
		}
	}
	if len(c.qpns) > 0 && !slices.Contains(c.qpns, s.ownQPN()) {
		return false
	}
	return c.all || s.q != nil && s.q.prog != nil && s.q.prog.uid == c.owner.uid && c.owner.uid != overflowUID
}

// seesAll says whether a program sees the packets of all, also those of nobody.
func (p *program) seesAll() bool {
	all, _ := sight(p.uid, overflowUID, uint32(os.Geteuid()))
	return all
}

// ownQPN is the number of the adapter's queue pair that a packet is of, or was
// meant for.
func (s *sighting) ownQPN() uint32 {
	if s.q != nil || s.Outbound || len(s.Payload) < bth.BTHLen {
		return uint32(s.note.QPN)
	}
	return uint32(bth.BTH(s.Payload).DestQP())
}

// run writes the capture to its pipe until it ends or the reader is gone.
func (c *capStream) run() {
	defer close(c.done)
	defer c.remove()
	defer func() { _ = c.pipe.Close() }() // may be closed by endCaptures
	var spare []byte
	for range c.queue.Wake() {
		blocks, ended := c.queue.Take(spare)
		if _, err := c.pipe.Write(blocks); err != nil || ended {
			c.queue.End()
			return
		}
		if spare = blocks; cap(spare) > captureRoom/4 {
			spare = nil // a reader that was slow once
		}
	}
}

// remove takes a capture off the adapter that is written, or whose reader is gone.
func (c *capStream) remove() {
	s := &c.owner.a.streams
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(o *capStream) bool { return o == c })
	if !c.over {
		c.owner.a.setTaps()
	}
}

// startCapture begins a capture for the program.
func (p *program) startCapture(m *uapi.StartCaptureRequest) (reply, error) {
	c := &capStream{owner: p, all: p.seesAll(), qpns: m.QPNs, done: make(chan struct{})}
	if !m.Peer.IsZero() {
		c.peer = m.Peer.Addr()
	}
	s := &p.a.streams
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := 0
	for _, o := range s.all {
		if o.owner == p {
			mine++
		}
	}
	if len(s.all) >= maxCaptures || mine >= maxProgramCapture {
		return reply{}, refuse(syscall.ENOSPC, "%d captures run, %d of them this program's: the limits are %d and %d", len(s.all), mine, maxCaptures, maxProgramCapture)
	}
	var err error
	if c.queue, err = capture.NewQueue(p.a.cfg.Name, captureRoom, capture.WriterOptions{}); err != nil {
		return reply{}, refuse(syscall.EIO, "%v", err)
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return reply{}, refuse(errnoOf(err, syscall.EMFILE), "a pipe for the capture: %v", err)
	}
	_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, capturePipe) // a smaller one works as well
	c.pipe = os.NewFile(uintptr(fds[1]), "capture")
	s.last++
	c.handle = s.last
	s.all = append(s.all, c)
	go c.run()
	p.a.setTaps()
	out := fds[:1]
	return reply{body: &uapi.HandleReply{Handle: c.handle}, fds: out, closeAfter: out}, nil
}

// stopCapture ends a capture: what waits goes into the pipe, which then ends.
func (p *program) stopCapture(m *uapi.HandleRequest) (reply, error) {
	s := &p.a.streams
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := p.captureOf(m.Handle)
	if err != nil {
		return reply{}, err
	}
	c.over = true
	p.a.setTaps()
	c.queue.End()
	n := c.queue.Stats()
	return reply{body: &uapi.CaptureReply{Written: n.Written, Lost: n.Lost}}, nil
}

// queryCapture counts a capture's packets so far.
func (p *program) queryCapture(m *uapi.HandleRequest) (reply, error) {
	s := &p.a.streams
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := p.captureOf(m.Handle)
	if err != nil {
		return reply{}, err
	}
	n := c.queue.Stats()
	return reply{body: &uapi.CaptureReply{Written: n.Written, Lost: n.Lost}}, nil
}

// captureOf is the program's capture of that handle; the captures' lock is held.
func (p *program) captureOf(handle uint32) (*capStream, error) {
	for _, c := range p.a.streams.all {
		if c.owner == p && c.handle == handle && !c.over {
			return c, nil
		}
	}
	return nil, errHandle("capture", handle)
}

// endCaptures ends those of a program that is gone, and waits for them.
func (p *program) endCaptures() {
	s := &p.a.streams
	s.mu.Lock()
	all := slices.Clone(s.all)
	s.mu.Unlock()
	for _, c := range all {
		if c.owner != p {
			continue
		}
		c.queue.End()
		_ = c.pipe.Close() // ends a write that waits
		<-c.done
	}
}

// setTaps shows the workers who captures. Queue pairs that meet in memory give
// their packets an ICRC, and lend none, before the first of them is captured. The
// captures' lock is held.
func (a *Adapter) setTaps() {
	s := &a.streams
	t := &taps{file: s.file}
	for _, c := range s.all {
		if !c.over {
			t.streams = append(t.streams, c)
		}
	}
	if t.file == nil && len(t.streams) == 0 {
		a.tap.Store(nil)
		s.icrc.Store(false)
		a.setICRC()
		return
	}
	if !s.icrc.Swap(true) {
		a.setICRC()
		a.endLoans()
	}
	a.tap.Store(t)
}

// setICRC tells the queue pairs whose peer is on this adapter whether their
// packets need an ICRC.
func (a *Adapter) setICRC() {
	for _, w := range a.workers {
		w.do(w.setICRC)
	}
}

func (w *worker) setICRC() {
	for _, q := range w.byQPN {
		if q.here && !q.dead {
			q.engine.OmitICRC(w.omitICRC())
		}
	}
}

// omitICRC says that packets between queue pairs of this adapter need no ICRC:
// nobody captures them, and no rule looks at them.
func (w *worker) omitICRC() bool { return !w.a.streams.icrc.Load() && !w.a.impair.on.Load() }

// tapFile begins the capture of the configuration, before the workers run.
func (a *Adapter) tapFile(w *capture.Writer) {
	if w == nil {
		return
	}
	a.streams.file = w
	a.streams.icrc.Store(true)
	a.tap.Store(&taps{file: w})
}

// tapFailed ends the capture of the configuration, which can no longer be
// written. It is called by workers.
func (a *Adapter) tapFailed(err error) {
	if a.streams.failed.Swap(true) {
		return
	}
	go func() { // setTaps waits for the workers
		a.streams.mu.Lock()
		defer a.streams.mu.Unlock()
		a.streams.file = nil
		a.setTaps()
		a.log.Error("the capture stopped", keyErr, err)
	}()
}

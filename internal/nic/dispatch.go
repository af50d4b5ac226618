package nic

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/wq"
)

// A reply is what a request is answered with. fds go with it; those in
// closeAfter are closed once it is sent.
type reply struct {
	body       uapi.Body
	fds        []int
	closeAfter []int
}

// A handler serves one kind of request under the program's lock. fds are the
// descriptors that came with it, which stay the caller's.
type handler struct {
	wantFDs int  // the most that may come
	free    bool // takes what locks it needs itself
	run     func(p *program, body []byte, fds []int) (reply, error)
}

// decoder is a request of type T that decodes itself.
type decoder[T any] interface {
	*T
	Decode(b []byte) error
}

// on makes a handler of a method that takes the decoded request.
func on[T any, P decoder[T]](f func(*program, P) (reply, error)) handler {
	return onFDs(0, func(p *program, m P, _ []int) (reply, error) { return f(p, m) })
}

func onFDs[T any, P decoder[T]](n int, f func(*program, P, []int) (reply, error)) handler {
	return handler{wantFDs: n, run: func(p *program, body []byte, fds []int) (reply, error) {
		m := P(new(T))
		if err := m.Decode(body); err != nil {
			return reply{}, &Error{Errno: syscall.EINVAL, Text: err.Error()}
		}
		return f(p, m, fds)
	}}
}

// unlocked makes a handler one that runs without the program's lock.
func unlocked(h handler) handler {
	h.free = true
	return h
}

// handlers is the one table of what a program may ask for after its hello.
var handlers = map[uapi.Op]handler{
	uapi.OpQueryDevice:    on((*program).queryDevice),
	uapi.OpQueryPort:      on((*program).queryPort),
	uapi.OpQueryGIDTable:  on((*program).queryGIDTable),
	uapi.OpAllocPD:        on((*program).allocPD),
	uapi.OpDeallocPD:      on((*program).deallocPD),
	uapi.OpRegMR:          onFDs(1, (*program).regMR),
	uapi.OpDeregMR:        on((*program).deregMR),
	uapi.OpReregMR:        onFDs(1, (*program).reregMR),
	uapi.OpAdviseMR:       on((*program).adviseMR),
	uapi.OpAllocMR:        on((*program).allocMR),
	uapi.OpAllocMW:        on((*program).allocMW),
	uapi.OpDeallocMW:      on((*program).deallocMW),
	uapi.OpCreateChannel:  on((*program).createChannel),
	uapi.OpDestroyChannel: on((*program).destroyChannel),
	uapi.OpCreateCQ:       on((*program).createCQ),
	uapi.OpDestroyCQ:      on((*program).destroyCQ),
	uapi.OpResizeCQ:       on((*program).resizeCQ),
	uapi.OpCreateQP:       on((*program).createQP),
	uapi.OpModifyQP:       on((*program).modifyQP),
	uapi.OpQueryQP:        on((*program).queryQP),
	uapi.OpDestroyQP:      on((*program).destroyQP),
	uapi.OpCreateAH:       on((*program).createAH),
	uapi.OpDestroyAH:      on((*program).destroyAH),
	uapi.OpCreateSRQ:      on((*program).createSRQ),
	uapi.OpModifySRQ:      on((*program).modifySRQ),
	uapi.OpQuerySRQ:       on((*program).querySRQ),
	uapi.OpDestroySRQ:     on((*program).destroySRQ),
	uapi.OpAttachMcast:    on((*program).attachMcast),
	uapi.OpDetachMcast:    on((*program).detachMcast),

	uapi.OpCreateCMChannel:  on((*program).createCMChannel),
	uapi.OpDestroyCMChannel: on((*program).destroyCMChannel),
	uapi.OpCreateCMID:       on((*program).createCMID),
	uapi.OpDestroyCMID:      on((*program).destroyCMID),
	uapi.OpBindCM:           on((*program).bindCM),
	uapi.OpResolveCMAddr:    on((*program).resolveCMAddr),
	uapi.OpResolveCMRoute:   on((*program).resolveCMRoute),
	uapi.OpQueryCM:          on((*program).queryCM),
	uapi.OpListenCM:         on((*program).listenCM),
	uapi.OpConnectCM:        on((*program).connectCM),
	uapi.OpAcceptCM:         on((*program).acceptCM),
	uapi.OpRejectCM:         on((*program).rejectCM),
	uapi.OpEstablishCM:      on((*program).establishCM),
	uapi.OpDisconnectCM:     on((*program).disconnectCM),
	uapi.OpNotifyCM:         on((*program).notifyCM),
	uapi.OpMigrateCM:        on((*program).migrateCM),
	uapi.OpQPAttrCM:         on((*program).qpAttrCM),
	uapi.OpSetCMOption:      on((*program).setCMOption),
	uapi.OpJoinCM:           on((*program).joinCM),
	uapi.OpLeaveCM:          on((*program).leaveCM),

	uapi.OpImpair:     unlocked(on((*program).changeImpairments)),
	uapi.OpListImpair: unlocked(on((*program).listImpairments)),

	uapi.OpStartCapture: unlocked(on((*program).startCapture)),
	uapi.OpStopCapture:  unlocked(on((*program).stopCapture)),
	uapi.OpQueryCapture: unlocked(on((*program).queryCapture)),

	uapi.OpListResources: unlocked(on((*program).listResources)),
	uapi.OpListCounters:  unlocked(on((*program).listCounters)),
	uapi.OpExplainQP:     unlocked(on((*program).explainQP)),
	uapi.OpListGIDs:      unlocked(on((*program).listGIDs)),
}

// answer serves one message and appends the reply to out. It takes over fds.
func (p *program) answer(out, msg []byte, fds []int) ([]byte, reply) {
	defer shm.CloseFDs(fds)
	p.a.control.requests.Add(1)
	h, body, err := uapi.DecodeHeader(msg)
	if err != nil {
		p.a.control.badMessages.Add(1)
		return p.a.appendRefusal(out, h, &Error{Errno: syscall.EINVAL, Text: err.Error()}), reply{}
	}
	r, err := p.run(h, body, fds)
	if err != nil {
		return p.a.appendRefusal(out, h, err), reply{}
	}
	return uapi.AppendMessage(out, uapi.Header{Op: h.Op, Version: uapi.Version, Seq: h.Seq}, r.body), r
}

// run checks what all requests have in common and calls the handler.
func (p *program) run(h uapi.Header, body []byte, fds []int) (reply, error) {
	if h.Version != uapi.Version {
		return reply{}, errVersion(h.Version)
	}
	if h.Op == uapi.OpHello {
		return reply{}, refuse(syscall.EINVAL, "hello: said already on this connection")
	}
	hd, ok := handlers[h.Op]
	if !ok {
		return reply{}, refuse(syscall.EOPNOTSUPP, "%v: this adapter has no such operation", h.Op)
	}
	if len(fds) > hd.wantFDs {
		return reply{}, refuse(syscall.EINVAL, "%v: %d descriptors came with it, at most %d make sense", h.Op, len(fds), hd.wantFDs)
	}
	if !hd.free {
		p.mu.Lock()
		defer p.mu.Unlock()
	}
	r, err := hd.run(p, body, fds)
	if err != nil {
		return reply{}, fmt.Errorf("%v: %w", h.Op, err)
	}
	return r, nil
}

func errVersion(theirs uint16) error {
	return refuse(syscall.EPROTONOSUPPORT, "the program speaks version %d of the adapter's interface, this adapter version %d; rebuild the program against the adapter's release, or the other way round",
		theirs, uapi.Version)
}

// appendRefusal appends the reply to a request that failed with err.
func (a *Adapter) appendRefusal(out []byte, h uapi.Header, err error) []byte {
	a.control.refused.Add(1)
	return uapi.AppendError(out, uapi.Header{
		Op: h.Op, Version: uapi.Version, Seq: h.Seq, Errno: int32(errnoOf(err, syscall.EINVAL)),
	}, err.Error())
}

// errSilent is a connection that was closed before it said anything, as a probe of the socket's.
var errSilent = errors.New("closed without a hello")

// greet answers the program's hello and opens what a program has: doorbells,
// async pipe, eventfds. An error was told to the program, if it could be.
func (p *program) greet() error {
	if err := p.conn.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return err
	}
	buf := make([]byte, uapi.MaxRequest)
	n, fds, err := p.conn.Recv(buf)
	shm.CloseFDs(fds)
	if errors.Is(err, io.EOF) || err != nil && p.exited.Load() {
		return errSilent
	}
	if err != nil {
		return fmt.Errorf("no hello: %w", err)
	}
	if err := p.conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	p.a.control.requests.Add(1)
	h, m, err := decodeHello(buf[:n])
	var asyncRead int
	if err == nil {
		p.name = m.Program
		asyncRead, err = p.open()
	}
	if err != nil {
		_ = p.conn.Send(p.a.appendRefusal(nil, h, err), nil) // the program may be gone
		return err
	}
	defer shm.CloseFDs([]int{asyncRead})
	out := []int{p.a.page.FD(), p.doorbell.FD(), asyncRead}
	for _, e := range p.eventfds {
		out = append(out, e.FD())
	}
	return p.conn.Send(uapi.AppendMessage(nil, uapi.Header{Op: h.Op, Version: uapi.Version, Seq: h.Seq}, p.a.hello()), out)
}

func decodeHello(msg []byte) (uapi.Header, *uapi.HelloRequest, error) {
	var m uapi.HelloRequest
	h, body, err := uapi.DecodeHeader(msg)
	switch {
	case err != nil:
		return h, nil, &Error{Errno: syscall.EINVAL, Text: err.Error()}
	case h.Op != uapi.OpHello:
		return h, nil, refuse(syscall.EINVAL, "%v: the first request must be hello", h.Op)
	}
	if err := m.Decode(body); err != nil {
		return h, nil, &Error{Errno: syscall.EINVAL, Text: err.Error()}
	}
	if m.Version != uapi.Version {
		return h, nil, errVersion(m.Version)
	}
	if h.Version != uapi.Version {
		return h, nil, errVersion(h.Version)
	}
	return h, &m, nil
}

func (a *Adapter) hello() *uapi.HelloReply {
	l := &a.cfg.Limits
	return &uapi.HelloReply{
		Version: uapi.Version, Workers: uint32(len(a.workers)), PID: uint32(os.Getpid()), Name: a.cfg.Name,
		Limits: uapi.Limits{
			MaxSendWR: l.MaxSendWR, MaxRecvWR: l.MaxRecvWR, MaxSGE: l.MaxSGE, MaxInline: l.MaxInline,
			MaxCQE: l.MaxCQE, MaxRDAtomic: uint32(l.MaxRDAtomic),
		},
	}
}

// open makes the program's doorbell segment, eventfds and async pipe, and
// shows them to every worker. What it made before an error goes with release.
// asyncRead is the pipe's reading end, for the program.
func (p *program) open() (asyncRead int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doorbell, err = shm.Create(fmt.Sprintf("softroce-%d-doorbells", p.pid), uapi.DoorbellSize(len(p.a.workers)))
	if err != nil {
		return -1, refuse(errnoOf(err, syscall.ENOMEM), "doorbell segment: %v", err)
	}
	for i, w := range p.a.workers {
		if err := p.link(i, w); err != nil {
			return -1, refuse(errnoOf(err, syscall.ENOMEM), "doorbells of worker %d: %v", i, err)
		}
	}
	p.async, asyncRead, err = shm.NewRecordPipe()
	if err != nil {
		return -1, refuse(errnoOf(err, syscall.ENOMEM), "async event pipe: %v", err)
	}
	return asyncRead, nil
}

// link shows the program to one worker.
func (p *program) link(i int, w *worker) error {
	bell, err := uapi.NewAdapterDoorbell(p.doorbell, i)
	if err != nil {
		return err
	}
	event, err := shm.NewDoorbell()
	if err != nil {
		return err
	}
	p.eventfds = append(p.eventfds, event)
	l := &programLink{doorbell: bell, slab: wq.NewSlab(slabLimit), eventfd: event, owner: p}
	if !w.do(func() { err = w.addProgram(l) }) {
		return p.a.errStopped()
	}
	if err != nil {
		return err
	}
	p.links = append(p.links, l)
	return nil
}

// sendRefusal tells a connection that is not a program yet why it will not be
// one: its hello is awaited for the reply's number.
func (a *Adapter) sendRefusal(c *shm.Conn, cause error) {
	defer a.refusing.Add(-1)
	if a.refusing.Add(1) > maxRefusing {
		return // they wait for a hello, with a descriptor each
	}
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return
	}
	buf := make([]byte, uapi.MaxRequest)
	n, fds, err := c.Recv(buf)
	shm.CloseFDs(fds)
	if err != nil {
		return
	}
	h, _, err := uapi.DecodeHeader(buf[:n])
	if err != nil && !errors.Is(err, uapi.ErrMalformed) {
		return
	}
	_ = c.Send(a.appendRefusal(nil, h, cause), nil) // the program may be gone
}

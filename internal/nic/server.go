package nic

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/shm/foreign"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
)

// Our own tuning of the control plane.
const (
	// helloTimeout is how long a connection may take to say hello.
	helloTimeout = 10 * time.Second
	// acceptPause is the wait after a failed accept (out of descriptors).
	acceptPause = 100 * time.Millisecond
	// clientFDs is how many descriptors a client's message may carry: one is
	// of use, a few more are refused by name instead of as a hang-up.
	clientFDs = 4
	// maxRefusing is how many connections are told at a time why they are
	// refused; more are closed without a word.
	maxRefusing = 64
	// logBurst is how many lines of one kind programs cause in a second.
	logBurst = 20
)

// Serve accepts programs on l until l or the adapter is closed, which is no
// error. It closes l.
func (a *Adapter) Serve(l *shm.Listener) error {
	a.mu.Lock()
	if a.closing {
		a.mu.Unlock()
		return l.Close()
	}
	a.listeners[l] = struct{}{}
	a.serving.Add(1)
	a.mu.Unlock()
	defer a.serving.Done()
	defer func() {
		a.mu.Lock()
		delete(a.listeners, l)
		a.mu.Unlock()
		_ = l.Close() // may be closed already
	}()
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			go a.ServeConn(c)
		case errors.Is(err, net.ErrClosed):
			return nil
		case !transientAccept(err):
			return fmt.Errorf("nic: serve %s: %w", l.Path(), err)
		default:
			a.log.Error("accept failed, trying again", keyAdapter, a.cfg.Name, keySocket, l.Path(), keyErr, err)
			time.Sleep(acceptPause)
		}
	}
}

// transientAccept says whether a later accept may succeed.
func transientAccept(err error) bool {
	for _, e := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.ECONNABORTED, syscall.EINTR, syscall.EPERM,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// ServeConn serves one program over c and returns when the program is gone
// and everything it held is released. It closes c.
func (a *Adapter) ServeConn(c *shm.Conn) {
	if !a.admit(c) {
		_ = c.Close()
		return
	}
	defer a.leave(c)
	p, err := a.identify(c)
	if err != nil {
		a.logRefused("connection refused", 0, err)
		a.sendRefusal(c, err)
		return
	}
	defer p.release()
	defer p.watch()()
	if err := p.greet(); err != nil {
		if errors.Is(err, errSilent) {
			a.log.Debug("a connection that said nothing", keyAdapter, a.cfg.Name, keyPID, p.pid, keyErr, err)
			return
		}
		a.logRefused("program refused", p.pid, err)
		return
	}
	a.control.programs.Add(1)
	a.log.Debug("connection", keyAdapter, a.cfg.Name, keyPID, p.pid, keyUID, p.uid)
	why := p.serve()
	a.control.deaths.Add(1)
	if !p.announced {
		a.log.Debug("connection gone", keyAdapter, a.cfg.Name, keyPID, p.pid, keyUID, p.uid, keyWhy, why)
	} else if n, ok := a.allowLog(&a.goingLog); ok {
		a.log.Info("program gone", keyAdapter, a.cfg.Name, keyPID, p.pid, keyUID, p.uid, keyWhy, why, keySuppressed, n)
	}
}

// announce logs a program that begins to use the adapter, with its first protection domain: tools that only look at it come and go
// without a line.
func (p *program) announce() {
	if p.announced {
		return
	}
	p.announced = true
	if n, ok := p.a.allowLog(&p.a.comingLog); ok {
		p.a.log.Info("program connected", keyAdapter, p.a.cfg.Name, keyPID, p.pid, keyUID, p.uid, keySuppressed, n)
	}
}

// allowLog bounds the lines that programs cause: whoever may connect must not
// be able to fill the log.
func (a *Adapter) allowLog(r *rateLimit) (suppressed uint64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return r.allowSome(time.Now(), logBurst)
}

func (a *Adapter) logRefused(what string, pid int, err error) {
	if n, ok := a.allowLog(&a.refusedLog); ok {
		a.log.Warn(what, keyAdapter, a.cfg.Name, keyPID, pid, keyErr, err, keySuppressed, n)
	}
}

// admit registers a connection, unless the adapter is closing.
func (a *Adapter) admit(c *shm.Conn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closing {
		return false
	}
	a.conns[c] = struct{}{}
	a.serving.Add(1)
	return true
}

func (a *Adapter) leave(c *shm.Conn) {
	_ = c.Close() // may be closed already
	a.mu.Lock()
	delete(a.conns, c)
	a.mu.Unlock()
	a.serving.Done()
}

// identify asks the kernel who is at the other end and opens its account.
func (a *Adapter) identify(c *shm.Conn) (*program, error) {
	c.SetMaxFDs(clientFDs)
	cred, err := c.PeerCred()
	if err != nil {
		return nil, err
	}
	pidfd, err := c.PeerPidfd()
	if err != nil && !errors.Is(err, shm.ErrPeerHidden) {
		return nil, err
	}
	account, err := a.ledger.open(cred.UID)
	if err != nil {
		if pidfd != nil {
			_ = pidfd.Close()
		}
		return nil, err
	}
	p := &program{
		a: a, conn: c, pid: cred.PID, uid: cred.UID, cred: cred, pidfd: pidfd,
		process: foreign.NewProcess(cred.PID, pidfd), account: account, since: time.Now(),
		mappings: make(map[fileID]*mapping), asyncSent: make(map[element]uint32), byQPN: make(map[bth.QPN]*qpObject),
	}
	p.rings = newCarver(account, fmt.Sprintf("softroce-%d", cred.PID))
	a.mu.Lock()
	a.last++
	p.number = a.last
	a.programs[p] = struct{}{}
	a.mu.Unlock()
	return p, nil
}

// watch hangs up when the program exits, even if a forked child holds its
// socket open. The function it returns ends the watch and waits for it.
func (p *program) watch() (stop func()) {
	if p.pidfd == nil {
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if p.pidfd.Wait() == nil {
			p.process.Revoke()
			p.exited.Store(true)
			_ = p.conn.Close()
		}
	}()
	return func() {
		_ = p.pidfd.Close()
		<-done
	}
}

// serve answers the program's requests until it is gone, and says why it is.
func (p *program) serve() string {
	buf := make([]byte, uapi.MaxRequest)
	var out []byte
	for {
		n, fds, err := p.conn.Recv(buf)
		if err == nil {
			var r reply
			out, r = p.answer(out[:0], buf[:n], fds)
			err = p.conn.Send(out, r.fds)
			shm.CloseFDs(r.closeAfter)
		}
		switch {
		case err == nil:
		case p.exited.Load():
			return "the process exited"
		case errors.Is(err, io.EOF), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET):
			return "hang-up"
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrClosed):
			return "adapter closing"
		default:
			p.a.control.badMessages.Add(1)
			return err.Error()
		}
	}
}

package rping

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/softroce/softroce/pkg/rdmacm"
	"github.com/softroce/softroce/pkg/verbs"
)

// The requests, by their ID.
const (
	recvID = iota
	sendID
	readID
	writeID
	numIDs
)

var idNames = [numIDs]string{"receive", "send", "RDMA READ", "RDMA WRITE"}

const (
	depth = 16 // of the queues
	// hangingUp is how long after flushed requests the peer's hang-up may come.
	hangingUp = 2 * time.Second
)

// errHungUp is why a session ends whose peer has hung up.
var errHungUp = errors.New("the peer hung up")

// session is what one side of a connection has: its queues, the buffers that the
// peer reads and writes, and the messages about them.
type session struct {
	cfg  *Config
	dev  *verbs.Device
	pd   *verbs.PD
	ch   *verbs.CompChannel
	cq   *verbs.CQ
	data *verbs.MR // source, then sink: the peer may read and write it
	msgs *verbs.MR // what comes, then what is sent
	conn *rdmacm.Conn

	ctx    context.Context // ends with the connection
	cancel context.CancelCauseFunc
	have   [numIDs]int // completions nobody waited for yet
	peer   info        // what came last
}

// newSession makes what can be made before the connection is. What was made is to
// be closed also after an error.
func newSession(dev *verbs.Device, cfg *Config) (s *session, err error) {
	s = &session{cfg: cfg, dev: dev}
	if s.pd, err = dev.AllocPD(); err != nil {
		return s, err
	}
	if s.ch, err = dev.CreateCompChannel(); err != nil {
		return s, err
	}
	if s.cq, err = dev.CreateCQ(2*depth, s.ch, 0); err != nil {
		return s, err
	}
	rights := verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite
	if s.data, err = s.pd.AllocMR(2*cfg.Size, rights); err != nil {
		return s, err
	}
	s.msgs, err = s.pd.AllocMR(2*infoSize, verbs.AccessLocalWrite)
	return s, err
}

// config is how the connection is to be made.
func (s *session) config() *rdmacm.Config {
	param := rdmacm.DefaultConnParam()
	param.ResponderResources, param.InitiatorDepth = 1, 1
	return &rdmacm.Config{
		PD: s.pd,
		QP: verbs.QPInitAttr{
			Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq,
			Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1},
		},
		Param:   &param,
		Prepare: func(id *rdmacm.ID) error { return s.receive(id.QP()) },
	}
}

// start watches over the connection, whose end is then the session's.
func (s *session) start(ctx context.Context, conn *rdmacm.Conn) {
	s.conn = conn
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	go func() {
		select {
		case <-conn.Done():
			select {
			case <-s.dev.Done():
				s.cancel(verbs.ErrDeviceDead)
			default:
				s.cancel(errHungUp)
			}
		case <-s.ctx.Done():
		}
	}()
	if s.cfg.Connected != nil {
		s.cfg.Connected(conn.LocalAddr(), conn.PeerAddr())
	}
}

// close gives everything back; the adapter does what it cannot.
func (s *session) close() {
	if s.conn != nil {
		s.cancel(context.Canceled)
		_ = s.conn.Disconnect() // the peer may have been faster
		_ = s.conn.Close()
	}
	for _, mr := range []*verbs.MR{s.msgs, s.data} {
		if mr != nil {
			_ = mr.Dereg()
		}
	}
	if s.cq != nil {
		_ = s.cq.Destroy()
	}
	if s.ch != nil {
		_ = s.ch.Destroy()
	}
	if s.pd != nil {
		_ = s.pd.Dealloc()
	}
}

func (s *session) source() []byte { return s.data.Bytes()[:s.cfg.Size] }
func (s *session) sink() []byte   { return s.data.Bytes()[s.cfg.Size:] }

func (s *session) receive(qp *verbs.QP) error {
	_, err := qp.PostRecv(verbs.RecvWR{WRID: recvID, SGList: []verbs.SGE{s.msgs.SGE(0, infoSize)}})
	return err
}

// send sends a message and waits until it is through.
func (s *session) send(i info, what string) error {
	s.debug("send: " + what)
	i.put(s.msgs.Bytes()[infoSize:])
	return s.request(verbs.SendWR{WRID: sendID, Opcode: verbs.WRSend, SGList: []verbs.SGE{s.msgs.SGE(infoSize, infoSize)}})
}

// request posts a request and waits for its completion.
func (s *session) request(wr verbs.SendWR) error {
	wr.Flags = verbs.SendSignaled
	if _, err := s.conn.QP().PostSend(wr); err != nil {
		if s.ctx.Err() != nil {
			err = context.Cause(s.ctx)
		}
		return err
	}
	return s.await(int(wr.WRID))
}

// await waits for a completion of one kind; those of the others are kept.
func (s *session) await(id int) error {
	for s.have[id] == 0 {
		var wcs [4]verbs.WC
		n, err := s.poll(wcs[:])
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			if err := s.completed(&wcs[i]); err != nil {
				return err
			}
		}
	}
	s.have[id]--
	return nil
}

// poll sleeps until there are completions.
func (s *session) poll(wcs []verbs.WC) (int, error) {
	for armed := false; ; {
		n, err := s.cq.Poll(wcs)
		if n > 0 || err != nil {
			return n, err
		}
		if !armed {
			if err := s.cq.ReqNotify(false); err != nil {
				return 0, err
			}
			armed = true
			continue
		}
		if _, err := s.ch.Get(s.ctx); err != nil {
			if s.ctx.Err() != nil {
				err = context.Cause(s.ctx)
			}
			return 0, err
		}
		s.cq.AckEvents(1)
		armed = false
	}
}

// completed counts a completion, takes the message that came, and posts the next
// receive.
func (s *session) completed(wc *verbs.WC) error {
	if wc.WRID >= numIDs {
		return fmt.Errorf("a completion is of request %d, which is none of ours", wc.WRID)
	}
	if wc.Status != verbs.WCSuccess {
		return s.failed(wc)
	}
	s.have[wc.WRID]++
	if wc.WRID != recvID {
		return nil
	}
	if wc.ByteLen != infoSize {
		return fmt.Errorf("a message of %d bytes came, not %d: the peer is no rping", wc.ByteLen, infoSize)
	}
	s.peer = parseInfo(s.msgs.Bytes()[:infoSize])
	return s.receive(s.conn.QP())
}

// ErrCompletion is wrapped by the error of a completion that was no success.
var ErrCompletion = errors.New("failed")

// failed explains a completion that is no success. Flushed requests are how a
// connection's end begins, of which the event comes a little later.
func (s *session) failed(wc *verbs.WC) error {
	if wc.Status == verbs.WCWRFlushErr {
		t := time.NewTimer(hangingUp)
		defer t.Stop()
		select {
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		case <-s.dev.Done():
			return verbs.ErrDeviceDead
		case <-t.C:
		}
	}
	return fmt.Errorf("%s %w: %v: %s", idNames[wc.WRID], ErrCompletion, wc.Status, wc.Status.Explain())
}

func (s *session) debug(step string) {
	if s.cfg.Debug != nil {
		s.cfg.Debug(step)
	}
}

func (s *session) ping(b []byte) {
	if s.cfg.Ping != nil {
		s.cfg.Ping(text(b))
	}
}

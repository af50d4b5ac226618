package rdmanet

import (
	"fmt"
	"net"
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// Config says how large a connection is, and how patient. The zero value is usable.
type Config struct {
	// RecvBuffer is how many bytes wait for Read at most; SendBuffer how many of
	// Write are on their way. 4 KiB to 512 MiB; 0: 4 MiB and 2 MiB.
	RecvBuffer, SendBuffer int
	// Receives is how many messages of the peer wait at most, 8 to 1,023; 0: 128.
	Receives int
	// KeepAlive is after how long without a sign of life from the peer's adapter it is
	// asked for one, if somebody waits in Read; 0: 15 seconds, below: never. A peer
	// whose host is gone ends the Read with ETIMEDOUT some seconds later, when the
	// adapter's retries are used up.
	KeepAlive time.Duration
}

// Bounds and defaults; our own tuning.
const (
	minBuffer, maxBuffer                      = 4 << 10, 512 << 20
	defaultRecvBuffer, defaultSendBuffer      = 4 << 20, 2 << 20
	minReceives, maxReceives, defaultReceives = 8, maxGrant, 128
	// sends is the length of the send queue.
	sends = 128
	// chunk is the most bytes of a message: the peer reads one while the next is
	// copied and sent. Each costs a send of its own for its first packet.
	chunk = 512 << 10
)

func (c *Config) withDefaults() (Config, error) {
	d := Config{}
	if c != nil {
		d = *c
	}
	if d.KeepAlive == 0 {
		d.KeepAlive = usualKeepAlive
	}
	for _, v := range []struct {
		what          string
		field         *int
		min, max, def int
	}{
		{"receive buffer", &d.RecvBuffer, minBuffer, maxBuffer, defaultRecvBuffer},
		{"send buffer", &d.SendBuffer, minBuffer, maxBuffer, defaultSendBuffer},
		{"receives", &d.Receives, minReceives, maxReceives, defaultReceives},
	} {
		if *v.field == 0 {
			*v.field = v.def
		}
		if *v.field < v.min || *v.field > v.max {
			return d, fmt.Errorf("rdmanet: %s of %d, not in %d to %d", v.what, *v.field, v.min, v.max)
		}
	}
	return d, nil
}

// Endpoint is one end of a connection before it is up: memory and queues. It is
// for programs that connect queue pairs in a way of their own; Dial and Listen
// have theirs.
type Endpoint struct {
	conf           Config
	dev            *verbs.Device
	pd             *verbs.PD
	ch             *verbs.CompChannel
	cq             *verbs.CQ
	recvMR, sendMR *verbs.MR
	directMR       *verbs.MR // ReadFrom's, when it was called
	qp             *verbs.QP
	ownQP          bool // made by NewEndpoint
}

// NewEndpoint makes an endpoint with an RC queue pair in RESET. conf may be nil.
func NewEndpoint(dev *verbs.Device, conf *Config) (*Endpoint, error) {
	e, err := newEndpoint(dev, conf)
	if err != nil {
		return nil, err
	}
	init := e.qpInit()
	qp, err := e.pd.CreateQP(&init)
	if err != nil {
		_ = e.Close() // the first error is told
		return nil, err
	}
	e.qp, e.ownQP = qp, true
	return e, nil
}

// newEndpoint makes one without a queue pair.
func newEndpoint(dev *verbs.Device, conf *Config) (*Endpoint, error) {
	c, err := conf.withDefaults()
	if err != nil {
		return nil, err
	}
	e := &Endpoint{conf: c, dev: dev}
	if err := e.make(); err != nil {
		_ = e.Close() // the first error is told
		return nil, err
	}
	return e, nil
}

func (e *Endpoint) make() (err error) {
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return err
	}
	if e.ch, err = e.dev.CreateCompChannel(); err != nil {
		return err
	}
	if e.cq, err = e.dev.CreateCQ(e.conf.Receives+sends, e.ch, 0); err != nil {
		return err
	}
	if e.recvMR, err = e.pd.AllocMR(e.conf.RecvBuffer, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
		return err
	}
	e.sendMR, err = e.pd.AllocMR(e.conf.SendBuffer, verbs.AccessLocalWrite)
	return err
}

func (e *Endpoint) qpInit() verbs.QPInitAttr {
	return verbs.QPInitAttr{
		Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq,
		Cap: verbs.QPCap{MaxSendWR: sends, MaxRecvWR: uint32(e.conf.Receives), MaxSendSGE: 1, MaxRecvSGE: 1},
	}
}

// QP is the endpoint's queue pair. The program connects it; peers need the right
// to write.
func (e *Endpoint) QP() *verbs.QP { return e.qp }

// Hello is what the peer's Start takes, exchanged in a way of the program's own.
func (e *Endpoint) Hello() []byte {
	h := hello{
		receives: uint16(e.conf.Receives), rkey: e.recvMR.RKey(), size: uint32(e.conf.RecvBuffer), addr: e.recvMR.Addr(),
	}
	return h.encode()
}

// PostReceives readies the queue pair, in INIT or later, for the peer's messages:
// before the peer's Start.
func (e *Endpoint) PostReceives() error {
	_, err := e.qp.PostRecv(make([]verbs.RecvWR, e.conf.Receives)...)
	return err
}

// Start makes the connection of an endpoint whose queue pair is in RTS, with the
// peer's Hello. The addresses are what the connection tells; nil: the zero Addr.
// The connection then owns the endpoint. Who closes second, and does not learn that
// the first one's queue pair is gone, waits a second at most for it to answer.
func (e *Endpoint) Start(peerHello []byte, local, remote net.Addr) (*Conn, error) {
	return e.start(peerHello, local, remote, nil)
}

// Close destroys an endpoint that was not started, or whose connection is closed.
func (e *Endpoint) Close() error {
	err := e.closeQueues()
	if e := e.freeMemory(); err == nil {
		err = e
	}
	return err
}

// closeQueues ends whatever uses the memory.
func (e *Endpoint) closeQueues() error {
	var all firstError
	if e.ownQP {
		all.note(e.qp.Destroy())
	}
	if e.cq != nil {
		all.note(e.cq.Destroy())
	}
	if e.ch != nil {
		all.note(e.ch.Destroy())
	}
	return all.err
}

// freeMemory ends the regions, which nobody uses any more.
func (e *Endpoint) freeMemory() error {
	var all firstError
	for _, m := range []*verbs.MR{e.recvMR, e.sendMR, e.directMR} {
		if m != nil {
			all.note(m.Dereg())
		}
	}
	if e.pd != nil {
		all.note(e.pd.Dealloc())
	}
	return all.err
}

type firstError struct{ err error }

func (f *firstError) note(err error) {
	if f.err == nil {
		f.err = err
	}
}

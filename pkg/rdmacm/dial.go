package rdmacm

import (
	"context"
	"net/netip"
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// Config says what connection to make. The zero value is usable but for QP.Cap.
type Config struct {
	// Local is the own address of Dial; not valid: the host's routing table chooses.
	Local netip.AddrPort
	// PD and the queues of QP may be nil, see [ID.CreateQP].
	PD *verbs.PD
	QP verbs.QPInitAttr
	// Param are the connection's parameters; nil: DefaultConnParam.
	Param *ConnParam
	// Prepare, unless nil, is called when the queue pair is made and before the
	// peer can send: receives are posted there.
	Prepare func(*ID) error
	// Options, unless nil, is called with the new identifier of Dial, for SetTOS and
	// its like.
	Options func(*ID) error
	// ResolveTimeout is how long Dial waits for an address; 0: 2 seconds.
	ResolveTimeout time.Duration
}

const defaultResolveTimeout = 2 * time.Second

// Dial connects to a listener. It ends with ctx's error, a RejectError, or a
// verbs.Error: ETIMEDOUT when nobody answers, EHOSTUNREACH or ENETUNREACH when
// there is no way. A peer's connection manager that does not answer is asked for
// more than a minute: give ctx an end. conf may not be nil, as a queue pair needs
// sizes. Each connection of Dial's has an event channel of its own until it is
// closed, of which the adapter's limit for a program (1,024 by default) bounds the
// number; those of a Listener share one.
func Dial(ctx context.Context, dev *verbs.Device, to netip.AddrPort, conf *Config) (*Conn, error) {
	h, err := newHub(dev)
	if err != nil {
		return nil, err
	}
	b := newMailbox(h)
	id, e, err := dial(ctx, b, PSTCP, to, conf)
	if err != nil {
		h.unuse()
		return nil, err
	}
	return newConn(h, b, id, e), nil
}

// dial takes a new identifier to ESTABLISHED, or destroys it.
func dial(ctx context.Context, b *mailbox, space PortSpace, to netip.AddrPort, conf *Config) (*ID, *Event, error) {
	id, err := b.hub.ch.CreateID(space)
	if err != nil {
		return nil, nil, err
	}
	id.box.Store(b)
	e, err := connect(ctx, b, id, to, conf)
	if err != nil {
		b.close()
		_ = id.Destroy() // the first error is told
		return nil, nil, err
	}
	return id, e, nil
}

func connect(ctx context.Context, b *mailbox, id *ID, to netip.AddrPort, conf *Config) (*Event, error) {
	if conf.Options != nil {
		if err := conf.Options(id); err != nil {
			return nil, err
		}
	}
	timeout := conf.ResolveTimeout
	if timeout == 0 {
		timeout = defaultResolveTimeout
	}
	if err := id.ResolveAddr(conf.Local, to, timeout); err != nil {
		return nil, err
	}
	if _, err := b.await(ctx, EventAddrResolved); err != nil {
		return nil, err
	}
	if err := id.ResolveRoute(timeout); err != nil {
		return nil, err
	}
	if _, err := b.await(ctx, EventRouteResolved); err != nil {
		return nil, err
	}
	if id.space != PSUDP {
		if err := prepare(id, conf); err != nil {
			return nil, err
		}
	}
	if err := id.Connect(conf.Param); err != nil {
		return nil, err
	}
	return b.await(ctx, EventEstablished)
}

// prepare makes the queue pair, and lets the program post receives.
func prepare(id *ID, conf *Config) error {
	if err := id.CreateQP(conf.PD, &conf.QP); err != nil {
		return err
	}
	if conf.Prepare == nil {
		return nil
	}
	return conf.Prepare(id)
}

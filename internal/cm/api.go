package cm

import (
	"net/netip"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// ListenerID names a listener; 0 is none.
type ListenerID uint32

// ConnectArgs are the arguments of [Machine.Connect].
type ConnectArgs struct {
	Type    qpstate.Type // RC, UC; UD: SIDR
	Service ServiceID
	// CMA is the header before the private data, with the ends' addresses. Without
	// a valid address there is none (AF_IB).
	CMA  CMA
	Path Path
	MTU  bth.MTU // not of UD
	// LifeTime is the path's packet life time, 4.096 µs × 2^n, from which the ACK
	// timeout and the connection manager's own times follow. 0 is DefaultLifeTime.
	LifeTime uint8
	// Param.QPN is the own queue pair. Not of UD.
	Param Param
	// Private is at most PrivateREQ or PrivateSIDRREQ bytes, CMALen less with a
	// CMA header.
	Private []byte
}

// ListenArgs are the arguments of [Machine.Listen].
type ListenArgs struct {
	Type    qpstate.Type
	Service ServiceID
	// Addr is the address that requests must be for. The unspecified IPv4 address
	// takes all of IPv4; the unspecified IPv6 address takes all, with Only just
	// IPv6. The zero Addr takes every request, also one without a CMA header.
	Addr netip.Addr
	Only bool
	// Backlog is how many requests wait at once for the program to take them
	// (Taken); 0, or above DefaultBacklog: DefaultBacklog.
	Backlog int
}

// New makes a machine without ids.
func New(cfg Config) (*Machine, error) {
	d, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return newMachine(d), nil
}

// HandleMAD takes a MAD that came to QP 1 with the right Q_Key and P_Key. from
// is the way back to its sender; Local is the address that it came to. The
// machine keeps nothing of mad.
func (m *Machine) HandleMAD(now time.Time, from Path, mad []byte) Verdict {
	return m.handleMAD(now, from, mad)
}

// HandleTimeout does what is due at now: messages are sent again, and waits end.
func (m *Machine) HandleTimeout(now time.Time) { m.handleTimeout(now) }

// NextTimeout is when HandleTimeout is to be called next, zero when nothing
// waits for a time.
func (m *Machine) NextTimeout() time.Time { return m.timers.next() }

// PollSend gives the next MAD to send, and where. mad is valid until the next
// call of the machine. ok is false when there is none.
func (m *Machine) PollSend() (to Path, mad []byte, ok bool) { return m.sends.poll() }

// PollEvent gives the oldest event that was not polled, false when there is
// none. An id has a handful of events in its life, so the queue is bounded by
// the ids.
func (m *Machine) PollEvent() (Event, bool) { return m.pollEvent() }

// Listen takes requests for a service id. The listener lives until Unlisten.
//
// Errors: ErrInUse, ErrFull, ErrInvalid.
func (m *Machine) Listen(a ListenArgs) (ListenerID, error) { return m.listeners.add(a) }

// Unlisten ends a listener, and refuses the requests that the program did not
// take.
func (m *Machine) Unlisten(now time.Time, l ListenerID) error { return m.unlisten(now, l) }

// Taken says that the program has the ConnectRequest of id: it counts no longer
// in its listener's backlog. Accept, Reject and Destroy imply it.
func (m *Machine) Taken(id CommID) error { return m.taken(id) }

// Connect asks for a connection, or with UD for a queue pair. What becomes of
// it is an event: ConnectResponse (UD: Established), Rejected or Unreachable.
//
// Errors: ErrFull, ErrPrivate, ErrInvalid.
func (m *Machine) Connect(now time.Time, a ConnectArgs) (CommID, error) { return m.connect(now, a) }

// Accept grants the request of id. Of a connection the own queue pair must be in
// RTS already (QPAttr): the peer may send as soon as it has the answer; the
// event is Established. Of UD, Param has the queue pair and its queue key, and
// no event follows.
//
// Errors: ErrUnknownID, ErrState, ErrPrivate (PrivateREP, PrivateSIDRREP).
func (m *Machine) Accept(now time.Time, id CommID, p Param, private []byte) error {
	return m.accept(now, id, p, private)
}

// Reject refuses the request of id, or on the active side the answer that
// ConnectResponse told of. Programs give RejConsumer. The id stays until Destroy.
//
// Errors: ErrUnknownID, ErrState, ErrPrivate (PrivateREJ, of UD PrivateSIDRREP).
func (m *Machine) Reject(now time.Time, id CommID, reason RejectReason, private []byte) error {
	return m.reject(now, id, reason, private)
}

// Establish says on the active side, after ConnectResponse, that the own queue
// pair is in RTS: the peer is told, and the connection is up. No event follows.
//
// Errors: ErrUnknownID, ErrState, ErrPrivate (PrivateRTU).
func (m *Machine) Establish(now time.Time, id CommID, private []byte) error {
	return m.establish(now, id, private)
}

// CommEstablished says on the passive side that the queue pair got a packet of
// the peer (the asynchronous event COMM_EST): as good as the peer's word, which
// may be lost. It is no error in other states.
func (m *Machine) CommEstablished(now time.Time, id CommID) error { return m.commEstablished(now, id) }

// Disconnect begins the end of a connection, or agrees to the peer's after
// Disconnected. The own queue pair is to be in ERR. It is no error when the
// connection has ended already.
//
// Errors: ErrUnknownID, ErrState (it was never up), ErrPrivate (PrivateDREQ).
func (m *Machine) Disconnect(now time.Time, id CommID, private []byte) error {
	return m.disconnect(now, id, private)
}

// Destroy ends the program's use of id, whatever its state: a peer that waits is
// refused, a connection that is up is disconnected. No event of it follows. The
// machine keeps the number until the network is free of its messages.
//
// Errors: ErrUnknownID.
func (m *Machine) Destroy(now time.Time, id CommID) error { return m.destroy(now, id) }

// QPAttr says what the queue pair of id is to be modified with to reach INIT, RTR
// or RTS. On the passive side it answers from the ConnectRequest on, with p as
// Accept will have it; on the active side from the ConnectResponse on, and p
// is not looked at.
//
// Errors: ErrUnknownID, ErrState, ErrInvalid.
func (m *Machine) QPAttr(id CommID, to qpstate.State, p Param) (qpstate.Attr, qpstate.Mask, error) {
	return m.qpAttr(id, to, p)
}

// Info says what an id is doing, false when it is unknown or destroyed.
func (m *Machine) Info(id CommID) (Info, bool) { return m.info(id) }

// Counters returns the counters.
func (m *Machine) Counters() Counters { return m.count() }

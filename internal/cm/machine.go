package cm

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

// Machine is the connection manager of an adapter.
type Machine struct {
	cfg       Config
	timers    timers
	sends     sends
	events    queue[queued]
	listeners listeners

	conns   map[CommID]*conn     // every id
	remotes map[remoteKey]*conn  // by the peer's id: duplicates of a REQ
	qpns    map[qpnKey]*conn     // by the peer's queue pair: stale connections
	asked   map[requestKey]*conn // by the peer's request: duplicates of a SIDR_REQ

	lastID   CommID
	tidHigh  uint64 // upper half of own transaction ids, in place
	halfOpen int
	peerHalf map[bth.GID]int // of halfOpen, by the peer's address
	counters Counters
}

// remoteKey is a peer's connection as the peer calls it.
type remoteKey struct {
	guid uint64
	id   CommID
}

// qpnKey is a peer's queue pair.
type qpnKey struct {
	guid uint64
	qpn  bth.QPN
}

// requestKey is a peer's SIDR_REQ, which carries no GUID.
type requestKey struct {
	gid bth.GID
	id  CommID
}

// queued is an event that waits; it is dropped when the program destroys the id.
type queued struct {
	c  *conn
	ev Event
}

func newMachine(cfg Config) *Machine {
	m := &Machine{
		cfg:     cfg,
		conns:   make(map[CommID]*conn),
		remotes: make(map[remoteKey]*conn),
		qpns:    make(map[qpnKey]*conn),
		asked:   make(map[requestKey]*conn),

		peerHalf: make(map[bth.GID]int),
	}
	m.listeners.init(cfg.Limits.Listeners)
	m.sends.limit = cfg.Limits.Sends
	m.lastID = CommID(m.random("communication id", 0))
	m.tidHigh = uint64(m.random("transaction id", 0)) << 32
	return m
}

// random is a number that only the secret tells, the same for the same use.
func (m *Machine) random(use string, n uint32) uint32 {
	b := append(m.cfg.Secret[:len(m.cfg.Secret):len(m.cfg.Secret)], use...)
	sum := sha256.Sum256(binary.BigEndian.AppendUint32(b, n))
	return binary.BigEndian.Uint32(sum[:])
}

// newConn makes an id in the table; nil when the table is full.
func (m *Machine) newConn() *conn {
	if len(m.conns) >= m.cfg.Limits.Conns {
		return nil
	}
	for {
		m.lastID++
		if m.lastID != 0 && m.conns[m.lastID] == nil {
			break
		}
	}
	c := &conn{id: m.lastID, slot: noSlot}
	c.psn = bth.PSN(m.random("PSN", uint32(c.id))) & bth.PSNMask
	m.conns[c.id] = c
	return c
}

// own is the program's id, which must not be destroyed.
func (m *Machine) own(what string, id CommID) (*conn, error) {
	c := m.conns[id]
	if c == nil || c.destroyed {
		return nil, fmt.Errorf("%s %#08x: %w", what, uint32(id), ErrUnknownID)
	}
	return c, nil
}

// peer is the connection that a message is about: ours and the peer's id must
// fit, and the address that it came from. nil when there is none.
func (m *Machine) peer(from *Path, ours, theirs CommID) *conn {
	c := m.conns[ours]
	if c == nil || c.remote != theirs || !c.isFrom(from) {
		return nil
	}
	return c
}

// remember enters a connection in the tables of the peer's numbers.
func (m *Machine) remember(c *conn) {
	m.remotes[remoteKey{c.remoteGUID, c.remote}] = c
	m.qpns[qpnKey{c.remoteGUID, c.remoteQPN}] = c
}

// forgetQPN lets a peer use its queue pair again.
func (m *Machine) forgetQPN(c *conn) {
	if k := (qpnKey{c.remoteGUID, c.remoteQPN}); m.qpns[k] == c {
		delete(m.qpns, k)
	}
}

// forget takes a connection out of the tables of the peer's numbers.
func (m *Machine) forget(c *conn) {
	m.forgetQPN(c)
	if k := (remoteKey{c.remoteGUID, c.remote}); m.remotes[k] == c {
		delete(m.remotes, k)
	}
	if k := (requestKey{c.path.Remote, c.remote}); m.asked[k] == c {
		delete(m.asked, k)
	}
}

// setState is the only place where a state changes.
func (m *Machine) setState(c *conn, s State) {
	was := c.isHalfOpen()
	c.state = s
	switch now := c.isHalfOpen(); {
	case now && !was:
		m.halfOpen++
		m.peerHalf[c.path.Remote]++
	case was && !now:
		m.halfOpen--
		if m.peerHalf[c.path.Remote]--; m.peerHalf[c.path.Remote] == 0 {
			delete(m.peerHalf, c.path.Remote)
		}
	}
}

// crowded says whether a request for l has to wait in the network: the program, or
// this machine, has too many that are not established.
func (m *Machine) crowded(l *listener, from *Path) bool {
	return l.full() || m.halfOpen >= m.cfg.Limits.HalfOpen || m.peerHalf[from.Remote] >= m.cfg.Limits.PeerHalf
}

// becomeIdle ends a connection without time-wait.
func (m *Machine) becomeIdle(c *conn) {
	m.setState(c, Idle)
	m.timers.stop(c)
	m.forget(c)
	if c.destroyed {
		delete(m.conns, c.id)
	}
}

// becomeTimeWait ends a connection whose packets may still be in the network.
// The peer's queue pair may be used anew: the peer decides when.
func (m *Machine) becomeTimeWait(now time.Time, c *conn) {
	m.setState(c, TimeWait)
	m.forgetQPN(c)
	m.timers.set(c, now.Add(codeTime(clamp(c.ackTimeout, minTimeWait, maxTimeWait))))
}

// event queues an event of c, unless nobody is to know.
func (m *Machine) event(c *conn, ev Event) {
	if c.destroyed {
		return
	}
	ev.ID, ev.Type, ev.Service = c.id, c.typ, c.service
	ev.Local, ev.Remote = c.localAddr(), c.remoteAddr()
	m.events.push(queued{c, ev})
}

// pollEvent gives the oldest event of an id that lives.
func (m *Machine) pollEvent() (Event, bool) {
	for {
		q, ok := m.events.pop()
		if !ok {
			return Event{}, false
		}
		if !q.c.destroyed {
			return q.ev, true
		}
	}
}

func (m *Machine) info(id CommID) (Info, bool) {
	c := m.conns[id]
	if c == nil || c.destroyed {
		return Info{}, false
	}
	return Info{
		ID: c.id, RemoteID: c.remote, State: c.state, Active: c.active, Type: c.typ, Service: c.service,
		Local: c.localAddr(), Remote: c.remoteAddr(), Path: c.path,
		QPN: c.qpn, RemoteQPN: c.remoteQPN, Listener: c.listenerID,
	}, true
}

// IDs are all ids that are not destroyed, in order.
func (m *Machine) IDs() []CommID {
	ids := make([]CommID, 0, len(m.conns))
	for id, c := range m.conns {
		if !c.destroyed {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (m *Machine) count() Counters {
	n := m.counters
	n.SendsLost = m.sends.lost
	n.Conns, n.HalfOpen, n.Listeners = len(m.conns), m.halfOpen, m.listeners.count
	return n
}

package cm

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"
)

// sender is a message as a pointer to its type: calls through it stay direct.
type sender[T any] interface {
	*T
	Message
}

// build writes a MAD.
func build[T any, P sender[T]](mad *[MADLen]byte, tid uint64, msg P) {
	h := sendHeader(msg.Attr(), tid)
	h.Append(mad[:0])
	msg.Put((*Data)(mad[HeaderLen:]))
}

// reply sends a message once.
func reply[T any, P sender[T]](m *Machine, to *Path, tid uint64, msg P) {
	var mad [MADLen]byte
	build(&mad, tid, msg)
	m.push(to, &mad)
}

// push queues a MAD.
func (m *Machine) push(to *Path, mad *[MADLen]byte) {
	attr := AttrID(binary.BigEndian.Uint16(mad[16:]))
	if m.sends.push(to, mad) && attr >= AttrREQ && attr <= AttrAPR {
		m.counters.Sent[attr-AttrREQ]++
	}
}

// sendOut sends what build left in c.out.
func (m *Machine) sendOut(c *conn) { m.push(&c.path, &c.out) }

// await sends c.out, and again each time that no answer came within timeout, up
// to tries times more.
func (m *Machine) await(now time.Time, c *conn, tries int) {
	c.tries = tries
	m.sendOut(c)
	m.timers.set(c, now.Add(c.timeout))
}

// again sends c.out once more, false when there were enough tries.
func (m *Machine) again(now time.Time, c *conn) bool {
	if c.tries == 0 {
		return false
	}
	c.tries--
	m.counters.Resent++
	m.sendOut(c)
	m.timers.set(c, now.Add(c.timeout))
	return true
}

// sendREJ refuses a connection. info is the additional information.
func (m *Machine) sendREJ(c *conn, subject Subject, reason RejectReason, info, private []byte) {
	r := REJ{LocalID: c.id, RemoteID: c.remote, Subject: subject, Reason: reason, InfoLen: uint8(len(info))}
	copy(r.Info[:], info)
	copy(r.Private[:], private)
	reply(m, &c.path, c.tid, &r)
}

// sendTimeoutREJ tells the peer that this side waits no longer. The peer finds
// the connection by this side's GUID, since it may have answered nothing yet
// (IBTA Vol 1 §12.6.7.2, reason 4).
func (m *Machine) sendTimeoutREJ(c *conn) {
	var guid [8]byte
	binary.BigEndian.PutUint64(guid[:], m.cfg.GUID)
	m.sendREJ(c, SubjectOther, RejTimeout, guid[:], nil)
}

// sendMRA asks the peer for time.
func (m *Machine) sendMRA(c *conn, subject Subject) {
	reply(m, &c.path, c.tid, &MRA{LocalID: c.id, RemoteID: c.remote, Subject: subject, ServiceTimeout: serviceTimeout})
}

// sendDREP agrees to the end.
func (m *Machine) sendDREP(c *conn, tid uint64, private []byte) {
	d := DREP{LocalID: c.id, RemoteID: c.remote}
	copy(d.Private[:], private)
	reply(m, &c.path, tid, &d)
}

// checkPrivate judges the length of private data.
func checkPrivate(what string, private []byte, most int) error {
	if len(private) > most {
		return fmt.Errorf("%s: %d bytes of private data, at most %d: %w", what, len(private), most, ErrPrivate)
	}
	return nil
}

// wrongState is the error of a call that does not fit.
func (c *conn) wrongState(what string) error {
	return fmt.Errorf("%s %#08x in %v: %w", what, uint32(c.id), c.state, ErrState)
}

// sorted are the conns of a set in order of their ids.
func sorted(set map[*conn]struct{}) []*conn {
	return slices.SortedFunc(maps.Keys(set), func(a, b *conn) int { return cmp.Compare(a.id, b.id) })
}

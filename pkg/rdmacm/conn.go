package rdmacm

import (
	"net/netip"
	"sync"

	"github.com/softroce/softroce/pkg/verbs"
)

// Conn is a connection that is up: an identifier, its queue pair, and a watch
// over both.
type Conn struct {
	id      *ID
	hub     *hub
	box     *mailbox
	private []byte
	param   ConnParam

	done   chan struct{}
	end    sync.Once
	closed sync.Once
	err    error // of Close
}

func newConn(h *hub, b *mailbox, id *ID, e *Event) *Conn {
	c := &Conn{id: id, hub: h, box: b, private: e.Private, param: e.Conn, done: make(chan struct{})}
	b.onLate(c.late)
	return c
}

// late looks at the events of a connection that is up. It agrees to the peer's
// end at once, so that the peer need not wait.
func (c *Conn) late(e *Event) {
	switch e.Type {
	case EventDisconnected, EventDeviceRemoval:
		_ = c.id.Disconnect() // the connection has ended, whatever this says
		c.ended()
	case EventAddrResolved, EventAddrError, EventRouteResolved, EventRouteError, EventConnectRequest, EventConnectResponse,
		EventConnectError, EventUnreachable, EventRejected, EventEstablished, EventMulticastJoin, EventMulticastError,
		EventAddrChange, EventTimewaitExit:
	}
}

func (c *Conn) ended() { c.end.Do(func() { close(c.done) }) }

// ID is the connection's identifier. Its events are the connection's.
func (c *Conn) ID() *ID { return c.id }

// QP is the connection's queue pair, in RTS.
func (c *Conn) QP() *verbs.QP { return c.id.QP() }

// Private is the private data that the peer sent along, zero padded: of a dialed
// connection the answer's, of an accepted one the request's.
func (c *Conn) Private() []byte { return c.private }

// Param are the connection's parameters, as this side is to use them.
func (c *Conn) Param() ConnParam { return c.param }

// LocalAddr is the own address.
func (c *Conn) LocalAddr() netip.AddrPort { return c.id.LocalAddr() }

// PeerAddr is the peer's address.
func (c *Conn) PeerAddr() netip.AddrPort { return c.id.PeerAddr() }

// Done is closed when the connection has ended, by either side or with the
// adapter, which verbs.Device.Done tells then, too. Requests are flushed. At the
// peer's end they are so before Done is closed: this side agrees to it at once,
// whereby its queue pair goes to ERR, with requests in it whose answers may be on
// their way. Peers that both have work left tell one another when it is done, before
// either ends.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Disconnect ends the connection: requests are flushed, and the peer learns of
// it. Queue pair and identifier stay until Close.
func (c *Conn) Disconnect() error { return c.id.Disconnect() }

// Close ends the connection and destroys queue pair and identifier.
func (c *Conn) Close() error {
	c.closed.Do(func() {
		c.err = c.id.Destroy()
		c.box.close()
		c.ended()
		c.hub.unuse()
	})
	return c.err
}

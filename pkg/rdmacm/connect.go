package rdmacm

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/verbs"
)

// Bounds of private data in bytes: what Connect, Accept and Reject take, and
// what they take of UD.
const (
	MaxConnectPrivate   = cm.PrivateREQ - cm.CMALen
	MaxAcceptPrivate    = cm.PrivateREP
	MaxRejectPrivate    = cm.PrivateREJ
	MaxConnectUDPrivate = cm.PrivateSIDRREQ - cm.CMALen
	MaxAcceptUDPrivate  = cm.PrivateSIDRREP
)

// Connect asks the peer for a connection (rdma_connect), with UD for its queue
// pair. The event is ESTABLISHED, REJECTED, UNREACHABLE or CONNECT_ERROR; without
// an own queue pair CONNECT_RESPONSE in place of ESTABLISHED. nil is
// DefaultConnParam. EINVAL: too much private data, a depth above the adapter's,
// or the route is not resolved.
func (id *ID) Connect(p *ConnParam) error {
	const op = "connect"
	id.mu.Lock()
	defer id.mu.Unlock()
	conn, err := id.param(op, p, id.limit(MaxConnectPrivate, MaxConnectUDPrivate))
	if err != nil {
		return err
	}
	return id.call(op, uapi.OpConnectCM, &conn, 0)
}

// Accept grants the request of an identifier that came with CONNECT_REQUEST
// (rdma_accept). The own queue pair is taken to RTS before the peer is told; the
// event is ESTABLISHED, of UD none. nil is what the peer asked for. EINVAL as
// with Connect, and when the queue pair cannot be taken to RTS.
//
// After CONNECT_RESPONSE it is Establish.
func (id *ID) Accept(p *ConnParam) error {
	const op = "accept"
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.asked {
		return id.establish()
	}
	conn, err := id.param(op, p, id.limit(MaxAcceptPrivate, MaxAcceptUDPrivate))
	if err != nil {
		return err
	}
	if id.qp != nil && id.space != PSUDP {
		// The adapter's attributes are for what the peer asked for.
		if err := id.qpToRTR(conn.ResponderResources); err != nil {
			return err
		}
		if err := id.qpToRTS(conn.InitiatorDepth); err != nil {
			return err
		}
	}
	err = id.call(op, uapi.OpAcceptCM, &conn, 0)
	if err != nil {
		id.qpToErr()
	}
	return err
}

// Reject refuses the request of an identifier that came with CONNECT_REQUEST
// (rdma_reject), with RejectConsumer as the reason. The identifier is still to be
// destroyed.
func (id *ID) Reject(private []byte) error { return id.RejectReason(RejectConsumer, private) }

// RejectReason is Reject with another reason. It refuses an answer, too, that
// CONNECT_RESPONSE told of.
func (id *ID) RejectReason(reason RejectReason, private []byte) error {
	const op = "reject"
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := checkPrivate(op, private, id.limit(MaxRejectPrivate, MaxAcceptUDPrivate)); err != nil {
		return err
	}
	return id.call(op, uapi.OpRejectCM, &ConnParam{PrivateData: private}, uint32(reason))
}

// Establish says, after CONNECT_RESPONSE, that the program's queue pair is in
// RTS (rdma_establish). No event follows.
func (id *ID) Establish() error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.qp != nil {
		return invalid("establish", "the queue pair of CreateQP is made ready by the library")
	}
	return id.establish()
}

func (id *ID) establish() error {
	err := id.handleCall("establish", uapi.OpEstablishCM)
	id.asked = id.asked && err != nil
	return err
}

// Disconnect takes the own queue pair to ERR and ends the connection, or agrees
// to the peer's end (rdma_disconnect). The event is DISCONNECTED. EINVAL: it was
// never up.
func (id *ID) Disconnect() error {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.qpToErr()
	return id.handleCall("disconnect", uapi.OpDisconnectCM)
}

// Notify tells the connection manager of a queue pair's asynchronous event
// (rdma_notify): verbs.EventCommEst of a connection whose peer's last word was
// lost establishes it.
func (id *ID) Notify(ev verbs.EventType) error {
	return id.value("notify", uapi.OpNotifyCM, uint32(ev), 0)
}

func (id *ID) limit(conn, ud int) int {
	if id.space == PSUDP {
		return ud
	}
	return conn
}

// param completes a connection's parameters. The caller holds mu.
func (id *ID) param(op string, p *ConnParam, most int) (ConnParam, error) {
	c := DefaultConnParam()
	if p != nil {
		c = *p
	}
	if err := checkPrivate(op, c.PrivateData, most); err != nil {
		return c, err
	}
	if id.qp != nil {
		c.QPN, c.SRQ = id.qp.Num(), id.qp.InitAttr().SRQ != nil
	}
	if id.space == PSUDP && c.QKey == 0 {
		c.QKey = QKeyUDP
	}
	return c, nil
}

func checkPrivate(op string, b []byte, most int) error {
	if len(b) > most {
		return &verbs.Error{Op: op, Errno: unix.EINVAL, Text: fmt.Sprintf("%d bytes of private data, the most is %d", len(b), most)}
	}
	return nil
}

func (id *ID) call(op string, code uapi.Op, c *ConnParam, reason uint32) error {
	req := uapi.CMCallRequest{ID: id.handle, Reason: reason, Private: c.PrivateData, Param: uapi.CMParam{
		QPN: c.QPN, QKey: c.QKey, ResponderResources: c.ResponderResources, InitiatorDepth: c.InitiatorDepth,
		FlowControl: c.FlowControl, RetryCount: c.RetryCount, RNRRetryCount: c.RNRRetryCount, SRQ: c.SRQ,
	}}
	return id.request(op, code, &req, nil)
}

package rdmacm

import (
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/verbs"
)

// sharedPD is the protection domain of a channel's identifiers whose program
// gives none.
type sharedPD struct {
	pd   *verbs.PD
	ch   *EventChannel
	uses int // guarded by the channel's mu
}

// defaultPD gives the channel's protection domain, made at its first use.
func (ch *EventChannel) defaultPD() (*sharedPD, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.pd == nil {
		pd, err := ch.dev.AllocPD()
		if err != nil {
			return nil, err
		}
		ch.pd = &sharedPD{pd: pd, ch: ch}
	}
	ch.pd.uses++
	return ch.pd, nil
}

// unuse ends one use; the last one ends the domain. EBUSY: the program has
// objects of it, and the domain stays.
func (s *sharedPD) unuse() {
	s.ch.mu.Lock()
	defer s.ch.mu.Unlock()
	if s.uses--; s.uses == 0 {
		if s.ch.pd == s {
			s.ch.pd = nil
		}
		_ = s.pd.Dealloc() // EBUSY: see above
	}
}

// qpParts is what CreateQP made beside the queue pair.
type qpParts struct {
	pd     *sharedPD
	sendCQ *verbs.CQ
	recvCQ *verbs.CQ
	sendCh *verbs.CompChannel
	recvCh *verbs.CompChannel
}

// CreateQP makes the identifier's queue pair (rdma_create_qp), of a connection in
// INIT, of UD in RTS with the queue key QKeyUDP. pd may be nil, and so may attr's
// queues: the identifier then has its own, each queue with a channel of its own
// ([ID.CQs]), and a protection domain that identifiers of one channel share.
// Type 0 is RC, or UD in the port space of datagrams.
func (id *ID) CreateQP(pd *verbs.PD, attr *verbs.QPInitAttr) error {
	const op = "create QP"
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.qp != nil {
		return invalid(op, "the identifier has a queue pair")
	}
	init := *attr
	if init.Type == 0 {
		init.Type = verbs.RC
		if id.space == PSUDP {
			init.Type = verbs.UD
		}
	}
	if (init.Type == verbs.UD) != (id.space == PSUDP) {
		return invalid(op, "queue pairs of type UD and only those belong to the port space of datagrams")
	}
	err := id.createParts(&pd, &init)
	if err == nil {
		id.qp, err = pd.CreateQP(&init)
	}
	if err == nil {
		err = id.ready(init.Type)
	}
	if err != nil {
		_ = id.destroyQP() // the error that was first is told
	}
	return err
}

// createParts makes what the program did not give.
func (id *ID) createParts(pd **verbs.PD, init *verbs.QPInitAttr) error {
	m := &id.made
	var err error
	if *pd == nil {
		if m.pd, err = id.ch.defaultPD(); err != nil {
			return err
		}
		*pd = m.pd.pd
	}
	if init.SendCQ == nil {
		if m.sendCh, m.sendCQ, err = id.newCQ(init.Cap.MaxSendWR); err != nil {
			return err
		}
		init.SendCQ = m.sendCQ
	}
	if init.RecvCQ == nil {
		if m.recvCh, m.recvCQ, err = id.newCQ(init.Cap.MaxRecvWR); err != nil {
			return err
		}
		init.RecvCQ = m.recvCQ
	}
	return nil
}

func (id *ID) newCQ(entries uint32) (*verbs.CompChannel, *verbs.CQ, error) {
	ch, err := id.dev.CreateCompChannel()
	if err != nil {
		return nil, nil, err
	}
	cq, err := id.dev.CreateCQ(int(max(entries, 1)), ch, 0)
	return ch, cq, err
}

// ready takes a new queue pair to its first state.
func (id *ID) ready(typ verbs.QPType) error {
	if typ == verbs.UD {
		return id.qp.ReadyUD(QKeyUDP, 0)
	}
	return id.qpTo(verbs.StateInit, nil)
}

// QP is the queue pair that CreateQP made; nil: none.
func (id *ID) QP() *verbs.QP {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.qp
}

// CQs are the completion queues that CreateQP made and their channels, nil where
// the program gave a queue (rdma_cm_id.send_cq, send_cq_channel and so on).
func (id *ID) CQs() (sendCQ, recvCQ *verbs.CQ, sendChannel, recvChannel *verbs.CompChannel) {
	id.mu.Lock()
	defer id.mu.Unlock()
	m := &id.made
	return m.sendCQ, m.recvCQ, m.sendCh, m.recvCh
}

// PD is the protection domain that CreateQP was given none for, which the
// identifier shares with those of its channel; nil: none. It ends with the last
// queue pair that uses it.
func (id *ID) PD() *verbs.PD {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.made.pd == nil {
		return nil
	}
	return id.made.pd.pd
}

// DestroyQP destroys what CreateQP made (rdma_destroy_qp). Without a queue pair
// it does nothing.
func (id *ID) DestroyQP() error {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.destroyQP()
}

func (id *ID) destroyQP() error {
	var first error
	end := func(err error) {
		if first == nil {
			first = err
		}
	}
	if id.qp != nil {
		id.detachAll()
		if err := id.qp.Destroy(); err != nil && !id.ch.gone() {
			return err // EBUSY: it is attached to a group
		}
		id.qp = nil
	}
	m := &id.made
	for _, cq := range []*verbs.CQ{m.sendCQ, m.recvCQ} {
		if cq != nil {
			end(cq.Destroy())
		}
	}
	for _, ch := range []*verbs.CompChannel{m.sendCh, m.recvCh} {
		if ch != nil {
			end(ch.Destroy())
		}
	}
	if m.pd != nil {
		m.pd.unuse()
	}
	*m = qpParts{}
	return first
}

// InitQPAttr says with what to modify a queue pair of the program's own for a
// state of the connection: INIT, RTR or RTS (rdma_init_qp_attr). RTR and RTS are
// known from CONNECT_REQUEST or CONNECT_RESPONSE on.
func (id *ID) InitQPAttr(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	var rep uapi.QPAttrCMReply
	req := uapi.CMValueRequest{ID: id.handle, Value: uint32(to)}
	if err := id.request("init QP attributes", uapi.OpQPAttrCM, &req, &rep); err != nil {
		return verbs.QPAttr{}, 0, err
	}
	rep.Attr.State = to
	return rep.Attr, rep.Mask | verbs.QPStateMask, nil
}

// qpTo modifies the own queue pair for a state of the connection.
func (id *ID) qpTo(to verbs.QPState, change func(*verbs.QPAttr)) error {
	attr, mask, err := id.InitQPAttr(to)
	if err != nil {
		return err
	}
	if change != nil {
		change(&attr)
	}
	return id.qp.Modify(&attr, mask)
}

// qpToRTR takes the own queue pair from INIT to RTR, with what the peer may do.
// resources is how many READs and atomics it takes at once; MaxDepth: as the
// adapter says.
func (id *ID) qpToRTR(resources uint8) error {
	return id.qpTo(verbs.StateRTR, func(a *verbs.QPAttr) {
		if resources != MaxDepth {
			a.MaxDestRDAtomic = resources
		}
	})
}

func (id *ID) qpToRTS(depth uint8) error {
	return id.qpTo(verbs.StateRTS, func(a *verbs.QPAttr) {
		if depth != MaxDepth {
			a.MaxRDAtomic = depth
		}
	})
}

// qpToErr flushes the own queue pair.
func (id *ID) qpToErr() {
	if id.qp == nil || id.space == PSUDP {
		return
	}
	if s := id.qp.State(); s != verbs.StateReset && s != verbs.StateErr {
		_ = id.qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPStateMask) // the adapter is gone, and flushes
	}
}

package nic

import (
	"syscall"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
)

const (
	// udpQKey is the Q_Key of UD queue pairs of the connection manager
	// (specification value: RDMA_UDP_QKEY).
	udpQKey bth.QKey = 0x01234567
	// minRNRTimer is 0.64 ms. librdmacm's is 0, which is 655 ms; our own tuning.
	minRNRTimer = 12
)

// cmParam takes the parameters of a call. The queue pair must be the program's
// own: peers tell stale connections by its number.
func (p *program) cmParam(m *uapi.CMParam) (cm.Param, *qpObject, error) {
	o := p.byQPN[m.QPN]
	if o == nil {
		return cm.Param{}, nil, refuse(syscall.EINVAL, "queue pair %#x is none of this program's", uint32(m.QPN))
	}
	out := cm.Param{
		QPN: m.QPN, QKey: m.QKey, ResponderResources: m.ResponderResources, InitiatorDepth: m.InitiatorDepth,
		FlowControl: m.FlowControl, RetryCount: min(m.RetryCount, 7), RNRRetry: min(m.RNRRetryCount, 7), SRQ: m.SRQ || o.srq != nil,
	}
	if o.kind == qpstate.UD && out.QKey == 0 {
		out.QKey = udpQKey
	}
	return out, o, nil
}

// goesWith refuses a queue pair whose type is not the port space's.
func (id *cmID) goesWith(o *qpObject) error {
	if id.datagrams() == (o.kind == qpstate.UD) {
		return nil
	}
	return refuse(syscall.EINVAL, "queue pair %#x is of type %v, which does not go with port space %v", uint32(o.qp.qpn), o.kind, id.space)
}

// connectCM asks the peer for a connection, or for its queue pair (UD). What
// becomes of it is an event.
func (p *program) connectCM(m *uapi.CMCallRequest) (reply, error) {
	return p.onCMID(m.ID, func(g *gsi, id *cmID) (uapi.Body, error) {
		if id.stage != cmRouteKnown {
			return nil, id.errStage("connect")
		}
		args := cm.ConnectArgs{
			Type: id.service(), Service: cm.IPService(id.space, id.peer.Port()),
			CMA:  cm.CMA{Src: id.own, Dst: id.peer.Addr()},
			Path: id.way, MTU: id.mtu, LifeTime: lifeTime(id.ack), Private: m.Private,
		}
		if !id.datagrams() { // whose answer names the peer's queue pair alone
			param, o, err := p.cmParam(&m.Param)
			if err == nil {
				err = id.goesWith(o)
			}
			if err != nil {
				return nil, err
			}
			args.Param = param
		}
		comm, err := g.machine.Connect(g.w.now, args)
		if err != nil {
			return nil, errCM(err)
		}
		id.stage, id.comm = cmActive, comm
		g.byComm[comm] = id
		return nil, nil
	})
}

// lifeTime is the packet life time that leads to an ACK timeout; 0 for the
// default of either.
func lifeTime(ack uint8) uint8 {
	if ack <= 1 {
		return ack // none, or the shortest
	}
	return ack - 1
}

// acceptCM grants a peer's request. The program's queue pair is in RTS; its first
// packet is as good as the peer's word that the connection is up.
func (p *program) acceptCM(m *uapi.CMCallRequest) (reply, error) {
	param, o, err := p.cmParam(&m.Param)
	if err != nil {
		return reply{}, err
	}
	if o.kind != qpstate.UD { // before the peer may send
		o.worker.do(func() { o.qp.awaited = true })
	}
	return p.onCMID(m.ID, func(g *gsi, id *cmID) (uapi.Body, error) {
		if id.stage != cmRequested {
			return nil, id.errStage("accept")
		}
		if err := id.goesWith(o); err != nil {
			return nil, err
		}
		if err := g.machine.Accept(g.w.now, id.comm, param, m.Private); err != nil {
			return nil, errCM(err)
		}
		if !id.datagrams() {
			g.await(id, param.QPN)
		}
		return nil, nil
	})
}

// rejectCM refuses a peer's request, or its answer.
func (p *program) rejectCM(m *uapi.CMCallRequest) (reply, error) {
	reason := cm.RejectReason(m.Reason)
	if m.Reason == 0 {
		reason = cm.RejConsumer
	} else if m.Reason > 0xFFFF {
		return reply{}, refuse(syscall.EINVAL, "reject: reason %d", m.Reason)
	}
	return p.onConnection(m.ID, "reject", func(g *gsi, id *cmID) error {
		return g.machine.Reject(g.w.now, id.comm, reason, m.Private)
	})
}

// onConnection runs a call of the machine on the connection of an identifier.
func (p *program) onConnection(handle uint32, call string, f func(g *gsi, id *cmID) error) (reply, error) {
	return p.onCMID(handle, func(g *gsi, id *cmID) (uapi.Body, error) {
		if id.comm == 0 {
			return nil, id.errStage(call)
		}
		return nil, errCM(f(g, id))
	})
}

// establishCM says, after the peer's answer, that the queue pair is in RTS.
func (p *program) establishCM(m *uapi.HandleRequest) (reply, error) {
	return p.onConnection(m.Handle, "establish", func(g *gsi, id *cmID) error {
		return g.machine.Establish(g.w.now, id.comm, nil)
	})
}

// disconnectCM begins the end of a connection, or agrees to the peer's.
func (p *program) disconnectCM(m *uapi.HandleRequest) (reply, error) {
	return p.onConnection(m.Handle, "disconnect", func(g *gsi, id *cmID) error {
		if id.datagrams() {
			return cm.ErrInvalid
		}
		return g.machine.Disconnect(g.w.now, id.comm, nil)
	})
}

// notifyCM takes an asynchronous event of the identifier's queue pair: of
// interest is the first packet (rdma_notify(3)).
func (p *program) notifyCM(m *uapi.CMValueRequest) (reply, error) {
	return p.onConnection(m.ID, "notify", func(g *gsi, id *cmID) error {
		if uapi.AsyncEvent(m.Value) != uapi.EventCommEst {
			return nil
		}
		return g.machine.CommEstablished(g.w.now, id.comm)
	})
}

// qpAttrCM says with what to modify the queue pair of an identifier.
func (p *program) qpAttrCM(m *uapi.CMValueRequest) (reply, error) {
	state := qpstate.State(m.Value)
	if m.Value != uint32(qpstate.Init) && m.Value != uint32(qpstate.RTR) && m.Value != uint32(qpstate.RTS) {
		return reply{}, refuse(syscall.EINVAL, "state %d: attributes are for INIT, RTR and RTS", m.Value)
	}
	return p.onCMID(m.ID, func(g *gsi, id *cmID) (uapi.Body, error) {
		r := &uapi.QPAttrCMReply{}
		switch {
		case id.datagrams():
			r.Attr, r.Mask = datagramAttr(state)
		case id.comm == 0 && state == qpstate.Init:
			r.Attr, r.Mask = initAttr()
		case id.comm == 0:
			return nil, id.errStage("queue pair attributes")
		default:
			var err error
			asAsked := cm.Param{ResponderResources: cm.DepthMax, InitiatorDepth: cm.DepthMax}
			if r.Attr, r.Mask, err = g.machine.QPAttr(id.comm, state, asAsked); err != nil {
				if state != qpstate.Init {
					return nil, errCM(err)
				}
				r.Attr, r.Mask = initAttr()
			}
		}
		if r.Mask&qpstate.MaskMinRNRTimer != 0 {
			r.Attr.MinRNRTimer = minRNRTimer
		}
		return r, nil
	})
}

// initAttr brings a queue pair to INIT before anything is known of the peer.
func initAttr() (qpstate.Attr, qpstate.Mask) {
	return qpstate.Attr{
		State: qpstate.Init, PortNum: 1, AccessFlags: uint32(mrtable.AccessRemoteWrite | mrtable.AccessRemoteRead | mrtable.AccessRemoteAtomic),
	}, qpstate.MaskState | qpstate.MaskPKeyIndex | qpstate.MaskPort | qpstate.MaskAccessFlags
}

// datagramAttr brings a UD queue pair through its states.
func datagramAttr(to qpstate.State) (qpstate.Attr, qpstate.Mask) {
	a := qpstate.Attr{State: to}
	if to == qpstate.Init {
		a.PortNum, a.QKey = 1, udpQKey
		return a, qpstate.MaskState | qpstate.MaskPKeyIndex | qpstate.MaskPort | qpstate.MaskQKey
	}
	if to == qpstate.RTS {
		return a, qpstate.MaskState | qpstate.MaskSQPSN
	}
	return a, qpstate.MaskState
}

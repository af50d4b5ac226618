package verbs

import "github.com/softroce/softroce/pkg/qpstate"

// RCPeer is what a connected queue pair, RC or UC, must know of its peer,
// exchanged by the programs in a way of their own.
type RCPeer struct {
	QPN QPN
	PSN PSN // the peer's first send PSN
	GID GID
}

// RCConfig are the attributes of a connection. Zero values mean the
// default in parentheses; a real zero, as in no retries, takes Modify.
type RCConfig struct {
	SGIDIndex    uint8  // the local address, an index of the GID table
	PSN          PSN    // our own first send PSN
	Access       Access // what peers may do through this queue pair (all)
	MTU          MTU    // the path MTU (the port's active MTU)
	MaxRDAtomic  uint8  // READs and atomics in flight, both ways (16)
	MinRNRTimer  uint8  // the code we ask peers to wait by (12: 0.64 ms)
	Timeout      uint8  // ACK timeout code (14: 67 ms)
	RetryCnt     uint8  // transport retries (7)
	RNRRetry     uint8  // receiver-not-ready retries (7: no limit)
	TrafficClass uint8
	HopLimit     uint8 // (64)
	FlowLabel    uint32
}

func (c RCConfig) withDefaults(port *PortAttr) RCConfig {
	def := func(v *uint8, d uint8) {
		if *v == 0 {
			*v = d
		}
	}
	if c.Access == 0 {
		c.Access = AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic
	}
	if c.MTU == 0 {
		c.MTU = port.ActiveMTU
	}
	def(&c.MaxRDAtomic, 16)
	def(&c.MinRNRTimer, 12)
	def(&c.Timeout, 14)
	def(&c.RetryCnt, 7)
	def(&c.RNRRetry, 7)
	def(&c.HopLimit, 64)
	return c
}

// ah is the way to a peer.
func (c RCConfig) ah(peer RCPeer) AHAttr {
	return AHAttr{
		DGID: peer.GID, SGIDIndex: c.SGIDIndex, HopLimit: c.HopLimit, TrafficClass: c.TrafficClass,
		FlowLabel: c.FlowLabel, IsGlobal: true, PortNum: 1,
	}
}

// ConnectRC takes a queue pair from RESET through INIT and RTR to RTS, towards
// peer. Receives may be posted before, in between and after. A queue pair that
// failed goes to RESET by Modify first. The errors are those of Modify.
func (q *QP) ConnectRC(peer RCPeer, conf RCConfig) error {
	port, err := q.dev.QueryPort(1)
	if err != nil {
		return err
	}
	conf = conf.withDefaults(&port)
	if err := q.ToInit(conf.Access); err != nil {
		return err
	}
	rtr := QPAttr{
		State: StateRTR, PathMTU: conf.MTU, DestQPN: peer.QPN, RQPSN: peer.PSN,
		MaxDestRDAtomic: conf.MaxRDAtomic, MinRNRTimer: conf.MinRNRTimer,
		AH: conf.ah(peer),
	}
	err = q.Modify(&rtr, qpstate.MaskState|qpstate.MaskAV|qpstate.MaskPathMTU|qpstate.MaskDestQPN|qpstate.MaskRQPSN|
		qpstate.MaskMaxDestRDAtomic|qpstate.MaskMinRNRTimer)
	if err != nil {
		return err
	}
	rts := QPAttr{
		State: StateRTS, Timeout: conf.Timeout, RetryCnt: conf.RetryCnt, RNRRetry: conf.RNRRetry,
		SQPSN: conf.PSN, MaxRDAtomic: conf.MaxRDAtomic,
	}
	return q.Modify(&rts, qpstate.MaskState|qpstate.MaskTimeout|qpstate.MaskRetryCnt|qpstate.MaskRNRRetry|
		qpstate.MaskSQPSN|qpstate.MaskMaxQPRDAtomic)
}

// ConnectUC is ConnectRC for an unreliable connection. Of conf, what belongs to
// acknowledgements, READs and atomics means nothing; Access is remote write by
// default.
func (q *QP) ConnectUC(peer RCPeer, conf RCConfig) error {
	port, err := q.dev.QueryPort(1)
	if err != nil {
		return err
	}
	if conf.Access == 0 {
		conf.Access = AccessRemoteWrite
	}
	conf = conf.withDefaults(&port)
	if err := q.ToInit(conf.Access); err != nil {
		return err
	}
	rtr := QPAttr{State: StateRTR, PathMTU: conf.MTU, DestQPN: peer.QPN, RQPSN: peer.PSN, AH: conf.ah(peer)}
	err = q.Modify(&rtr, qpstate.MaskState|qpstate.MaskAV|qpstate.MaskPathMTU|qpstate.MaskDestQPN|qpstate.MaskRQPSN)
	if err != nil {
		return err
	}
	rts := QPAttr{State: StateRTS, SQPSN: conf.PSN}
	return q.Modify(&rts, qpstate.MaskState|qpstate.MaskSQPSN)
}

// Connect is ConnectRC or ConnectUC, as the type of the queue pair is. EINVAL:
// it is of another type.
func (q *QP) Connect(peer RCPeer, conf RCConfig) error {
	switch q.typ {
	case RC:
		return q.ConnectRC(peer, conf)
	case UC:
		return q.ConnectUC(peer, conf)
	case UD, qpstate.GSI:
	}
	return invalid("connect QP", "a queue pair of type %v is not connected", q.typ)
}

// ReadyUD takes a UD queue pair from RESET through INIT and RTR to RTS. It
// receives datagrams that carry qkey; psn is the PSN of its first own one. The
// errors are those of Modify.
func (q *QP) ReadyUD(qkey QKey, psn PSN) error {
	init := QPAttr{State: StateInit, PortNum: 1, QKey: qkey}
	if err := q.Modify(&init, qpstate.MaskState|qpstate.MaskPKeyIndex|qpstate.MaskPort|qpstate.MaskQKey); err != nil {
		return err
	}
	if err := q.Modify(&QPAttr{State: StateRTR}, qpstate.MaskState); err != nil {
		return err
	}
	return q.Modify(&QPAttr{State: StateRTS, SQPSN: psn}, qpstate.MaskState|qpstate.MaskSQPSN)
}

// ToInit moves a queue pair from RESET to INIT, where receives can be posted,
// or changes what peers may do when it is there already. It is for RC and UC.
func (q *QP) ToInit(access Access) error {
	q.mu.Lock()
	state := q.state
	q.mu.Unlock()
	attr := QPAttr{State: StateInit, AccessFlags: uint32(access), PortNum: 1}
	mask := qpstate.MaskState | qpstate.MaskAccessFlags
	if state == StateReset {
		mask |= qpstate.MaskPKeyIndex | qpstate.MaskPort
	}
	return q.Modify(&attr, mask)
}

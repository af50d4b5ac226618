package suite

import (
	"slices"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

// Options say what queue pair Connect makes on the target. A zero field is what its comment has in brackets.
type Options struct {
	Type  string // [RC], UC, UD, GSI
	State string // [RTS], RTR, INIT, RESET
	MTU   int    // [1024]
	// Access of the queue pair, [remote write, read and atomic]; None for no right.
	Access []string

	// Length and MRAccess of the region: [128 KiB], [local write and all remote rights].
	Length   int
	MRAccess []string

	SendWRs, RecvWRs   int // [128]
	SendSGEs, RecvSGEs int // [3], or the device's limit
	Inline             int // [0]
	SigAll             bool
	CQE                int  // [256]
	Channel            bool // the completion queues have a channel
	QKey               uint32
	PKeyIndex          int

	// Recvs receives are posted, with ids from 1, each for RecvSize [2048] bytes of the region's second half.
	Recvs, RecvSize int

	RQPSN, SQPSN *bth.PSN // [random]

	RdAtomic, DestRdAtomic *int // [4]
	Timeout                *int // [17: 0.5 s]
	RetryCnt, RNRRetry     *int // [7]
	MinRNRTimer            *int // [12: 0.64 ms]

	// Share, unless nil, is whose protection domain, completion queues and region the queue pair uses.
	Share *Peer
	// PD, SendCQ, RecvCQ and SRQ are agents' handles to use in place of own ones.
	PD, SendCQ, RecvCQ, SRQ int
}

// None is no access right at all.
var None = []string{"NONE"}

// AllRemote are the rights that a queue pair gets, and a region in addition to LOCAL_WRITE.
var AllRemote = []string{"REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC"}

// Region is memory of the target.
type Region struct {
	ID         int
	Addr       uint64 // of its first byte, for a RETH or a SGE
	LKey, RKey uint32
	Length     int
}

// Peer is a queue pair of the target, seen from the tester, who plays its other end with nothing but packets.
type Peer struct {
	T *T

	QPN bth.QPN // the target's
	Own bth.QPN // the tester's
	// PSN is the next that the tester sends as a requester: what the target expects. Request and Alive advance it.
	PSN bth.PSN
	// TargetPSN is the next that the target sends as a requester. Requested advances it.
	TargetPSN bth.PSN
	// MSN is what the tester's acknowledgements say; cases count it up.
	MSN uint32

	PD, SendCQ, RecvCQ, QP int // agent's handles
	MR                     Region
	MTU                    int
	Options                Options

	class bth.Opcode // added to an RC opcode
	inbox []*wire.Frame
	sent  []agent.WC // completions that were polled and not yet asked for
	taken []agent.WC
}

func orElse(v, otherwise int) int {
	if v == 0 {
		return otherwise
	}
	return v
}

func orNumber(v *int, otherwise int) int {
	if v == nil {
		return otherwise
	}
	return *v
}

func access(given, otherwise []string) []string {
	switch {
	case given == nil:
		return otherwise
	case len(given) == 1 && given[0] == None[0]:
		return []string{}
	}
	return given
}

// Connect makes a queue pair on the target, with memory and completion queues, and connects it with a new end at the tester.
func (t *T) Connect(o Options) *Peer {
	p := &Peer{T: t, Options: o, MTU: orElse(o.MTU, 1024), Own: t.newQPN(), PSN: t.psn(o.RQPSN), TargetPSN: t.psn(o.SQPSN)}
	switch o.Type {
	case "":
		p.Options.Type = "RC"
	case "UC":
		p.class = bth.UCSendFirst - bth.RCSendFirst
	case "UD", "GSI":
		p.class = bth.UDSendOnly - bth.RCSendOnly
	}
	t.peers[p.Own] = p
	if c := t.manager(); c != nil {
		p.connectBy(c)
		return p
	}
	p.objects()
	a := t.Do(p.qpRequest())
	p.QP, p.QPN = a.QP, bth.QPN(a.QPN)
	t.res.names[p.Own] = "the tester's end of " + p.QPN.String()
	p.To(o.State)
	if o.Recvs > 0 {
		p.PostRecvs(o.Recvs)
	}
	return p
}

// objects makes, or takes over, what the queue pair needs.
func (p *Peer) objects() {
	t, o := p.T, p.Options
	if s := o.Share; s != nil {
		p.PD, p.SendCQ, p.RecvCQ, p.MR = s.PD, s.SendCQ, s.RecvCQ, s.MR
	}
	if o.PD != 0 {
		p.PD = o.PD
	}
	if p.PD == 0 {
		p.PD = t.Do(agent.Request{Do: agent.DoPD}).PD
	}
	if o.SendCQ != 0 {
		p.SendCQ = o.SendCQ
	}
	if o.RecvCQ != 0 {
		p.RecvCQ = o.RecvCQ
	}
	for _, cq := range []*int{&p.SendCQ, &p.RecvCQ} {
		if *cq == 0 {
			*cq = t.Do(agent.Request{Do: agent.DoCQ, CQE: orElse(o.CQE, 256), Channel: o.Channel}).CQ
		}
	}
	if p.MR.ID == 0 {
		all := slices.Concat([]string{"LOCAL_WRITE"}, AllRemote)
		p.MR = t.Region(p.PD, orElse(o.Length, 128<<10), access(o.MRAccess, all)...)
	}
}

func (p *Peer) qpRequest() agent.Request {
	o, most := p.Options, p.T.Hello.MaxSGE
	sges := func(n int) int {
		if n == 0 {
			n = 3
			if most > 0 {
				n = min(n, most)
			}
		}
		return n
	}
	return agent.Request{
		Do: agent.DoQP, Type: o.Type, PD: p.PD, SendCQ: p.SendCQ, RecvCQ: p.RecvCQ, SRQ: o.SRQ,
		SendWRs: orElse(o.SendWRs, 128), RecvWRs: orElse(o.RecvWRs, 128), SendSGEs: sges(o.SendSGEs), RecvSGEs: sges(o.RecvSGEs),
		Inline: o.Inline, SigAll: o.SigAll,
	}
}

// Region registers memory on the target; it is zero.
func (t *T) Region(pd, length int, rights ...string) Region {
	a := t.Do(agent.Request{Do: agent.DoMR, PD: pd, Length: length, Access: rights})
	return Region{ID: a.MR, Addr: a.Addr, LKey: a.LKey, RKey: a.RKey, Length: length}
}

// To brings the queue pair from RESET to a state on the usual way ("": RTS).
func (p *Peer) To(state string) {
	for _, step := range []struct {
		state string
		attrs *agent.Attrs
	}{{"INIT", p.Init()}, {"RTR", p.RTR()}, {"RTS", p.RTS()}} {
		if state == "RESET" {
			return
		}
		p.Modify(step.attrs)
		if state == step.state {
			return
		}
	}
}

// Modify modifies the target's queue pair.
func (p *Peer) Modify(a *agent.Attrs) {
	p.T.Do(agent.Request{Do: agent.DoModify, QP: p.QP, Attrs: a})
}

// Query returns the attributes of the target's queue pair.
func (p *Peer) Query() *agent.Attrs {
	a := p.T.Do(agent.Request{Do: agent.DoQuery, QP: p.QP}).Attrs
	if a == nil || a.State == nil {
		p.T.Fatalf("the agent's answer to %q has no state", agent.DoQuery)
	}
	return a
}

// State fails unless the target's queue pair is in that state, or comes to it within Wait.
func (p *Peer) State(want string) {
	var got string
	if !p.T.within(func() bool { got = *p.Query().State; return got == want }) {
		p.T.Failed("the queue pair in state "+want, got)
	}
}

// Init are the attributes for INIT, as RTR and RTS are for these states, on the usual way.
func (p *Peer) Init() *agent.Attrs {
	a := &agent.Attrs{State: new("INIT"), PKeyIndex: new(p.Options.PKeyIndex), Port: new(1)}
	if p.datagram() {
		a.QKey = new(p.QKey())
	} else {
		a.Access = new(access(p.Options.Access, AllRemote))
	}
	return a
}

// RTR are the attributes for RTR.
func (p *Peer) RTR() *agent.Attrs {
	a, o := &agent.Attrs{State: new("RTR")}, p.Options
	if p.datagram() {
		return a
	}
	a.Path, a.PathMTU = p.T.Path(), new(p.MTU)
	a.DestQPN, a.RQPSN = new(uint32(p.Own)), new(uint32(p.PSN))
	if o.Type != "UC" {
		a.MaxDestRDAtomic, a.MinRNRTimer = new(orNumber(o.DestRdAtomic, p.T.rdAtomic())), new(orNumber(o.MinRNRTimer, 12))
	}
	return a
}

// RTS are the attributes for RTS.
func (p *Peer) RTS() *agent.Attrs {
	a, o := &agent.Attrs{State: new("RTS"), SQPSN: new(uint32(p.TargetPSN))}, p.Options
	if o.Type == "" || o.Type == "RC" {
		a.Timeout, a.RetryCnt, a.RNRRetry = new(orNumber(o.Timeout, 17)), new(orNumber(o.RetryCnt, 7)), new(orNumber(o.RNRRetry, 7))
		a.MaxRDAtomic = new(orNumber(o.RdAtomic, p.T.rdAtomic()))
	}
	return a
}

func (p *Peer) datagram() bool { return p.Options.Type == "UD" || p.Options.Type == "GSI" }

// QKey is the queue pair's Q_Key.
func (p *Peer) QKey() uint32 {
	switch {
	case p.Options.Type == "GSI":
		return uint32(bth.GSIQKey)
	case p.Options.QKey != 0:
		return p.Options.QKey
	}
	return 0x11111111
}

// Path is the way from the target to the tester.
func (t *T) Path() *agent.Path {
	return &agent.Path{Addr: t.Link.Local().WithZone("").String(), GIDIndex: t.gid, HopLimit: 64}
}

func (t *T) rdAtomic() int {
	if m := t.Hello.MaxRDAtomic; m > 0 {
		return min(4, m)
	}
	return 4
}

func (t *T) psn(given *bth.PSN) bth.PSN {
	if given != nil {
		return *given
	}
	return bth.PSN(t.Rand.Uint32()) & bth.PSNMask
}

// newQPN takes a queue pair number for the tester that no peer has.
func (t *T) newQPN() bth.QPN {
	for {
		n := bth.QPN(t.Rand.Uint32()) & bth.QPNMask
		if n > 1 && n != bth.MulticastQPN && t.peers[n] == nil {
			return n
		}
	}
}

package suite

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

// CM stands in for an agent where the target has none: it connects by the connection manager (IBTA Vol 1 §12) to whoever
// listens there, an "rping -s -P" for instance. Cases that ask for more than one plain connection are skipped: nothing
// shows the target's memory and completions, and nobody posts requests there.
type CM struct {
	Link wire.Link
	Port uint16 // of the port space of TCP
	Rand *rand.Rand
	Wait time.Duration // for an answer, [2 s]

	open []connection
}

// connection is one that the target's side has to be told the end of.
type connection struct {
	local, remote uint32 // communication ids
	qpn           bth.QPN
}

const (
	attrREQ, attrREJ, attrREP, attrRTU, attrDREQ, attrDREP = 0x10, 0x12, 0x13, 0x14, 0x15, 0x16

	madLen   = 256
	madHead  = 24
	privREQ  = 140 // offset of a REQ's private data in its message
	portTCP  = 0x0106 << 16
	nobody   = "no agent on the target: the connection manager alone does not do this"
	notAgent = "ENOTSUP"
)

// NewCM makes one with random numbers from a seed.
func NewCM(l wire.Link, port uint16, seed uint64) *CM {
	return &CM{Link: l, Port: port, Rand: rand.New(rand.NewPCG(seed, uint64(port))), Wait: 2 * time.Second}
}

// Hello says what the target can, as far as the connection manager shows it: nothing.
func (c *CM) Hello() *agent.Hello {
	return &agent.Hello{
		Version: agent.Version, Agent: "connection manager", Device: c.Link.Remote().String(), MaxRDAtomic: 1,
		GIDs: []agent.GID{{Addr: c.Link.Remote().WithZone("").String()}},
	}
}

// Do ends all connections with DoReset, and refuses everything else with ENOTSUP.
func (c *CM) Do(r agent.Request) (*agent.Answer, error) {
	if r.Do == agent.DoReset {
		c.hangUp()
		return &agent.Answer{}, nil
	}
	return nil, &agent.Error{Do: r.Do, Text: nobody, Errno: notAgent}
}

// connect connects the tester's queue pair: the target begins to send at first. It returns the target's queue pair and
// the PSN that this one expects.
func (c *CM) connect(own bth.QPN, first bth.PSN, mtu bth.MTU) (qpn bth.QPN, psn bth.PSN, err error) {
	id := c.Rand.Uint32()
	rep, err := c.ask(attrREQ, c.request(id, own, first, mtu), func(attr uint16, m []byte) bool {
		return (attr == attrREP || attr == attrREJ) && binary.BigEndian.Uint32(m[4:]) == id
	})
	if err != nil {
		return 0, 0, err
	}
	if binary.BigEndian.Uint16(rep[madHead-8:]) == attrREJ {
		return 0, 0, fmt.Errorf("the target rejects the connection, reason %d", binary.BigEndian.Uint16(rep[madHead+10:]))
	}
	m := rep[madHead:]
	remote := binary.BigEndian.Uint32(m)
	qpn, psn = bth.QPN(be24(m[12:])), bth.PSN(be24(m[20:]))
	c.open = append(c.open, connection{local: id, remote: remote, qpn: qpn})
	return qpn, psn, c.send(attrRTU, ids(id, remote))
}

// request makes a REQ.
func (c *CM) request(id uint32, own bth.QPN, first bth.PSN, mtu bth.MTU) []byte {
	m := make([]byte, madLen-madHead)
	be := binary.BigEndian
	be.PutUint32(m, id)
	be.PutUint64(m[8:], portTCP+uint64(c.Port))
	be.PutUint64(m[16:], 0x0200_5EFF_FE00_0000|uint64(own)) // a GUID
	be.PutUint32(m[32:], uint32(own)<<8|1)                  // responder resources 1
	be.PutUint32(m[36:], 1)                                 // initiator depth 1
	m[43] = 20 << 3
	be.PutUint32(m[44:], uint32(first)<<8|20<<3|7)
	be.PutUint16(m[48:], uint16(bth.DefaultPKey))
	m[50] = uint8(mtu)<<4 | 7
	m[51] = 15 << 4
	be.PutUint32(m[52:], 0xFFFF_FFFF)
	local, remote := bth.GIDFromAddr(c.Link.Local()), bth.GIDFromAddr(c.Link.Remote())
	copy(m[56:], local[:])
	copy(m[72:], remote[:])
	m[93], m[95] = 64, 17<<3
	h := m[privREQ:]
	h[1] = 4 << 4
	be.PutUint16(h[2:], uint16(c.Rand.IntN(20000)+30000))
	putIP(h[4:20], c.Link.Local())
	putIP(h[20:36], c.Link.Remote())
	if c.Link.Local().Unmap().Is6() {
		h[1] = 6 << 4
	}
	return m
}

// putIP writes an address of a CMA header: an IPv4 one lies in the last four bytes.
func putIP(b []byte, a netip.Addr) {
	a = a.Unmap()
	if a.Is4() {
		v := a.As4()
		copy(b[12:], v[:])
		return
	}
	v := a.As16()
	copy(b, v[:])
}

func be24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

func ids(local, remote uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, local), remote)
}

// hangUp ends every connection; a target that does not answer is left to its own timeouts.
func (c *CM) hangUp() {
	for _, o := range c.open {
		m := append(ids(o.local, o.remote), byte(o.qpn>>16), byte(o.qpn>>8), byte(o.qpn))
		_, _ = c.ask(attrDREQ, m, func(attr uint16, m []byte) bool {
			return (attr == attrDREP || attr == attrDREQ) && binary.BigEndian.Uint32(m[4:]) == o.local
		})
	}
	c.open = nil
}

// ask sends a message, up to four times, until one comes for which answers holds: its MAD is returned.
func (c *CM) ask(attr uint16, m []byte, answers func(attr uint16, m []byte) bool) ([]byte, error) {
	wait := c.Wait
	if wait == 0 {
		wait = 2 * time.Second
	}
	for range 4 {
		if err := c.send(attr, m); err != nil {
			return nil, err
		}
		for deadline := time.Now().Add(wait / 4); ; {
			f, ok, err := c.Link.Receive(deadline)
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			mad := f.RoCE.Payload
			if f.RoCE.Has(bth.HasDETH) && len(mad) == madLen && mad[1] == 7 && answers(binary.BigEndian.Uint16(mad[16:]), mad[madHead:]) {
				return slices.Clone(mad), nil
			}
		}
	}
	return nil, fmt.Errorf("the target's connection manager does not answer within %v", wait)
}

// send sends a message to queue pair 1.
func (c *CM) send(attr uint16, m []byte) error {
	mad := make([]byte, madLen)
	mad[0], mad[1], mad[2], mad[3] = 1, 7, 2, 3
	copy(mad[8:12], m) // the transaction is named as the communication id
	binary.BigEndian.PutUint16(mad[16:], attr)
	copy(mad[madHead:], m)
	w := &wire.Packet{Payload: mad}
	w.BTH = bth.BTHFields{Opcode: bth.UDSendOnly, PKey: bth.DefaultPKey, DestQP: 1, PSN: bth.PSN(c.Rand.Uint32()) & bth.PSNMask}
	w.DETH = bth.DETHFields{QKey: bth.GSIQKey, SrcQP: 1}
	return c.Link.Send(w)
}

// manager returns the stand-in for an agent, nil where there is an agent.
func (t *T) manager() *CM {
	c, _ := t.agent.(*CM)
	return c
}

// plain says whether a connection manager can make such a queue pair.
func (o *Options) plain() bool {
	return (o.Type == "" || o.Type == "RC") && (o.State == "" || o.State == "RTS") && o.Access == nil && o.MRAccess == nil &&
		o.Recvs == 0 && !o.Channel && o.RQPSN == nil && o.SRQ == 0 && o.PD == 0 && o.DestRdAtomic == nil && o.RdAtomic == nil &&
		o.Timeout == nil && o.RetryCnt == nil && o.RNRRetry == nil && o.MinRNRTimer == nil && o.CQE == 0
}

// connectBy connects a peer by the connection manager.
func (p *Peer) connectBy(c *CM) {
	if !p.Options.plain() {
		p.T.Skipf("%s", nobody)
	}
	mtu, ok := bth.MTUFromBytes(p.MTU)
	if !ok {
		p.T.Skipf("%s", nobody)
	}
	var err error
	if p.QPN, p.PSN, err = c.connect(p.Own, p.TargetPSN, mtu); err != nil {
		p.T.Fatalf("%v", err)
	}
}

// HasMemory says whether the case sees, and may write to, memory of the target.
func (p *Peer) HasMemory() bool { return p.T.manager() == nil }

// Probe makes a WRITE of 8 bytes to the region's begin; of none where there is no region.
func (p *Peer) Probe() *wire.Packet {
	if !p.HasMemory() {
		return p.Write(0, nil)
	}
	return p.Write(0, []byte{1, 2, 3, 4, 5, 6, 7, 8})
}

// needMemory skips the case where there is no region.
func (p *Peer) needMemory(n int) {
	if n > 0 && !p.HasMemory() {
		p.T.Skipf("%s", nobody)
	}
}

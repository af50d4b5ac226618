package rdmatest

import (
	"encoding/binary"
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// An End is one end of a connection that a test makes itself: a queue pair and
// what it needs. All of it may be used beyond the few methods here.
type End struct {
	Dev *verbs.Device
	PD  *verbs.PD
	CQ  *verbs.CQ // of sends and receives
	MR  *verbs.MR // EndBytes long, with every right
	QP  *verbs.QP

	net *Net
}

// What an End has: its region, and what may be outstanding on its queue pair.
const (
	EndBytes = 4 << 20
	EndDepth = 64
)

// RC connects two adapters by reliable queue pairs, one of a program on each.
func (n *Net) RC(a, b *Adapter, conf verbs.RCConfig) (x, y *End) {
	n.t.Helper()
	x, y = n.end(a), n.end(b)
	for _, side := range [][2]*End{{x, y}, {y, x}} {
		gid, err := side[1].Dev.QueryGID(0)
		n.check("GID 0", err)
		n.check("connect", side[0].QP.ConnectRC(verbs.RCPeer{QPN: side[1].QP.Num(), PSN: conf.PSN, GID: gid}, conf))
	}
	return x, y
}

func (n *Net) check(what string, err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatalf("rdmatest: %s: %v", what, err)
	}
}

func (n *Net) end(a *Adapter) *End {
	n.t.Helper()
	e := &End{net: n, Dev: a.Open()}
	var err error
	e.PD, err = e.Dev.AllocPD()
	n.check("PD", err)
	e.CQ, err = e.Dev.CreateCQ(2*EndDepth, nil, 0)
	n.check("CQ", err)
	e.MR, err = e.PD.AllocMR(EndBytes, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic)
	n.check("MR", err)
	e.QP, err = e.PD.CreateQP(&verbs.QPInitAttr{
		Type: verbs.RC, SendCQ: e.CQ, RecvCQ: e.CQ,
		Cap: verbs.QPCap{MaxSendWR: EndDepth, MaxRecvWR: EndDepth, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	n.check("QP", err)
	return e
}

// Send posts a SEND of the region's first n bytes, signaled.
func (e *End) Send(n int) {
	e.net.t.Helper()
	e.post(verbs.SendWR{Opcode: verbs.WRSend}, n)
}

// Recv posts a receive into the region's first n bytes.
func (e *End) Recv(n int) {
	e.net.t.Helper()
	_, err := e.QP.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{e.MR.SGE(0, n)}})
	e.net.check("post receive", err)
}

// Write posts an RDMA WRITE of the region's first n bytes to those of the peer's.
func (e *End) Write(to *End, n int) {
	e.net.t.Helper()
	e.post(verbs.SendWR{Opcode: verbs.WRRDMAWrite, RemoteAddr: to.MR.Addr(), RKey: to.MR.RKey()}, n)
}

// Read posts an RDMA READ of the first n bytes of the peer's region into those of
// the own.
func (e *End) Read(from *End, n int) {
	e.net.t.Helper()
	e.post(verbs.SendWR{Opcode: verbs.WRRDMARead, RemoteAddr: from.MR.Addr(), RKey: from.MR.RKey()}, n)
}

// FetchAdd posts an atomic that adds to the first word of the peer's region, and
// fetches what it was into the own first word.
func (e *End) FetchAdd(to *End, add uint64) {
	e.net.t.Helper()
	e.post(verbs.SendWR{Opcode: verbs.WRAtomicFetchAdd, RemoteAddr: to.MR.Addr(), RKey: to.MR.RKey(), CompareAdd: add}, 8)
}

// Word is the first word of the region, as atomics see it.
func (e *End) Word() uint64 { return binary.NativeEndian.Uint64(e.MR.Bytes()) }

func (e *End) post(wr verbs.SendWR, n int) {
	e.net.t.Helper()
	wr.Flags |= verbs.SendSignaled
	wr.SGList = []verbs.SGE{e.MR.SGE(0, n)}
	_, err := e.QP.PostSend(wr)
	e.net.check("post", err)
}

// Wait polls for the next completion, of sends and receives. A minute without one
// ends the test.
func (e *End) Wait() verbs.WC {
	e.net.t.Helper()
	var wcs [1]verbs.WC
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Microsecond) {
		n, err := e.CQ.Poll(wcs[:])
		e.net.check("poll", err)
		if n == 1 {
			return wcs[0]
		}
		if time.Now().After(end) {
			e.net.t.Fatal("rdmatest: no completion in a minute")
		}
	}
}

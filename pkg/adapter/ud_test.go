package adapter_test

import (
	"bytes"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

const qkey verbs.QKey = 0x11111111

// datagrams is two programs with UD queue pairs that are ready, and a's address
// handle for b.
func datagrams(t *testing.T, s shape) (a, b *program, ah *verbs.AH) {
	t.Helper()
	s.typ = verbs.UD
	a, b = start(t, nil).open(t, s), start(t, nil).open(t, s)
	for _, p := range []*program{a, b} {
		must(t, p.qp.ReadyUD(qkey, p.psn))
	}
	return a, b, a.handleTo(b.gid)
}

func (p *program) handleTo(gid verbs.GID) *verbs.AH {
	p.t.Helper()
	ah, err := p.pd.CreateAH(&verbs.AHAttr{DGID: gid, IsGlobal: true, PortNum: 1, HopLimit: 64})
	must(p.t, err)
	return ah
}

// datagram is a SEND of n bytes of the region's start.
func (p *program) datagram(ah *verbs.AH, to verbs.QPN, n int) verbs.SendWR {
	return verbs.SendWR{
		Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.mr.SGE(0, n)},
		AH: ah.Handle(), RemoteQPN: to, RemoteQKey: qkey,
	}
}

// Datagrams of every size to the MTU, with the header area in front, and an
// answer to the address that it tells.
func TestUDDatagrams(t *testing.T) {
	a, b, ah := datagrams(t, shape{})
	for _, n := range []int{0, 1, 1000, 4096} {
		fill(a.mr.Bytes()[:n], n)
		b.recv(1, 0, 40+n)
		wr := a.datagram(ah, b.qp.Num(), n)
		wr.Opcode, wr.ImmData = verbs.WRSendWithImm, 0xAABBCCDD
		a.do(wr)
		wc := b.status(1, verbs.WCSuccess)
		if wc.ByteLen != uint32(40+n) || wc.Flags != verbs.WCGRH|verbs.WCWithImm || wc.SrcQP != a.qp.Num() || wc.ImmData != 0xAABBCCDD {
			t.Errorf("%d bytes: %+v", n, wc)
		}
		if !bytes.Equal(b.mr.Bytes()[verbs.GRHSize:][:n], a.mr.Bytes()[:n]) {
			t.Errorf("%d bytes: other bytes arrived", n)
		}
		back, err := b.pd.CreateAHFromWC(1, &wc, b.mr.Bytes()[:verbs.GRHSize])
		must(t, err)
		a.recv(2, 8192, 100)
		b.do(b.datagram(back, wc.SrcQP, 9))
		if wc := a.status(2, verbs.WCSuccess); wc.SrcQP != b.qp.Num() {
			t.Errorf("the answer is of %v", wc.SrcQP)
		}
		must(t, back.Destroy())
	}
	_, err := a.qp.PostSend(a.write(b, 0, 0, 8))
	wantErrno(t, "a WRITE", err, unix.EINVAL)
	wantErrno(t, "connect", a.qp.Connect(b.peer(), verbs.RCConfig{}), unix.EINVAL)
}

// The Q_Key: a wrong one is dropped and counted, one with the upper bit set
// stands for the queue pair's own (IBTA Vol 1 §3.5.3, §10.2.5).
func TestUDQKey(t *testing.T) {
	a, b, ah := datagrams(t, shape{})
	before := b.host.workers().Transport.Verdicts
	b.recv(1, 0, 100)
	wrong := a.datagram(ah, b.qp.Num(), 8)
	wrong.RemoteQKey = qkey + 1
	a.do(wrong)
	eventually(t, "the wrong Q_Key is counted", func() bool { return b.host.workers().Transport.Verdicts != before })
	b.none()
	own := a.datagram(ah, b.qp.Num(), 8)
	own.RemoteQKey = 0x80000000
	own.WRID = 5
	a.do(own)
	b.status(1, verbs.WCSuccess)
	must(t, b.qp.Modify(&verbs.QPAttr{State: verbs.StateRTS, QKey: 7}, verbs.QPStateMask|verbs.QPQKeyMask))
	if q, err := b.qp.Query(); err != nil || q.QKey != 7 {
		t.Errorf("Q_Key %#x, %v", uint32(q.QKey), err)
	}
	b.recv(2, 0, 100)
	own.RemoteQKey = 7
	a.do(own)
	b.status(2, verbs.WCSuccess)
}

// Address handles: what creation refuses, and one that is not there any more.
func TestAddressHandles(t *testing.T) {
	a, b, ah := datagrams(t, shape{})
	good := verbs.AHAttr{DGID: b.gid, IsGlobal: true, PortNum: 1}
	for _, c := range []struct {
		name   string
		change func(*verbs.AHAttr)
	}{
		{"port 2", func(h *verbs.AHAttr) { h.PortNum = 2 }},
		{"no GRH", func(h *verbs.AHAttr) { h.IsGlobal = false }},
		{"no such GID index", func(h *verbs.AHAttr) { h.SGIDIndex = 99 }},
		{"no address", func(h *verbs.AHAttr) { h.DGID = verbs.GID{} }},
	} {
		attr := good
		c.change(&attr)
		_, err := a.pd.CreateAH(&attr)
		wantErrno(t, c.name, err, unix.EINVAL)
	}
	wantErrno(t, "the domain of a handle", a.pd.Dealloc(), unix.EBUSY)
	stale := a.datagram(ah, b.qp.Num(), 8)
	must(t, ah.Destroy())
	wantErrno(t, "destroyed twice", ah.Destroy(), unix.EINVAL)
	_, err := a.qp.PostSend(a.datagram(ah, b.qp.Num(), 8))
	wantErrno(t, "a destroyed handle", err, unix.EINVAL)
	a.post(stale)
	a.status(0, verbs.WCLocQPOpErr)
	if s := a.qp.State(); s != verbs.StateSQE {
		t.Errorf("state %v, want SQE", s)
	}
	must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateRTS}, verbs.QPStateMask))
	b.recv(1, 0, 100)
	a.do(a.datagram(a.handleTo(b.gid), b.qp.Num(), 8))
	b.status(1, verbs.WCSuccess)
}

// A batch of datagrams.
func TestBatchOfDatagrams(t *testing.T) {
	a, b, ah := datagrams(t, shape{})
	for i := range uint64(2) {
		b.recv(i, int(i)*128, 128)
	}
	w := a.qp.WRStart()
	w.Flags = verbs.SendSignaled
	w.Send()
	w.SetUDAddr(ah, b.qp.Num(), qkey)
	w.SetInlineData([]byte("first"))
	w.SendImm(2)
	w.SetUDAddr(ah, b.qp.Num(), qkey)
	w.SetSGE(a.mr.LKey(), a.mr.Addr(), 10)
	must(t, w.WRComplete())
	a.status(0, verbs.WCSuccess)
	a.status(0, verbs.WCSuccess)
	if wc := b.status(0, verbs.WCSuccess); wc.ByteLen != 45 || string(b.mr.Bytes()[40:45]) != "first" {
		t.Errorf("the first: %+v", wc)
	}
	if wc := b.status(1, verbs.WCSuccess); wc.ImmData != 2 || wc.ByteLen != 50 {
		t.Errorf("the second: %+v", wc)
	}
}

// A multicast group has who is attached, once each, the sender's own adapter
// included; who is detached has it no more; the rules of attaching.
func TestMulticast(t *testing.T) {
	testmatrix.SkipOn(t, "a host routes no multicast to a TUN link", adapter.BackendTUN)
	a, b, _ := datagrams(t, shape{})
	c := b.host.openOn(t, b.dev, shape{typ: verbs.UD})
	must(t, c.qp.ReadyUD(qkey, 1))
	group := bth.GIDFromAddr(netip.MustParseAddr("239.77.3.9"))
	all := []*program{a, b, c}
	for _, p := range all {
		must(t, p.qp.AttachMcast(group, 0))
		must(t, p.qp.AttachMcast(group, 0)) // changes nothing
		for k := range 2 {
			p.recv(uint64(k), 256*k, 256)
		}
	}
	wr := a.datagram(a.handleTo(group), 0xFFFFFF, 1)
	wr.Flags = 0 // the completions are those of the receives
	gets := func(round uint64, who ...*program) {
		t.Helper()
		a.mr.Bytes()[4096] = byte(round)
		wr.SGList[0] = a.mr.SGE(4096, 1)
		a.post(wr)
		for _, p := range who {
			wc := p.status(round, verbs.WCSuccess)
			if wc.ByteLen != 41 || wc.SrcQP != a.qp.Num() || wc.Flags != verbs.WCGRH || p.mr.Bytes()[256*round+40] != byte(round) {
				t.Errorf("datagram %d: %+v", round, wc)
			}
			back, err := p.dev.InitAHFromWC(1, &wc, p.mr.Bytes()[256*round:])
			if err != nil || back.DGID != a.gid || back.SGIDIndex != 0 {
				t.Errorf("the way back is %+v, %v", back, err)
			}
		}
	}
	gets(0, all...)
	must(t, c.qp.DetachMcast(group, 0))
	wantErrno(t, "detached twice", c.qp.DetachMcast(group, 0), unix.EINVAL)
	wantErrno(t, "not a group", c.qp.AttachMcast(b.gid, 0), unix.EINVAL)
	wantErrno(t, "a queue pair of a group", b.qp.Destroy(), unix.EBUSY)
	gets(1, a, b)
	for _, p := range all {
		p.none()
	}
	must(t, b.qp.DetachMcast(group, 0))
	must(t, b.qp.Destroy())
	rc := start(t, nil).open(t, shape{})
	wantErrno(t, "RC", rc.qp.AttachMcast(group, 0), unix.EINVAL)
}

package adapter_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/verbs"
)

// ibv_wr_start(3) to ibv_wr_complete(3): a batch of every operation of an RC
// queue pair runs in order; one that is aborted or refused leaves no trace.
func TestBatchOfRequests(t *testing.T) {
	a, b := pair(t, shape{}, verbs.RCConfig{}, nil)
	for i := range uint64(3) {
		b.recv(i, 4096+int(i)*64, 64)
	}
	fill(a.mr.Bytes()[:1000], 3)
	remote := b.mr.Addr()

	w := a.qp.WRStart()
	w.WRID = 99
	w.RDMAWrite(b.mr.RKey(), remote)
	w.SetInlineData([]byte("never"))
	w.WRAbort()
	w = a.qp.WRStart()
	w.RDMAWrite(b.mr.RKey(), remote)
	w.SetInlineData([]byte("never"))
	w.Send()
	w.SetInlineData(make([]byte, 1000))
	wantErrno(t, "inline data beyond the limit", w.WRComplete(), unix.EINVAL)

	w = a.qp.WRStart()
	w.RDMAWrite(b.mr.RKey(), remote)
	w.SetSGE(a.mr.LKey(), a.mr.Addr(), 1000)
	w.RDMAWrite(b.mr.RKey(), remote+1000)
	w.SetInlineDataList([]byte("in"), []byte("line"))
	w.Send()
	w.SetSGEList([]verbs.SGE{a.mr.SGE(0, 10), a.mr.SGE(20, 10)})
	w.SendImm(0x01020304)
	w.RDMAWriteImm(b.mr.RKey(), remote+2048, 5)
	w.SetSGE(a.mr.LKey(), a.mr.Addr(), 8)
	w.AtomicFetchAdd(b.mr.RKey(), remote+2048, 1)
	w.SetSGE(a.mr.LKey(), a.mr.Addr()+2000, 8)
	w.AtomicCmpSwp(b.mr.RKey(), remote+3072, 0, 7)
	w.SetSGE(a.mr.LKey(), a.mr.Addr()+2008, 8)
	w.WRID, w.Flags = 1, verbs.SendSignaled
	w.RDMARead(b.mr.RKey(), remote)
	w.SetSGE(a.mr.LKey(), a.mr.Addr()+8192, 1006)
	must(t, w.WRComplete())
	a.status(1, verbs.WCSuccess)
	a.none()

	got := a.mr.Bytes()[8192:][:1006]
	if !bytes.Equal(got[:1000], a.mr.Bytes()[:1000]) || string(got[1000:]) != "inline" {
		t.Error("what was written and read back differs")
	}
	if wc := b.status(0, verbs.WCSuccess); wc.ByteLen != 20 {
		t.Errorf("SEND of %d bytes", wc.ByteLen)
	}
	if wc := b.status(1, verbs.WCSuccess); wc.ByteLen != 0 || wc.ImmData != 0x01020304 {
		t.Errorf("SEND with immediate: %+v", wc)
	}
	if wc := b.status(2, verbs.WCSuccess); wc.Opcode != verbs.WCRecvRDMAWithImm || wc.ImmData != 5 {
		t.Errorf("WRITE with immediate: %+v", wc)
	}
	b.none()
	first := binary.NativeEndian.Uint64(a.mr.Bytes())
	if v := binary.NativeEndian.Uint64(b.mr.Bytes()[2048:]); v != first+1 || binary.NativeEndian.Uint64(a.mr.Bytes()[2000:]) != first {
		t.Errorf("fetch-and-add left %d of %d", v, first)
	}
	if v := binary.NativeEndian.Uint64(b.mr.Bytes()[3072:]); v != 7 {
		t.Errorf("compare-and-swap left %d", v)
	}
}

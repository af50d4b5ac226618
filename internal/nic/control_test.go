package nic

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
)

// A rawClient speaks the control protocol with no library in between.
type rawClient struct {
	t   testing.TB
	c   *shm.Conn
	seq uint32
}

// An answer is a reply taken apart. Its descriptors are closed with the test.
type answer struct {
	errno syscall.Errno
	text  string
	body  []byte
	fds   []int
}

// send sends one request and reads the reply.
func (r *rawClient) send(h uapi.Header, body uapi.Body, fds ...int) answer {
	r.t.Helper()
	r.seq++
	h.Seq = r.seq
	return r.sendBytes(uapi.AppendMessage(nil, h, body), fds...)
}

func (r *rawClient) sendBytes(msg []byte, fds ...int) answer {
	r.t.Helper()
	if err := r.c.Send(msg, fds); err != nil {
		r.t.Fatal(err)
	}
	buf := make([]byte, shm.MaxMessage)
	n, got, err := r.c.Recv(buf)
	if err != nil {
		r.t.Fatalf("no reply: %v", err)
	}
	r.t.Cleanup(func() { shm.CloseFDs(got) })
	h, rest, err := uapi.DecodeHeader(buf[:n])
	if err != nil {
		r.t.Fatal(err)
	}
	a := answer{errno: syscall.Errno(h.Errno), body: rest, fds: got}
	if h.Errno != 0 {
		a.text, a.body = uapi.DecodeError(rest), nil
	}
	return a
}

func (r *rawClient) call(op uapi.Op, body uapi.Body, fds ...int) answer {
	r.t.Helper()
	return r.send(uapi.Header{Op: op, Version: uapi.Version}, body, fds...)
}

// must calls and decodes a reply that has to be a success.
func must[T any, P decoder[T]](r *rawClient, op uapi.Op, body uapi.Body, fds ...int) T {
	r.t.Helper()
	a := r.call(op, body, fds...)
	if a.errno != 0 {
		r.t.Fatalf("%v: %v: %s", op, a.errno, a.text)
	}
	var rep T
	if err := P(&rep).Decode(a.body); err != nil {
		r.t.Fatalf("%v: reply: %v", op, err)
	}
	return rep
}

func rawConn(t testing.TB, a *Adapter) *rawClient {
	t.Helper()
	c, _ := connect(t, a)
	return &rawClient{t: t, c: c}
}

// rawHello connects a client that has said hello.
func rawHello(t testing.TB, a *Adapter) *rawClient {
	t.Helper()
	r := rawConn(t, a)
	must[uapi.HelloReply](r, uapi.OpHello, &uapi.HelloRequest{Version: uapi.Version, Program: "raw"})
	return r
}

func (r *rawClient) pd() uint32 {
	r.t.Helper()
	return must[uapi.HandleReply](r, uapi.OpAllocPD, nil).Handle
}

func (r *rawClient) cq(cqe uint32) uint32 {
	r.t.Helper()
	return must[uapi.CreateCQReply](r, uapi.OpCreateCQ, &uapi.CreateCQRequest{CQE: cqe}).Handle
}

func rcRequest(pd, cq uint32) *uapi.CreateQPRequest {
	return &uapi.CreateQPRequest{
		PD: pd, SendCQ: cq, RecvCQ: cq, Type: qpstate.RC,
		Cap: qpstate.Cap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
	}
}

func (r *rawClient) qp(pd, cq uint32) uapi.CreateQPReply {
	r.t.Helper()
	return must[uapi.CreateQPReply](r, uapi.OpCreateQP, rcRequest(pd, cq))
}

// wantRefusal checks the errno and that the text says each of words.
func (r *rawClient) wantRefusal(a answer, errno syscall.Errno, words ...string) {
	r.t.Helper()
	if a.errno != errno {
		r.t.Errorf("got %v (%q), want %v", a.errno, a.text, errno)
	}
	for _, w := range words {
		if !strings.Contains(a.text, w) {
			r.t.Errorf("%q does not say %q", a.text, w)
		}
	}
}

func TestHelloGivesTheDevice(t *testing.T) {
	a := startAdapter(t, func(c *Config) { c.Name, c.Workers = "nic7", 3 })
	r := rawConn(t, a)
	got := r.call(uapi.OpHello, &uapi.HelloRequest{Version: uapi.Version, Program: "raw"})
	var rep uapi.HelloReply
	if err := rep.Decode(got.body); got.errno != 0 || err != nil {
		t.Fatal(got.errno, got.text, err)
	}
	if rep.Name != "nic7" || rep.Workers != 3 || rep.Limits.MaxCQE != 1<<20 {
		t.Errorf("hello says %+v", rep)
	}
	if want := 3 + 3; len(got.fds) != want {
		t.Fatalf("%d descriptors, want %d", len(got.fds), want)
	}
	// The status page must not be writable for a program.
	if _, err := shm.Map(got.fds[0], false); err == nil {
		t.Error("a program could map the status page for writing")
	}
	page, err := shm.Map(got.fds[0], true)
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	if st, err := uapi.NewStatusPage(page); err != nil || st.Closing() {
		t.Errorf("status page: %v, closing %v", err, err == nil && st.Closing())
	}
}

// A version that is not ours is refused with both versions named.
func TestVersionHandshake(t *testing.T) {
	a := startAdapter(t, nil)
	both := []string{fmt.Sprintf("version %d of", uapi.Version+1), fmt.Sprintf("adapter version %d", uapi.Version)}
	t.Run("in the hello", func(t *testing.T) {
		r := rawConn(t, a)
		r.wantRefusal(r.call(uapi.OpHello, &uapi.HelloRequest{Version: uapi.Version + 1}), syscall.EPROTONOSUPPORT, both...)
	})
	t.Run("in the header", func(t *testing.T) {
		r := rawConn(t, a)
		got := r.send(uapi.Header{Op: uapi.OpHello, Version: uapi.Version + 1}, &uapi.HelloRequest{Version: uapi.Version})
		r.wantRefusal(got, syscall.EPROTONOSUPPORT, both...)
	})
	t.Run("later", func(t *testing.T) {
		r := rawHello(t, a)
		got := r.send(uapi.Header{Op: uapi.OpAllocPD, Version: uapi.Version + 1}, nil)
		r.wantRefusal(got, syscall.EPROTONOSUPPORT, both...)
		r.pd() // the connection lives on
	})
	t.Run("no hello", func(t *testing.T) {
		r := rawConn(t, a)
		r.wantRefusal(r.call(uapi.OpAllocPD, nil), syscall.EINVAL, "first request must be hello")
	})
	t.Run("twice", func(t *testing.T) {
		r := rawHello(t, a)
		r.wantRefusal(r.call(uapi.OpHello, &uapi.HelloRequest{Version: uapi.Version}), syscall.EINVAL, "already")
	})
}

// The manual pages of the destroy verbs: what is in use cannot be destroyed, and no refusal
// changes anything.
func TestDestroyOrder(t *testing.T) {
	a := startAdapter(t, nil)
	r := rawHello(t, a)
	pd := r.pd()
	ch := must[uapi.HandleReply](r, uapi.OpCreateChannel, nil).Handle
	cq := must[uapi.CreateCQReply](r, uapi.OpCreateCQ, &uapi.CreateCQRequest{CQE: 10, Channel: ch}).Handle
	qp := r.qp(pd, cq).Handle
	mr := r.sharedMR(pd, 4096)
	del := func(op uapi.Op, handle uint32) answer {
		t.Helper()
		return r.call(op, &uapi.HandleRequest{Handle: handle})
	}
	r.wantRefusal(del(uapi.OpDeallocPD, pd), syscall.EBUSY, "2 objects in it")
	r.wantRefusal(del(uapi.OpDestroyCQ, cq), syscall.EBUSY, "queue pairs")
	r.wantRefusal(del(uapi.OpDestroyChannel, ch), syscall.EBUSY, "1 completion queues")
	for _, step := range []struct {
		op     uapi.Op
		handle uint32
	}{{uapi.OpDestroyQP, qp}, {uapi.OpDestroyCQ, cq}, {uapi.OpDestroyChannel, ch}, {uapi.OpDeregMR, mr.Handle}, {uapi.OpDeallocPD, pd}} {
		if got := del(step.op, step.handle); got.errno != 0 {
			t.Fatalf("%v: %v: %s", step.op, got.errno, got.text)
		}
		r.wantRefusal(del(step.op, step.handle), syscall.EINVAL, "has the handle")
	}
	use := a.ledger.usage()
	for _, res := range []Resource{ResourcePDs, ResourceMRs, ResourceCQs, ResourceQPs, ResourceChannels, ResourceMappings, ResourceRegisteredBytes, ResourceMappedBytes} {
		if use[res] != 0 {
			t.Errorf("%d %v still booked", use[res], res)
		}
	}
}

// memfd makes a memory file, sealed against shrinking or not.
func memfd(t testing.TB, size int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if seals != 0 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
	}
	return fd
}

func (r *rawClient) sharedMR(pd uint32, n uint64) uapi.RegMRReply {
	r.t.Helper()
	fd := memfd(r.t, int64(n), unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	return must[uapi.RegMRReply](r, uapi.OpRegMR, &uapi.RegMRRequest{
		PD: pd, Kind: uapi.MRShared, Length: n, IOVA: 0x10000, Access: mrtable.AccessLocalWrite | mrtable.AccessRemoteWrite,
	}, fd)
}

func TestRegMRBadInput(t *testing.T) {
	a := startAdapter(t, func(c *Config) { c.Limits.Program = Quota{RegisteredBytes: 1 << 20, MappedBytes: 1 << 20} })
	r := rawHello(t, a)
	pd := r.pd()
	const sealed = unix.F_SEAL_SHRINK
	ok := uapi.RegMRRequest{PD: pd, Kind: uapi.MRShared, Length: 4096, Access: mrtable.AccessLocalWrite}
	with := func(f func(*uapi.RegMRRequest)) *uapi.RegMRRequest { m := ok; f(&m); return &m }
	same := func(*uapi.RegMRRequest) {}
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(socket)
	tests := []struct {
		name  string
		req   *uapi.RegMRRequest
		fds   []int
		errno syscall.Errno
		words []string
	}{
		{"no descriptor", with(same), nil, syscall.EINVAL, []string{"needs the descriptor"}},
		{"two descriptors", with(same), []int{memfd(t, 4096, sealed), memfd(t, 4096, sealed)}, syscall.EINVAL, []string{"2 descriptors", "at most 1"}},
		{"not sealed: could be truncated", with(same), []int{memfd(t, 4096, 0)}, syscall.EINVAL, []string{"F_SEAL_SHRINK"}},
		{"no memory file", with(same), []int{socket}, syscall.EINVAL, []string{"F_SEAL_SHRINK"}},
		{"past the end", with(func(m *uapi.RegMRRequest) { m.Offset = 1 }), []int{memfd(t, 4096, sealed)}, syscall.EINVAL, []string{"4096"}},
		{"offset wraps", with(func(m *uapi.RegMRRequest) { m.Offset = ^uint64(0) }), []int{memfd(t, 4096, sealed)}, syscall.EINVAL, nil},
		{"iova wraps", with(func(m *uapi.RegMRRequest) { m.IOVA = ^uint64(0) }), []int{memfd(t, 4096, sealed)}, syscall.EINVAL, []string{"wraps"}},
		{"remote write without local write", with(func(m *uapi.RegMRRequest) { m.Access = mrtable.AccessRemoteWrite }), []int{memfd(t, 4096, sealed)}, syscall.EINVAL, []string{"local write"}},
		{"unknown access", with(func(m *uapi.RegMRRequest) { m.Access = 1 << 15 }), []int{memfd(t, 4096, sealed)}, syscall.EINVAL, []string{"0x8000"}},
		{"no such PD", with(func(m *uapi.RegMRRequest) { m.PD = 99 }), []int{memfd(t, 4096, sealed)}, syscall.EINVAL, []string{"protection domain", "99"}},
		{"unknown kind", with(func(m *uapi.RegMRRequest) { m.Kind = 9 }), nil, syscall.EINVAL, []string{"kind 9"}},
		{"registered bytes", with(func(m *uapi.RegMRRequest) { m.Length = 2 << 20 }), []int{memfd(t, 2<<20, sealed)}, syscall.ENOMEM, []string{"registered bytes", "limit 1048576"}},
		{"huge file", with(same), []int{memfd(t, 1<<40, sealed)}, syscall.ENOMEM, []string{"mapped bytes", "limit 1048576"}},
		{"foreign with descriptor", with(func(m *uapi.RegMRRequest) { m.Kind = uapi.MRForeign }), []int{memfd(t, 4096, sealed)}, syscall.EINVAL, []string{"no descriptor"}},
		{"foreign, nothing mapped", with(func(m *uapi.RegMRRequest) { m.Kind, m.Addr = uapi.MRForeign, 0x1000 }), nil, syscall.EFAULT, []string{"0x1000"}},
		{"foreign, wraps", with(func(m *uapi.RegMRRequest) { m.Kind, m.Addr = uapi.MRForeign, ^uint64(0)-5 }), nil, syscall.EINVAL, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r.wantRefusal(r.call(uapi.OpRegMR, tt.req, tt.fds...), tt.errno, tt.words...)
		})
	}
	// None of it left anything behind, and a good one still passes.
	if use := a.ledger.usage(); use[ResourceMRs] != 0 || use[ResourceMappings] != 0 || use[ResourceMappedBytes] != 0 || use[ResourceRegisteredBytes] != 0 {
		t.Errorf("booked after refusals: %v", use)
	}
	if n := a.keys.Len(); n != 0 {
		t.Errorf("%d keys after refusals", n)
	}
	r.sharedMR(pd, 4096)
}

// Regions in one memory file share one mapping.
func TestRegionsOfOneFileShareItsMapping(t *testing.T) {
	a := startAdapter(t, nil)
	r := rawHello(t, a)
	pd := r.pd()
	fd := memfd(t, 1<<20, unix.F_SEAL_SHRINK)
	var mrs []uint32
	keys := map[mrtable.LKey]bool{}
	for i := range uint64(16) {
		rep := must[uapi.RegMRReply](r, uapi.OpRegMR, &uapi.RegMRRequest{
			PD: pd, Kind: uapi.MRShared, Offset: i << 16, Length: 1 << 16, IOVA: i << 16, Access: mrtable.AccessLocalWrite,
		}, fd)
		mrs = append(mrs, rep.Handle)
		keys[rep.LKey] = true
	}
	if use := a.ledger.usage(); use[ResourceMappings] != 1 || use[ResourceMappedBytes] != 1<<20 || use[ResourceRegisteredBytes] != 1<<20 {
		t.Errorf("booked: %d files of %d bytes for %d registered", use[ResourceMappings], use[ResourceMappedBytes], use[ResourceRegisteredBytes])
	}
	if len(keys) != len(mrs) {
		t.Errorf("%d keys for %d regions", len(keys), len(mrs))
	}
	for _, h := range mrs {
		must[uapi.Empty](r, uapi.OpDeregMR, &uapi.HandleRequest{Handle: h})
	}
	if use := a.ledger.usage(); use[ResourceMappings] != 0 {
		t.Errorf("%d files mapped after the last region went", use[ResourceMappings])
	}
}

func TestCreateBadInput(t *testing.T) {
	a := startAdapter(t, func(c *Config) { c.Limits = Limits{MaxCQE: 1024, MaxSendWR: 256, MaxSGE: 4, MaxInline: 128} })
	r := rawHello(t, a)
	pd, cq := r.pd(), r.cq(16)
	qp := func(f func(*uapi.CreateQPRequest)) *uapi.CreateQPRequest { m := rcRequest(pd, cq); f(m); return m }
	tests := []struct {
		name  string
		op    uapi.Op
		req   uapi.Body
		errno syscall.Errno
		words []string
	}{
		{"cqe 0", uapi.OpCreateCQ, &uapi.CreateCQRequest{}, syscall.EINVAL, []string{"cqe 0", "max_cqe 1024"}},
		{"cqe over", uapi.OpCreateCQ, &uapi.CreateCQRequest{CQE: 1025}, syscall.EINVAL, []string{"cqe 1025", "max_cqe 1024"}},
		{"vector", uapi.OpCreateCQ, &uapi.CreateCQRequest{CQE: 1, Vector: uint32(len(a.workers))}, syscall.EINVAL, []string{fmt.Sprint("comp_vector ", len(a.workers))}},
		{"channel", uapi.OpCreateCQ, &uapi.CreateCQRequest{CQE: 1, Channel: 5}, syscall.EINVAL, []string{"completion channel", "5"}},
		{"type GSI", uapi.OpCreateQP, qp(func(m *uapi.CreateQPRequest) { m.Type = qpstate.GSI }), syscall.EOPNOTSUPP, []string{"qp_type GSI"}},
		{"type nonsense", uapi.OpCreateQP, qp(func(m *uapi.CreateQPRequest) { m.Type = 77 }), syscall.EOPNOTSUPP, []string{"qp_type"}},
		{"SRQ", uapi.OpCreateQP, qp(func(m *uapi.CreateQPRequest) { m.SRQ = 1 }), syscall.EINVAL, []string{"shared receive queue", "handle 1"}},
		{"PD", uapi.OpCreateQP, qp(func(m *uapi.CreateQPRequest) { m.PD = 0 }), syscall.EINVAL, []string{"protection domain", "0"}},
		{"send CQ", uapi.OpCreateQP, qp(func(m *uapi.CreateQPRequest) { m.SendCQ = 9 }), syscall.EINVAL, []string{"send_cq", "9"}},
		{"recv CQ", uapi.OpCreateQP, qp(func(m *uapi.CreateQPRequest) { m.RecvCQ = 9 }), syscall.EINVAL, []string{"recv_cq", "9"}},
		{"send WRs", uapi.OpCreateQP, qp(func(m *uapi.CreateQPRequest) { m.Cap.MaxSendWR = 257 }), syscall.EINVAL, []string{"max_send_wr 257", "256"}},
		{"receive WRs", uapi.OpCreateQP, qp(func(m *uapi.CreateQPRequest) { m.Cap.MaxRecvWR = ^uint32(0) }), syscall.EINVAL, []string{"max_recv_wr"}},
		{"SGEs", uapi.OpCreateQP, qp(func(m *uapi.CreateQPRequest) { m.Cap.MaxSendSGE = 5 }), syscall.EINVAL, []string{"max_send_sge 5", "4"}},
		{"inline", uapi.OpCreateQP, qp(func(m *uapi.CreateQPRequest) { m.Cap.MaxInlineData = 129 }), syscall.EINVAL, []string{"max_inline_data 129", "128"}},
		{"unknown operation", 999, nil, syscall.EOPNOTSUPP, []string{"op 999"}},
		{"body too short", uapi.OpCreateCQ, &uapi.HandleRequest{}, syscall.EINVAL, []string{"malformed"}},
		{"body too long", uapi.OpAllocPD, &uapi.HandleRequest{}, syscall.EINVAL, []string{"too many"}},
		{"port", uapi.OpQueryPort, &uapi.QueryPortRequest{Port: 2}, syscall.EINVAL, []string{"port 2"}},
		{"modify no QP", uapi.OpModifyQP, &uapi.ModifyQPRequest{Handle: 3}, syscall.EINVAL, []string{"queue pair", "3"}},
		{"query no QP", uapi.OpQueryQP, &uapi.HandleRequest{Handle: 3}, syscall.EINVAL, []string{"queue pair", "3"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { r.wantRefusal(r.call(tt.op, tt.req), tt.errno, tt.words...) })
	}
	if use := a.ledger.usage(); use[ResourceQPs] != 0 || use[ResourceCQs] != 1 {
		t.Errorf("booked after refusals: %d QPs, %d CQs", use[ResourceQPs], use[ResourceCQs])
	}
	rep := r.qp(pd, cq)
	if rep.Cap.MaxSendWR < 4 || rep.SQ.Slots != rep.Cap.MaxSendWR || int(rep.QPN&7)%2 != int(rep.Worker) {
		t.Errorf("created %+v", rep)
	}
}

// Every resource's limit is an ENOMEM that names it; after one is given back
// the next creation succeeds.
func TestLimitsNameThemselves(t *testing.T) {
	a := startAdapter(t, func(c *Config) {
		c.Limits.Program = Quota{PDs: 2, MRs: 1, CQs: 2, QPs: 2, Channels: 1, RingBytes: 4 << 20}
	})
	r := rawHello(t, a)
	pd, cq := r.pd(), r.cq(1)
	r.pd()
	r.cq(1)
	r.wantRefusal(r.call(uapi.OpAllocPD, nil), syscall.ENOMEM, "protection domains of this program", "limit 2")
	r.wantRefusal(r.call(uapi.OpCreateCQ, &uapi.CreateCQRequest{CQE: 1}), syscall.ENOMEM, "completion queues of this program", "limit 2")
	must[uapi.HandleReply](r, uapi.OpCreateChannel, nil)
	r.wantRefusal(r.call(uapi.OpCreateChannel, nil), syscall.ENOMEM, "completion channels of this program", "limit 1")
	r.sharedMR(pd, 4096)
	got := r.call(uapi.OpRegMR, &uapi.RegMRRequest{PD: pd, Kind: uapi.MRShared, Length: 1}, memfd(t, 4096, unix.F_SEAL_SHRINK))
	r.wantRefusal(got, syscall.ENOMEM, "memory regions of this program", "limit 1")
	big := rcRequest(pd, cq)
	big.Cap.MaxSendWR = 32768
	big.Cap.MaxSendSGE = 32
	r.wantRefusal(r.call(uapi.OpCreateQP, big), syscall.ENOMEM, "ring bytes of this program")
	r.qp(pd, cq)
	q := r.qp(pd, cq)
	r.wantRefusal(r.call(uapi.OpCreateQP, rcRequest(pd, cq)), syscall.ENOMEM, "queue pairs of this program", "limit 2")
	must[uapi.DestroyReply](r, uapi.OpDestroyQP, &uapi.HandleRequest{Handle: q.Handle})
	if again := r.qp(pd, cq); again.DoorbellIndex != q.DoorbellIndex || again.QPN == q.QPN {
		t.Errorf("after a destroy: index %d then %d (want the same), QPN %v then %v (want another)", q.DoorbellIndex, again.DoorbellIndex, q.QPN, again.QPN)
	}
}

// QPs that share a CQ share its worker (docs/architecture.md, Workers); others spread.
func TestQPsFollowTheirCQ(t *testing.T) {
	a := startAdapter(t, func(c *Config) { c.Workers = 4 })
	r := rawHello(t, a)
	pd, shared := r.pd(), r.cq(64)
	first := r.qp(pd, shared)
	for range 7 {
		if got := r.qp(pd, shared); got.Worker != first.Worker {
			t.Fatalf("a QP of the same CQ is on worker %d, the first on %d", got.Worker, first.Worker)
		}
	}
	seen := map[uint32]bool{}
	for range 3 {
		seen[r.qp(pd, r.cq(4)).Worker] = true
	}
	if len(seen) != 3 || seen[first.Worker] {
		t.Errorf("QPs with CQs of their own are on workers %v, want the three idle ones (not %d)", seen, first.Worker)
	}
}

// Field case F43: a modify to RTR without GRH, or with an index outside the
// GID table, is EINVAL and names the field.
func TestF43ModifyNamesTheField(t *testing.T) {
	a := startAdapter(t, nil)
	r := rawHello(t, a)
	pd := r.pd()
	qp := r.qp(pd, r.cq(4)).Handle
	must[uapi.ModifyQPReply](r, uapi.OpModifyQP, &uapi.ModifyQPRequest{
		Handle: qp, Mask: qpstate.MaskState | qpstate.MaskPKeyIndex | qpstate.MaskPort | qpstate.MaskAccessFlags,
		Attr: qpstate.Attr{State: qpstate.Init, PortNum: 1},
	})
	gid, _, _ := a.gid(0)
	rtr := qpstate.Attr{
		State: qpstate.RTR, PathMTU: bth.MTU1024, DestQPN: 17, MinRNRTimer: 12, MaxDestRDAtomic: 1,
		AH: qpstate.AHAttr{DGID: gid, IsGlobal: true, PortNum: 1},
	}
	const mask = qpstate.MaskState | qpstate.MaskAV | qpstate.MaskPathMTU | qpstate.MaskDestQPN | qpstate.MaskRQPSN |
		qpstate.MaskMaxDestRDAtomic | qpstate.MaskMinRNRTimer
	v6 := bth.GID{0xfd, 15: 1}
	tests := []struct {
		name  string
		mask  qpstate.Mask
		f     func(*qpstate.Attr)
		words []string
	}{
		{"no GRH", mask, func(a *qpstate.Attr) { a.AH.IsGlobal = false }, []string{"is_global"}},
		{"sgid_index", mask, func(a *qpstate.Attr) { a.AH.SGIDIndex = 1 }, []string{"sgid_index 1: the GID table of", "has 0 ("}},
		{"port", mask, func(a *qpstate.Attr) { a.AH.PortNum = 2 }, []string{"port_num is 2"}},
		{"path MTU", mask, func(a *qpstate.Attr) { a.PathMTU = 6 }, []string{"path_mtu is 6"}},
		{"missing attribute", mask &^ qpstate.MaskDestQPN, func(*qpstate.Attr) {}, []string{"dest_qp_num"}},
		{"extra attribute", mask | qpstate.MaskTimeout, func(*qpstate.Attr) {}, []string{"timeout"}},
		{"max_dest_rd_atomic", mask, func(a *qpstate.Attr) { a.MaxDestRDAtomic = 200 }, []string{"max_dest_rd_atomic is 200", "128"}},
		{"peer of another family", mask, func(a *qpstate.Attr) { a.AH.DGID = v6 }, []string{"fd00::1", "address family"}},
		{"no peer", mask, func(a *qpstate.Attr) { a.AH.DGID = bth.GID{} }, []string{"dgid"}},
		{"nobody's address", mask, func(a *qpstate.Attr) { a.AH.DGID = bth.GIDFromAddr(netip.IPv4Unspecified()) }, []string{"dgid", "0.0.0.0"}},
		{"everybody's address", mask, func(a *qpstate.Attr) { a.AH.DGID = bth.GIDFromAddr(netip.MustParseAddr("255.255.255.255")) }, []string{"dgid"}},
		{"access flags", mask | qpstate.MaskAccessFlags, func(a *qpstate.Attr) { a.AccessFlags = 1 << 14 }, []string{"qp_access_flags"}},
		{"no such transition", mask, func(a *qpstate.Attr) { a.State = qpstate.RTS }, []string{"INIT", "RTS"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			attr := rtr
			tt.f(&attr)
			r.wantRefusal(r.call(uapi.OpModifyQP, &uapi.ModifyQPRequest{Handle: qp, Mask: tt.mask, Attr: attr}), syscall.EINVAL, tt.words...)
			q := must[uapi.QueryQPReply](r, uapi.OpQueryQP, &uapi.HandleRequest{Handle: qp})
			if q.Attr.State != qpstate.Init || q.Attr.DestQPN != 0 {
				t.Errorf("a refused modify left state %v, dest_qp_num %v", q.Attr.State, q.Attr.DestQPN)
			}
		})
	}
	if rep := must[uapi.ModifyQPReply](r, uapi.OpModifyQP, &uapi.ModifyQPRequest{Handle: qp, Mask: mask, Attr: rtr}); rep.State != qpstate.RTR {
		t.Errorf("state %v, want RTR", rep.State)
	}
}

// ibv_query_device(3), ibv_query_port(3) and docs/operations.md.
func TestDeviceAndPort(t *testing.T) {
	a := startAdapter(t, nil)
	r := rawHello(t, a)
	d := must[uapi.QueryDeviceReply](r, uapi.OpQueryDevice, nil).Attr
	if d.PhysPortCount != 1 || d.AtomicCap != 1 || d.MaxQPWR < 256 || d.MaxSRQ == 0 || d.MaxAH == 0 || d.NodeGUID == 0 {
		t.Errorf("device %+v", d)
	}
	tun := (&Adapter{cfg: Config{Backend: BackendTUN, Limits: a.cfg.Limits}}).deviceAttr()
	for _, c := range []struct {
		attr uapi.DeviceAttr
		tun  bool
	}{{d, a.cfg.Backend == BackendTUN}, {tun, true}} { // 0: no multicast
		if none := c.attr.MaxMcastGroup == 0 && c.attr.MaxMcastQPAttach == 0 && c.attr.MaxTotalMcastQPAttach == 0; none != c.tun {
			t.Errorf("multicast: on TUN %v, device %+v", c.tun, c.attr)
		}
	}
	// Bit by bit, as programs look at them: windows of type 1 and 2B, fast registration, SRQ resize; no 2A, no XRC.
	if want := uint32(1<<1 | 1<<2 | 1<<7 | 1<<10 | 1<<11 | 1<<12 | 1<<13 | 1<<17 | 1<<21 | 1<<24); d.DeviceCapFlags != want {
		t.Errorf("device_cap_flags %#x, want %#x", d.DeviceCapFlags, want)
	}
	if d.ODPGeneral != 3 || d.ODPRC != 63 || d.ODPUC != 39 || d.ODPUD != 35 || d.MaxMW == 0 {
		t.Errorf("ODP %d, RC %d, UC %d, UD %d; max_mw %d", d.ODPGeneral, d.ODPRC, d.ODPUC, d.ODPUD, d.MaxMW)
	}
	p := must[uapi.QueryPortReply](r, uapi.OpQueryPort, &uapi.QueryPortRequest{Port: 1}).Attr
	if p.LinkLayer != 2 || p.State != 4 || p.ActiveMTU != bth.MTU4096 || p.Flags&1 == 0 || p.LID != 0 {
		t.Errorf("port %+v", p)
	}
	g := must[uapi.QueryGIDTableReply](r, uapi.OpQueryGIDTable, nil).Entries
	if len(g) != 1 || g[0].Index != 0 || g[0].GID.Addr() != a.Addrs()[0] || g[0].Type != uapi.GIDTypeRoCEv2 || g[0].IfIndex == 0 {
		t.Errorf("GID table %+v, address %v", g, a.Addrs())
	}
}

func TestGUIDsDiffer(t *testing.T) {
	a, b := startAdapter(t, nil), startAdapter(t, nil)
	if a.guid == b.guid {
		t.Errorf("adapters on %v and %v both have the GUID %#x", a.Addrs(), b.Addrs(), a.guid)
	}
	if byte(a.guid>>56)&2 != 0 {
		t.Errorf("GUID %#x: not a locally administered EUI-64", a.guid)
	}
}

// A channel never has more queues than its pipe takes records, whatever has
// been read of it: with room queues, each with one record unread, every write
// passes.
func TestChannelPipeCannotFill(t *testing.T) {
	w, fd, err := shm.NewRecordPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer unix.Close(fd)
	room := channelRoom(fd)
	if room < 500 {
		t.Fatalf("room for %d queues only", room)
	}
	ch := channel{pipe: w}
	unread := 0
	for i := range 3 * room {
		if unread == room {
			if n, err := unix.Read(fd, make([]byte, uapi.ChannelRecordSize)); n != uapi.ChannelRecordSize || err != nil {
				t.Fatalf("read %d bytes, %v", n, err)
			}
			unread--
		}
		if !ch.post(uint32(i)) {
			t.Fatalf("record %d refused with %d unread of %d", i, unread, room)
		}
		unread++
	}

	a := startAdapter(t, nil)
	r := rawHello(t, a)
	h := must[uapi.HandleReply](r, uapi.OpCreateChannel, nil).Handle
	for range room {
		must[uapi.CreateCQReply](r, uapi.OpCreateCQ, &uapi.CreateCQRequest{CQE: 1, Channel: h})
	}
	r.wantRefusal(r.call(uapi.OpCreateCQ, &uapi.CreateCQRequest{CQE: 1, Channel: h}), syscall.ENOMEM, "completion channel", fmt.Sprint(room))
}

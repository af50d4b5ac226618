package nic

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/wq"
)

// exchange sends one message, whatever it is, and reads the answer. false
// when the adapter hung up. A reply must decode and repeat op and seq of what
// had a header.
func exchange(t testing.TB, c *shm.Conn, msg []byte, fds []int) bool {
	t.Helper()
	if err := c.Send(msg, fds); err != nil {
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
			return false
		}
		t.Fatalf("send of %d bytes: %v", len(msg), err)
	}
	buf := make([]byte, shm.MaxMessage)
	n, got, err := c.Recv(buf)
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return false
	}
	if err != nil {
		t.Fatalf("receive: %v", err)
	}
	shm.CloseFDs(got)
	h, body, err := uapi.DecodeHeader(buf[:n])
	if err != nil {
		t.Fatalf("the reply to % x does not decode: %v", msg, err)
	}
	if req, _, err := uapi.DecodeHeader(msg); err == nil && (req.Seq != h.Seq || req.Op != h.Op) {
		t.Fatalf("request %v %d was answered as %v %d", req.Op, req.Seq, h.Op, h.Seq)
	}
	if h.Errno != 0 && uapi.DecodeError(body) == "" {
		t.Fatalf("errno %d without a word to %v", h.Errno, h.Op)
	}
	return true
}

func helloMessage() []byte {
	return uapi.AppendMessage(nil, uapi.Header{Op: uapi.OpHello, Version: uapi.Version}, &uapi.HelloRequest{Version: uapi.Version})
}

// A hostile is a source of requests that are nearly right: handles that often
// exist, attributes that are often legal, and bytes flipped now and then.
type hostile struct {
	*rand.Rand
	gid bth.GID
	fds []int
}

func (h *hostile) handle() uint32 { return h.Uint32N(5) }

func (h *hostile) pick(vs ...uint64) uint64 { return vs[h.IntN(len(vs))] }

func (h *hostile) attr() qpstate.Attr {
	small := func() uint8 { return uint8(h.UintN(9)) }
	a := qpstate.Attr{
		State: qpstate.State(small()), CurState: qpstate.State(small()), PathMTU: bth.MTU(small()), PortNum: 1,
		RQPSN: bth.PSN(h.Uint32()), SQPSN: bth.PSN(h.Uint32()), DestQPN: bth.QPN(h.Uint32()), AccessFlags: h.Uint32N(16),
		MaxRDAtomic: small(), MaxDestRDAtomic: small(), MinRNRTimer: small(), Timeout: small(), RetryCnt: small(), RNRRetry: small(),
		AH: qpstate.AHAttr{DGID: h.gid, IsGlobal: true, PortNum: 1, SGIDIndex: uint8(h.pick(0, 0, 0, 1, 255))},
	}
	return a
}

func (h *hostile) srqAttr() uapi.SRQAttr {
	n := func() uint32 { return uint32(h.pick(0, 1, 3, 16, 1<<15, 1<<32-1)) }
	return uapi.SRQAttr{MaxWR: n(), MaxSGE: n(), Limit: n()}
}

// group is one of some groups, or none.
func (h *hostile) group() bth.GID {
	g := h.gid
	if h.IntN(8) > 0 {
		g[12], g[15] = 239, byte(h.UintN(3))
	}
	return g
}

func (h *hostile) mask(a *qpstate.Attr) qpstate.Mask {
	const rtr = qpstate.MaskState | qpstate.MaskAV | qpstate.MaskPathMTU | qpstate.MaskDestQPN | qpstate.MaskRQPSN |
		qpstate.MaskMaxDestRDAtomic | qpstate.MaskMinRNRTimer
	switch {
	case h.IntN(4) == 0:
		return qpstate.Mask(h.Uint32())
	case a.State == qpstate.Init && h.IntN(2) == 0:
		return qpstate.MaskState | qpstate.MaskPKeyIndex | qpstate.MaskPort | qpstate.MaskQKey
	case a.State == qpstate.Init:
		return qpstate.MaskState | qpstate.MaskPKeyIndex | qpstate.MaskPort | qpstate.MaskAccessFlags
	case a.State == qpstate.RTR && h.IntN(2) == 0:
		return qpstate.MaskState
	case a.State == qpstate.RTR:
		return rtr
	case a.State == qpstate.RTS:
		return qpstate.MaskState | qpstate.MaskTimeout | qpstate.MaskRetryCnt | qpstate.MaskRNRRetry | qpstate.MaskSQPSN | qpstate.MaskMaxQPRDAtomic
	}
	return qpstate.MaskState
}

// request makes one request and chooses its descriptors.
func (h *hostile) request() (uapi.Op, uapi.Body, []int) {
	op := uapi.Op(1 + h.UintN(uint(uapi.OpLeaveCM)))
	var fds []int
	body := h.cmRequest(op)
	if body == nil {
		body, fds = h.verbsRequest(op)
	}
	for h.IntN(12) == 0 {
		fds = append(fds, h.fds[h.IntN(len(h.fds))])
	}
	return op, body, fds
}

// verbsRequest makes the body of every other request, and its descriptors.
//
//nolint:exhaustive // 2026-11-30: cmRequest makes the others
func (h *hostile) verbsRequest(op uapi.Op) (body uapi.Body, fds []int) {
	switch op {
	case uapi.OpCreateCQ:
		body = &uapi.CreateCQRequest{CQE: uint32(h.pick(0, 1, 7, 100, 1<<20, 1<<31)), Channel: h.handle() % 2, Vector: h.Uint32N(3)}
	case uapi.OpCreateQP:
		n := func() uint32 { return uint32(h.pick(0, 1, 3, 16, 1<<15, 1<<32-1)) }
		m := rcRequest(1+h.Uint32N(2), 1+h.Uint32N(2))
		m.SQSigAll = h.IntN(2) == 0
		m.Type, m.SRQ = qpstate.Type(h.pick(2, 2, 3, 4, 4)), uint32(h.pick(0, 0, 0, 1, 2))
		if h.IntN(3) == 0 {
			m.Cap = qpstate.Cap{MaxSendWR: n(), MaxRecvWR: n(), MaxSendSGE: n(), MaxRecvSGE: n(), MaxInlineData: n()}
			m.Type, m.SRQ = qpstate.Type(h.UintN(4)), h.handle()%2
		}
		body = m
	case uapi.OpModifyQP:
		m := &uapi.ModifyQPRequest{Handle: h.handle(), Attr: h.attr()}
		m.Mask = h.mask(&m.Attr)
		body = m
	case uapi.OpRegMR:
		body = &uapi.RegMRRequest{
			PD: 1 + h.Uint32N(2), Kind: uapi.MRKind(h.pick(1, 1, 1, 2, 3)), Offset: h.pick(0, 0, 8, 4096, 1<<64-1), Addr: h.Uint64(),
			Length: h.pick(0, 1, 4096, 1<<40, 1<<64-1), IOVA: h.pick(0, 4096, 1<<64-1), Access: mrtable.Access(h.pick(0, 1, 7, 2, 1<<19)),
		}
		fds = []int{h.fds[h.IntN(len(h.fds))]}
	case uapi.OpQueryPort:
		body = &uapi.QueryPortRequest{Port: uint8(h.pick(0, 1, 255))}
	case uapi.OpCreateAH:
		body = &uapi.CreateAHRequest{PD: 1 + h.Uint32N(2), Attr: h.attr().AH}
	case uapi.OpDestroyAH:
		body = &uapi.HandleRequest{Handle: uint32(h.pick(0, 1, 2, 1<<20|1, 1<<20|2, 2<<20|1, 1<<32-1))}
	case uapi.OpCreateSRQ:
		body = &uapi.CreateSRQRequest{PD: 1 + h.Uint32N(2), Attr: h.srqAttr()}
	case uapi.OpModifySRQ:
		body = &uapi.ModifySRQRequest{Handle: h.handle(), Mask: uapi.SRQMask(h.UintN(5)), Attr: h.srqAttr()}
	case uapi.OpAttachMcast, uapi.OpDetachMcast:
		body = &uapi.McastRequest{QP: h.handle(), GID: h.group()}
	case uapi.OpDeallocPD, uapi.OpDeregMR, uapi.OpDestroyChannel, uapi.OpDestroyCQ, uapi.OpQueryQP, uapi.OpDestroyQP,
		uapi.OpQuerySRQ, uapi.OpDestroySRQ, uapi.OpDeallocMW:
		body = &uapi.HandleRequest{Handle: h.handle()}
	case uapi.OpAllocMW:
		body = &uapi.AllocMWRequest{PD: 1 + h.Uint32N(2), Type: mrtable.WindowType(h.UintN(4))}
	case uapi.OpAllocMR:
		body = &uapi.AllocMRRequest{PD: 1 + h.Uint32N(2), MaxPages: uint32(h.pick(0, 1, 16, 512, 513, 1<<32-1))}
	case uapi.OpReregMR:
		m := &uapi.ReregMRRequest{Handle: h.handle(), Flags: uapi.ReregFlags(h.UintN(9)), MR: uapi.RegMRRequest{
			PD: 1 + h.Uint32N(2), Kind: uapi.MRKind(h.pick(1, 1, 2, 3, 4)), Addr: h.pick(0, h.Uint64()),
			Length: h.pick(0, 1, 4096, 1<<40, 1<<64-1), IOVA: h.pick(0, 4096, 1<<64-1), Access: mrtable.Access(h.pick(0, 1, 7, 2, 65)),
		}}
		body = m
		if m.Flags&uapi.ReregTranslation != 0 {
			fds = []int{h.fds[h.IntN(len(h.fds))]}
		}
	case uapi.OpAdviseMR:
		body = &uapi.AdviseMRRequest{
			PD: 1 + h.Uint32N(2), Advice: h.Uint32N(4), Flags: h.Uint32N(3),
			SGList: make([]wq.SGE, h.pick(0, 1, uapi.MaxAdviseSGE, uapi.MaxAdviseSGE+1)),
		}
	case uapi.OpResizeCQ:
		body = &uapi.ResizeCQRequest{Handle: h.handle(), CQE: uint32(h.pick(0, 1, 7, 100, 1<<20, 1<<31))}
	case uapi.OpListResources:
		body = &uapi.ListResourcesRequest{Kind: uapi.ResourceKind(h.UintN(10)), After: h.pick(0, 1, 1<<32|1, h.Uint64())}
	case uapi.OpHello, uapi.OpQueryDevice, uapi.OpQueryGIDTable, uapi.OpAllocPD, uapi.OpCreateChannel, uapi.OpListCounters:
		// A hello has no place here, the others have no body.
	default: // no such operation
	}
	return body, fds
}

func (h *hostile) message(seq uint32) ([]byte, []int) {
	op, body, fds := h.request()
	msg := uapi.AppendMessage(nil, uapi.Header{Op: op, Version: uapi.Version, Seq: seq}, body)
	if h.IntN(5) == 0 {
		msg[h.IntN(len(msg))] ^= 1 << h.UintN(8)
	}
	if h.IntN(40) == 0 {
		msg = msg[:1+h.IntN(len(msg))]
	}
	return msg, fds
}

// Programs that send anything: every message gets an answer or a hang-up, and
// nothing stays behind. They run at the same time.
func TestHostileClients(t *testing.T) {
	a := startAdapter(t, func(c *Config) { c.Limits.Program = Quota{RingBytes: 64 << 20, QPs: 64, CQs: 64, MRs: 64} })
	base := processUsage(t)
	t.Run("clients", func(t *testing.T) {
		files := []int{
			memfd(t, 1<<20, unix.F_SEAL_SHRINK), memfd(t, 1<<20, 0), memfd(t, 0, unix.F_SEAL_SHRINK),
			memfd(t, 1<<45, unix.F_SEAL_SHRINK), memfd(t, 4096, unix.F_SEAL_SHRINK|unix.F_SEAL_WRITE),
		}
		gid, _, _ := a.gid(0)
		var wg sync.WaitGroup
		for i := range uint64(4) {
			h := &hostile{Rand: rand.New(rand.NewPCG(i, 77)), gid: gid, fds: files}
			wg.Go(func() {
				for range 30 {
					h.session(t, a, 80)
				}
			})
		}
		wg.Wait()
	})
	returnsTo(t, base)
	wantNothingLeft(t, a)
	s := a.Snapshot().Control
	if s.Requests < 4000 || s.Refused == 0 || s.Refused == s.Requests {
		t.Errorf("%d requests, %d refused: the generator is no good", s.Requests, s.Refused)
	}
}

// session is one connection's life.
func (h *hostile) session(t testing.TB, a *Adapter, messages int) {
	ours, theirs, err := shm.Socketpair()
	if err != nil {
		t.Error(err)
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.ServeConn(theirs)
	}()
	if h.IntN(10) > 0 {
		exchange(t, ours, helloMessage(), nil)
	}
	for i := range messages {
		msg, fds := h.message(uint32(i))
		if !exchange(t, ours, msg, fds) {
			break
		}
	}
	_ = ours.Close() // the adapter may have been first
	<-done
}

// fuzzAdapter is one adapter for all runs of a fuzzing process.
var fuzzAdapter struct {
	once sync.Once
	a    *Adapter
}

// FuzzServeConn feeds the control plane with messages that the fuzzer writes:
// each is a length (2 bytes), a number of descriptors (1 byte) and that many
// bytes, the header included.
func FuzzServeConn(f *testing.F) {
	add := func(msgs ...[]byte) {
		var in []byte
		for _, m := range msgs {
			in = binary.LittleEndian.AppendUint16(in, uint16(len(m)))
			in = append(in, 0)
			in = append(in, m...)
		}
		f.Add(in)
	}
	h := &hostile{Rand: rand.New(rand.NewPCG(1, 1)), fds: []int{0}}
	for range 60 {
		var msgs [][]byte
		msgs = append(msgs, helloMessage())
		for i := range uint32(12) {
			m, _ := h.message(i)
			msgs = append(msgs, m)
		}
		add(msgs...)
	}
	add([]byte{1}, make([]byte, 16))
	f.Fuzz(func(t *testing.T, in []byte) {
		fuzzAdapter.once.Do(func() { fuzzAdapter.a = fuzzingAdapter(t) })
		a := fuzzAdapter.a
		fd := memfd(t, 1<<16, unix.F_SEAL_SHRINK)
		ours, theirs, err := shm.Socketpair()
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.ServeConn(theirs)
		}()
		for len(in) > 3 {
			n := min(int(binary.LittleEndian.Uint16(in)), len(in)-3)
			var fds []int
			for range in[2] % 7 {
				fds = append(fds, fd)
			}
			msg := in[3 : 3+n]
			in = in[3+n:]
			if n > 0 && !exchange(t, ours, msg, fds) {
				break
			}
		}
		_ = ours.Close() // the adapter may have been first
		<-done
		wantNothingLeft(t, a)
	})
}

// fuzzingAdapter is an adapter that outlives the run that made it.
func fuzzingAdapter(t *testing.T) *Adapter {
	t.Helper()
	var a *Adapter
	var err error
	// The address stays taken by the adapter's own lock.
	t.Run("start", func(t *testing.T) {
		a, err = New(Config{
			Addrs: testaddr.Take(t, 1), Workers: 1, RecvBuffer: 212992,
			Limits: Limits{Program: Quota{RingBytes: 16 << 20, QPs: 16, CQs: 16, MRs: 16, RegisteredBytes: 1 << 30, MappedBytes: 1 << 30}},
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

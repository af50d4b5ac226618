package transport_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/simnet"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// Cases from the field that the engine alone can show. More of each stands in
// the scenarios, which name the same ids.

// inject gives e a packet crafted from a line, as its peer would send it.
func inject(e *end, now time.Time, line string) transport.Verdict {
	e.t.Helper()
	b, err := craft(line, uint32(e.mr.RKey()))
	if err != nil {
		e.t.Fatal(err)
	}
	return e.handle(now, b, gid4(2))
}

func wantTexts(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %s\nwant %s", what, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

// noteOf returns the events of a kind that wait.
func noteOf(e *end, k transport.EventKind) (out []transport.Event) {
	for ev, ok := e.qp.PollEvent(); ok; ev, ok = e.qp.PollEvent() {
		if ev.Kind == k {
			out = append(out, ev)
		}
	}
	return out
}

// TestF5_RangeThatWraps: addresses whose sum with the length wraps, at READ,
// WRITE and atomic: NAK 0x62, and the same packet again executes nothing.
func TestF5_RangeThatWraps(t *testing.T) {
	for _, line := range []string{
		"RC RDMA READ Request psn=0x200 A va=0xfffffffffffffc00 len=0x400 key=good",
		"RC RDMA READ Request psn=0x200 A va=0xfffffffffffffc01 len=0x7fffffff key=good",
		"RC RDMA WRITE Only psn=0x200 A va=0xfffffffffffffffc len=4 key=good data=4",
		"RC RDMA WRITE Only psn=0x200 A va=0xfffffffffffffffe len=8 key=good data=8",
		"RC CmpSwap psn=0x200 A va=0xfffffffffffffff8 swap=1 key=good",
		"RC FetchAdd psn=0x200 A va=0xfffffffffffffff8 swap=1 key=good",
	} {
		a, _ := connected(t, options{})
		before := append([]byte(nil), a.mem...)
		inject(a, start, line)
		wantTexts(t, line, texts(a.pollAll(start)), "RC Acknowledge psn=0x200 NAK remote access error msn=0")
		inject(a, start, line)
		wantTexts(t, line+" again", texts(a.pollAll(start)))
		if string(before) != string(a.mem) {
			t.Errorf("%s: memory changed", line)
		}
	}
}

// TestF6_RNRWaitIsNotCutShort: every timer code is waited out, though the ACK
// timeout is 8 µs; rnr_retry counts down, 7 does not.
func TestF6_RNRWaitIsNotCutShort(t *testing.T) {
	for code := uint8(0); code < 32; code++ {
		a, _ := connected(t, options{timeout: 1, rnrRetry: 7})
		now := start
		a.post(now, wq.SendWR{WRID: 1, Opcode: wq.Send, SGList: []wq.SGE{a.sge(0, 4)}})
		a.pollAll(now)
		for try := 0; try < 25; try++ {
			inject(a, now, fmt.Sprintf("RC Acknowledge psn=0x100 ack=rnr%d", code))
			due := now.Add(bth.RNRTimerDuration(code))
			if next := a.qp.NextTimeout(); !next.Equal(due) {
				t.Fatalf("code %d: next timeout in %v, want %v", code, next.Sub(now), due.Sub(now))
			}
			for _, at := range []time.Time{now, now.Add(9 * time.Microsecond), due.Add(-1)} {
				a.qp.HandleTimeout(at)
				inject(a, at, "RC Acknowledge psn=0x100 ack=NAK60")
				if !at.Before(due) {
					continue
				}
				wantTexts(t, "during the wait", texts(a.pollAll(at)))
			}
			now = due
			a.qp.HandleTimeout(now)
			wantTexts(t, fmt.Sprintf("code %d, after the wait", code), texts(a.pollAll(now)), "RC SEND Only psn=0x100 A data=4")
		}
		if a.qp.State() != qpstate.RTS || len(a.sendCQ.wcs) != 0 {
			t.Errorf("code %d: rnr_retry 7 ended", code)
		}
	}
	for retry := uint8(1); retry <= 6; retry++ {
		a, _ := connected(t, options{rnrRetry: retry})
		a.post(start, wq.SendWR{WRID: 1, Opcode: wq.Send, SGList: []wq.SGE{a.sge(0, 4)}})
		sent := 0
		for now := start; a.qp.State() == qpstate.RTS; now = now.Add(10 * time.Microsecond) {
			a.qp.HandleTimeout(now)
			sent += len(a.pollAll(now))
			inject(a, now, "RC Acknowledge psn=0x100 ack=rnr1")
		}
		if sent != int(retry)+1 {
			t.Errorf("rnr_retry %d: %d transmissions", retry, sent)
		}
		wantTexts(t, "completion", a.sendCQ.take(), "1 RNR_RETRY_EXC_ERR")
	}
}

// TestF7_RNRTimerLeftAtZero: correct and visible: waits and NAKs are counted, and
// one note names the code and its milliseconds.
func TestF7_RNRTimerLeftAtZero(t *testing.T) {
	a, _ := connected(t, options{})
	now := start
	a.post(now, wq.SendWR{WRID: 1, Opcode: wq.Send, SGList: []wq.SGE{a.sge(0, 4)}})
	for i := 0; i < 3; i++ {
		a.pollAll(now)
		inject(a, now, "RC Acknowledge psn=0x100 ack=rnr0")
		now = now.Add(655360 * time.Microsecond)
		a.qp.HandleTimeout(now)
	}
	notes := noteOf(a, transport.NoteRNRTimer)
	if len(notes) != 1 || notes[0].Code != 0 || notes[0].Wait != 655360*time.Microsecond || !strings.Contains(notes[0].Text(), "655.36ms") {
		t.Errorf("notes %+v", notes)
	}
	if s := a.qp.Stats(); s.RNRNAKsRcvd != 3 || s.RNRWait != 3*655360*time.Microsecond {
		t.Errorf("RNR NAKs %d, waited %v", s.RNRNAKsRcvd, s.RNRWait)
	}
}

// TestF8_AtomicReplay: the answer to a FETCH_ADD, then to a CMP_SWAP is lost, also
// with other requests between: executed once, the original value comes.
func TestF8_AtomicReplay(t *testing.T) {
	for _, others := range []int{0, 3} {
		for _, op := range []wq.Opcode{wq.AtomicFetchAndAdd, wq.AtomicCmpAndSwp} {
			a, b := connected(t, options{timeout: 8})
			binary.NativeEndian.PutUint64(b.mem[64:], 41)
			wr := wq.SendWR{WRID: 1, Flags: wq.SendSignaled, Opcode: op, RemoteAddr: memBase + 64, RKey: b.mr.RKey(), CompareAdd: 1, SGList: []wq.SGE{a.sge(0, 8)}}
			if op == wq.AtomicCmpAndSwp {
				wr.CompareAdd, wr.Swap = 41, 42
			}
			a.post(start, wr)
			for i := 0; i < others; i++ {
				a.post(start, wq.SendWR{WRID: uint64(10 + i), Flags: wq.SendSignaled, Opcode: wq.AtomicFetchAndAdd, RemoteAddr: memBase + 128, RKey: b.mr.RKey(), CompareAdd: 1, SGList: []wq.SGE{a.sge(8+8*i, 8)}})
			}
			for _, p := range a.pollAll(start) {
				b.handle(start, p, a.gid)
			}
			b.pollAll(start) // all answers are lost
			now := a.qp.NextTimeout()
			a.qp.HandleTimeout(now)
			exchange(now, a, b)
			if v := binary.NativeEndian.Uint64(b.mem[64:]); v != 42 {
				t.Errorf("%v: memory %d, want 42", op, v)
			}
			if v := binary.NativeEndian.Uint64(a.mem[0:]); v != 41 {
				t.Errorf("%v: result %d, want 41", op, v)
			}
			if n := len(a.sendCQ.take()); n != 1+others {
				t.Errorf("%v: %d completions", op, n)
			}
		}
	}
}

// TestF9_LengthZeroAnyKey: READ and WRITE of length 0 with a nonsense key succeed,
// also when the answer is lost; one PSN each.
func TestF9_LengthZeroAnyKey(t *testing.T) {
	for _, op := range []wq.Opcode{wq.RDMARead, wq.RDMAWrite} {
		a, b := connected(t, options{timeout: 8, sigAll: true})
		a.post(start, wq.SendWR{WRID: 1, Opcode: op, RemoteAddr: 0xdead, RKey: 0xbad})
		for _, p := range a.pollAll(start) {
			b.handle(start, p, a.gid)
		}
		b.pollAll(start)
		now := a.qp.NextTimeout()
		a.qp.HandleTimeout(now)
		exchange(now, a, b)
		var attr qpstate.Attr
		a.qp.Query(&attr)
		if len(a.sendCQ.wcs) != 1 || a.sendCQ.wcs[0].Status != cq.Success || attr.SQPSN != 0x101 {
			t.Errorf("%v: completions %v, next PSN %v", op, a.sendCQ.take(), attr.SQPSN)
		}
	}
}

// TestF11_WrongKeys: one good WRITE, then five with a wrong key, receives on both
// sides: one completion a request, REM_ACCESS_ERR then WR_FLUSH_ERR; both ends
// flush both queues; the NAK is sent though no receive was consumed.
func TestF11_WrongKeys(t *testing.T) {
	a, b := connected(t, options{sigAll: true})
	for i := uint64(0); i < 2; i++ {
		a.postRecv(start, 50+i, a.sge(0, 8))
		b.postRecv(start, 60+i, b.sge(0, 8))
	}
	var got []string
	for i := uint64(1); i <= 6; i++ {
		key := b.mr.RKey()
		if i > 1 {
			key ^= 0x100
		}
		a.post(start, wq.SendWR{WRID: i, Opcode: wq.RDMAWrite, RemoteAddr: memBase, RKey: key, SGList: []wq.SGE{a.sge(0, 8)}})
		exchange(start, a, b)
		got = append(got, a.sendCQ.take()...)
	}
	wantTexts(t, "sends", got, "1 SUCCESS RDMA_WRITE len=8", "2 REM_ACCESS_ERR", "3 WR_FLUSH_ERR", "4 WR_FLUSH_ERR", "5 WR_FLUSH_ERR", "6 WR_FLUSH_ERR")
	wantTexts(t, "receives at the requester", a.recvCQ.take(), "50 WR_FLUSH_ERR", "51 WR_FLUSH_ERR")
	wantTexts(t, "receives at the responder", b.recvCQ.take(), "60 WR_FLUSH_ERR", "61 WR_FLUSH_ERR")
	if n := noteOf(b, transport.QPAccessErr); len(n) != 1 {
		t.Errorf("QP_ACCESS_ERR events: %d", len(n))
	}
	if a.qp.State() != qpstate.Err || b.qp.State() != qpstate.Err {
		t.Errorf("states %v, %v", a.qp.State(), b.qp.State())
	}
}

// bulk moves one big message under loss and refusing sockets, and returns what
// was sent again for each MiB of it.
func bulk(t *testing.T, op wq.Opcode, mib int, loss float64, seed uint64) (resentPerMiB float64, took time.Duration, timeouts uint64) {
	t.Helper()
	n := mib << 20
	// The bounds are for this window: a loss costs what is in flight.
	o := options{mtu: bth.MTU1024, timeout: 12, sigAll: true, memSize: n, rd: 16, destRD: 16, window: 256 << 10}.withDefaults()
	net := simnet.New(simnet.Config{Seed: seed, Loss: loss, Delay: 10 * time.Microsecond}, start)
	a, b := newEnd(t, 0x11, 1, o), newEnd(t, 0x22, 2, o)
	a.to(qpstate.RTS, b, o)
	b.to(qpstate.RTS, a, o)
	ends := [2]*end{a, b}
	dice := simnet.NewRand(seed)
	blocked := [2]time.Time{}
	var free [2]time.Time // each end puts a packet on the wire every microsecond at most
	third := n / 3
	a.post(start, wq.SendWR{WRID: 1, Opcode: op, RemoteAddr: memBase, RKey: b.mr.RKey(), SGList: []wq.SGE{a.sge(0, third), a.sge(third, third), a.sge(2*third, n-2*third)}})
	want := append([]byte(nil), a.mem...)
	if op == wq.RDMARead {
		want = append([]byte(nil), b.mem...)
	}
	for len(a.sendCQ.wcs) == 0 {
		now := net.Now()
		for i, e := range ends {
			for !blocked[i].After(now) && !free[i].After(now) {
				if dice.IntN(50) == 0 { // EAGAIN or ENOBUFS
					blocked[i] = now.Add(time.Duration(dice.IntN(200)) * time.Microsecond)
					break
				}
				k, _ := e.qp.PollTransmit(now, e.buf[:])
				if k == 0 {
					break
				}
				net.Send(i, 1-i, e.buf[:k])
				free[i] = now.Add(time.Microsecond)
			}
		}
		at, ok := net.Next()
		for i, e := range ends {
			for _, d := range []time.Time{e.qp.NextTimeout(), blocked[i], free[i]} {
				if d.After(now) && (!ok || d.Before(at)) {
					at, ok = d, true
				}
			}
		}
		if !ok || at.Sub(start) > time.Minute {
			t.Fatalf("%v of %d MiB is stuck at %v", op, mib, now.Sub(start))
		}
		net.Advance(at)
		for d, ok := net.Take(); ok; d, ok = net.Take() {
			ends[d.To].handle(net.Now(), d.Data, ends[d.From].gid)
		}
		for _, e := range ends {
			if d := e.qp.NextTimeout(); !d.IsZero() && !d.After(net.Now()) {
				e.qp.HandleTimeout(net.Now())
			}
		}
	}
	wantTexts(t, "completion", a.sendCQ.take(), fmt.Sprintf("1 SUCCESS %s len=%d", map[wq.Opcode]string{wq.RDMARead: "RDMA_READ", wq.RDMAWrite: "RDMA_WRITE"}[op], n))
	if string(a.mem) != string(want) || string(b.mem) != string(want) {
		t.Errorf("%v of %d MiB: data differs", op, mib)
	}
	resent := a.qp.Stats().Retransmits + b.ctr.Replays
	return float64(resent) / float64(mib), net.Now().Sub(start), a.qp.Stats().Timeouts
}

// TestF14_BulkUnderLoss: READ and WRITE of 1 to 8 MiB from several elements, with
// a socket that refuses now and then, at 0, 0.1, 1 and 5 % loss: bytes right, what
// is sent again is bounded, a refusal alone causes neither a time-out nor a retry.
func TestF14_BulkUnderLoss(t *testing.T) {
	for _, op := range []wq.Opcode{wq.RDMAWrite, wq.RDMARead} {
		for _, c := range []struct {
			mib   int
			loss  float64
			bound float64 // packets sent again for each MiB of 1024 packets
		}{
			{1, 0, 0}, {8, 0, 0}, {2, .001, 300}, {8, .001, 300}, {2, .01, 800}, {4, .01, 800}, {1, .05, 2000}, {2, .05, 2000},
		} {
			resent, took, timeouts := bulk(t, op, c.mib, c.loss, 1)
			t.Logf("%v %d MiB, loss %.1f %%: %.0f packets sent again a MiB, %v, %d time-outs", op, c.mib, 100*c.loss, resent, took, timeouts)
			if resent > c.bound {
				t.Errorf("%v %d MiB, loss %.1f %%: %.0f packets sent again a MiB, bound %.0f", op, c.mib, 100*c.loss, resent, c.bound)
			}
			if c.loss == 0 && timeouts != 0 {
				t.Errorf("%v %d MiB: %d time-outs without loss", op, c.mib, timeouts)
			}
		}
	}
}

// TestF17_MBit: M is 1 in all that is sent (every poll of these tests checks it);
// 0 is accepted like 1, in requests and responses.
func TestF17_MBit(t *testing.T) {
	for _, m := range []string{"", " M0"} {
		a, _ := connected(t, options{sigAll: true})
		a.postRecv(start, 1, a.sge(0, 8))
		if v := inject(a, start, "RC SEND Only psn=0x200 A data=4"+m); v != transport.Accepted {
			t.Errorf("request%s: %v", m, v)
		}
		a.post(start, wq.SendWR{WRID: 1, Opcode: wq.Send})
		for _, b := range a.pollAll(start) {
			if !bth.BTH(b).MigReq() {
				t.Errorf("M is 0 in %s", packetText(b))
			}
		}
		inject(a, start, "RC Acknowledge psn=0x100 ack=ACK"+m)
		wantTexts(t, "completion", a.sendCQ.take(), "1 SUCCESS SEND len=0")
	}
}

// TestF18_PathMTUs: sender at 4096 and receiver at 1024, and the reverse, SEND and
// WRITE and READ: an error on both sides, notes that name what is known, no hang.
func TestF18_PathMTUs(t *testing.T) {
	for _, mtus := range [][2]bth.MTU{{bth.MTU4096, bth.MTU1024}, {bth.MTU1024, bth.MTU4096}} {
		for _, op := range []wq.Opcode{wq.Send, wq.RDMAWrite, wq.RDMARead} {
			a, b := connected(t, options{mtu: mtus[0], peerMTU: mtus[1]})
			b.postRecv(start, 1, b.sge(0, 20000))
			a.post(start, wq.SendWR{WRID: 1, Opcode: op, RemoteAddr: memBase, RKey: b.mr.RKey(), SGList: []wq.SGE{a.sge(0, 20000)}})
			exchange(start, a, b)
			want := "1 REM_INV_REQ_ERR"
			if op == wq.RDMARead {
				want = "1 BAD_RESP_ERR"
			}
			wantTexts(t, fmt.Sprintf("%v %v", mtus, op), a.sendCQ.take(), want)
			na, nb := noteOf(a, transport.NoteMTU), noteOf(b, transport.NoteMTU)
			if len(na) != 1 || na[0].OwnMTU != mtus[0].Bytes() {
				t.Errorf("%v %v: sender's notes %+v", mtus, op, na)
			}
			if op == wq.RDMARead {
				if na[0].PeerMTU != mtus[1].Bytes() {
					t.Errorf("%v %v: sender's notes %+v", mtus, op, na)
				}
				continue
			}
			if len(nb) != 1 || nb[0].OwnMTU != mtus[1].Bytes() || nb[0].PeerMTU != mtus[0].Bytes() {
				t.Errorf("%v %v: receiver's notes %+v", mtus, op, nb)
			}
		}
	}
}

// TestF22_AtomicRefused: an atomic that fails its checks gets a NAK in a plain
// Acknowledge, opcode 0x11, not in an Atomic Acknowledge.
func TestF22_AtomicRefused(t *testing.T) {
	for _, line := range []string{
		"RC FetchAdd psn=0x200 A va=0x10000 swap=1 key=0x1234", "RC CmpSwap psn=0x200 A va=0x10000 swap=1 key=0x1234",
		"RC FetchAdd psn=0x200 A va=0x10001 swap=1 key=good", "RC CmpSwap psn=0x200 A va=0x110000 key=good",
	} {
		a, _ := connected(t, options{})
		inject(a, start, line)
		out := a.pollAll(start)
		if len(out) != 1 || bth.BTH(out[0]).Opcode() != 0x11 {
			t.Errorf("%s: %v", line, texts(out))
		}
	}
}

// TestF28_FenceWaitsForReadsOnly: a WRITE whose ACK is delayed does not hold up a
// fenced SEND; a READ does.
func TestF28_FenceWaitsForReadsOnly(t *testing.T) {
	a, _ := connected(t, options{})
	a.post(start, wq.SendWR{Opcode: wq.RDMAWrite, SGList: []wq.SGE{a.sge(0, 4)}})
	a.post(start, wq.SendWR{Opcode: wq.Send, Flags: wq.SendFence})
	wantTexts(t, "behind a WRITE", texts(a.pollAll(start)), "RC RDMA WRITE Only psn=0x100 A va=0x0 len=4 data=4", "RC SEND Only psn=0x101 A")
	a.post(start, wq.SendWR{Opcode: wq.RDMARead, SGList: []wq.SGE{a.sge(0, 4)}})
	a.post(start, wq.SendWR{Opcode: wq.Send, Flags: wq.SendFence})
	wantTexts(t, "behind a READ", texts(a.pollAll(start)), "RC RDMA READ Request psn=0x102 A va=0x0 len=4")
	inject(a, start, "RC RDMA READ Response Only psn=0x102 ack=ACK data=4")
	wantTexts(t, "after the READ", texts(a.pollAll(start)), "RC SEND Only psn=0x103 A")
}

// restless is memory that changes with every look at it, as under a program that
// writes at full speed. Mapped says whether it shows itself directly.
type restless struct {
	mrtable.HeapMemory
	mapped bool
	reads  *int
}

func (r restless) ReadAt(dst []byte, off uint64) error {
	*r.reads++
	err := r.HeapMemory.ReadAt(dst, off)
	for i := range r.HeapMemory {
		r.HeapMemory[i] += 0x55
	}
	return err
}

func (r restless) Bytes(off, n uint64) []byte {
	if r.mapped {
		return r.HeapMemory.Bytes(off, n)
	}
	return nil
}

// TestF40_SingleRead: memory that changes between two looks: the packet carries
// an ICRC over what is in it, since memory is read once.
func TestF40_SingleRead(t *testing.T) {
	a, b := connected(t, options{mtu: bth.MTU4096})
	reads := 0
	mem := restless{HeapMemory: make(mrtable.HeapMemory, 1<<16), reads: &reads}
	r, err := b.keys.Register(1, mem, 0x5000000, 1<<16, allAccess, 0)
	if err != nil {
		t.Fatal(err)
	}
	a.post(start, wq.SendWR{Opcode: wq.RDMARead, Flags: wq.SendSignaled, RemoteAddr: 0x5000000, RKey: r.RKey(), SGList: []wq.SGE{a.sge(0, 1<<16)}})
	b.post(start, wq.SendWR{Opcode: wq.RDMAWrite, Flags: wq.SendSignaled, RemoteAddr: memBase, RKey: a.mr.RKey(), SGList: []wq.SGE{{Addr: 0x5000000, Length: 1 << 16, LKey: r.LKey()}}})
	exchange(start, a, b) // poll checks each ICRC against the bytes
	if len(a.sendCQ.wcs) != 1 || len(b.sendCQ.wcs) != 1 || reads != 32 {
		t.Errorf("completions %v %v, %d reads for 32 packets", a.sendCQ.take(), b.sendCQ.take(), reads)
	}
}

// broken is memory whose accesses fail.
type broken struct{ mrtable.HeapMemory }

var errGone = errors.New("the program is gone")

func (broken) ReadAt([]byte, uint64) error                        { return errGone }
func (broken) WriteAt([]byte, uint64) error                       { return errGone }
func (broken) CompareSwap(uint64, uint64, uint64) (uint64, error) { return 0, errGone }
func (broken) FetchAdd(uint64, uint64) (uint64, error)            { return 0, errGone }
func (broken) Bytes(uint64, uint64) []byte                        { return nil }

// TestMemoryThatFails: a segment access may fail: a remote key gives NAK 0x62, a
// local one LOC_PROT_ERR, a receive's NAK 0x63 and LOC_PROT_ERR.
func TestMemoryThatFails(t *testing.T) {
	for _, c := range []struct {
		name   string
		remote bool // the responder's memory is the broken one
		op     wq.Opcode
		want   string
	}{
		{"WRITE to", true, wq.RDMAWrite, "1 REM_ACCESS_ERR"},
		{"READ from", true, wq.RDMARead, "1 REM_ACCESS_ERR"},
		{"FETCH_ADD on", true, wq.AtomicFetchAndAdd, "1 REM_ACCESS_ERR"},
		{"CMP_SWAP on", true, wq.AtomicCmpAndSwp, "1 REM_ACCESS_ERR"},
		{"SEND to", true, wq.Send, "1 REM_OP_ERR"},
		{"WRITE from", false, wq.RDMAWrite, "1 LOC_PROT_ERR"},
		{"SEND from", false, wq.Send, "1 LOC_PROT_ERR"},
		{"READ into", false, wq.RDMARead, "1 LOC_PROT_ERR"},
		{"FETCH_ADD into", false, wq.AtomicFetchAndAdd, "1 LOC_PROT_ERR"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := connected(t, options{sigAll: true})
			e := a
			if c.remote {
				e = b
			}
			r, err := e.keys.Register(1, broken{make(mrtable.HeapMemory, 4096)}, 0x5000000, 4096, allAccess, 0)
			if err != nil {
				t.Fatal(err)
			}
			bad := wq.SGE{Addr: 0x5000000, Length: 8, LKey: r.LKey()}
			wr := wq.SendWR{WRID: 1, Opcode: c.op, RemoteAddr: memBase, RKey: b.mr.RKey(), SGList: []wq.SGE{bad}}
			if c.remote {
				wr.SGList[0] = a.sge(0, 8)
				wr.RemoteAddr, wr.RKey = 0x5000000, r.RKey()
				b.postRecv(start, 7, bad)
			}
			a.post(start, wr)
			exchange(start, a, b)
			wantTexts(t, "send", a.sendCQ.take(), c.want)
			if c.remote && c.op == wq.Send {
				wantTexts(t, "receive", b.recvCQ.take(), "7 LOC_PROT_ERR")
			}
		})
	}
}

// TestF45_NoStuckQP: many seeds and much loss, without a queue pair that stands
// still: all complete, or the retries are used up and all are flushed.
func TestF45_NoStuckQP(t *testing.T) {
	seeds := uint64(100)
	if testing.Short() {
		seeds = 10
	}
	ended := 0
	for seed := uint64(0); seed < seeds; seed++ {
		c := pairOf(1<<32+seed, .15)
		w := newWorld(t, c)
		err := w.run()
		if err == nil {
			continue
		}
		if !strings.Contains(err.Error(), "_ERR") {
			t.Errorf("seed %d: %v", seed, err)
		}
		ended++
	}
	t.Logf("%d of %d connections used up their retries at 15 %% loss, doubling, reordering and corruption", ended, seeds)
}

// TestF49_RNRStorm: a peer that answers with a storm of 0.01 ms RNR NAKs makes us
// send once a timer, no more.
func TestF49_RNRStorm(t *testing.T) {
	a, _ := connected(t, options{timeout: 8})
	a.post(start, wq.SendWR{WRID: 1, Opcode: wq.Send, SGList: []wq.SGE{a.sge(0, 4)}})
	sent := 0
	const step, steps = time.Microsecond, 5000
	for i := 0; i < steps; i++ {
		now := start.Add(time.Duration(i) * step)
		a.qp.HandleTimeout(now)
		sent += len(a.pollAll(now))
		for j := 0; j < 20; j++ {
			inject(a, now, "RC Acknowledge psn=0x100 ack=rnr1")
		}
	}
	if most := steps*int(step/time.Microsecond)/10 + 1; sent > most || sent < most/2 {
		t.Errorf("%d transmissions in %v, want about %d", sent, steps*step, most)
	}
}

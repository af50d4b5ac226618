package verbs

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/cq"
)

// device answers what a device's attributes are.
func (f *fake) device(attr DeviceAttr) {
	f.answer(uapi.OpQueryDevice, says(&uapi.QueryDeviceReply{Attr: attr}, 0))
}

// What is asked for at creation decides; what nobody has is refused by name.
func TestCreateCQEx(t *testing.T) {
	f, d := newFake(t)
	f.device(DeviceAttr{})
	for _, c := range []struct {
		name  string
		flags CQWCFlags
		mask  uint64
		want  unix.Errno
	}{
		{"nothing", 0, 0, 0},
		{"all standard fields", wcExStandard, 0, 0},
		{"timestamps of a device without", WCExWithCompletionTimestamp, 0, unix.EOPNOTSUPP},
		{"wall clock of a device without", WCExWithCompletionTimestampWallclock, 0, unix.EOPNOTSUPP},
		{"timestamps", wcExTimestamps, 1<<64 - 1, 0},
		{"VLAN", WCExWithCVLAN, 1, unix.EOPNOTSUPP},
		{"flow tag", WCExWithFlowTag, 1, unix.EOPNOTSUPP},
		{"tag matching", WCExWithTMInfo, 1, unix.EOPNOTSUPP},
		{"unknown", 1 << 12, 1, unix.EINVAL},
	} {
		f.device(DeviceAttr{CompletionTimestampMask: c.mask})
		_, err := d.CreateCQEx(&CQInitAttrEx{CQE: 4, WCFlags: c.flags})
		want(t, c.name, err, c.want)
	}
	_, err := d.CreateCQEx(&CQInitAttrEx{CQE: 0})
	want(t, "no entries", err, unix.EINVAL)
}

// Start, next until there is nothing, end: each field as the completion has it,
// and every completion accounted for as by Poll.
func TestExtendedPolling(t *testing.T) {
	f, d := newFake(t)
	f.device(DeviceAttr{CompletionTimestampMask: 1})
	o := newObjects(t, d, RC, StateReset)
	c, err := d.CreateCQEx(&CQInitAttrEx{CQE: 8, WCFlags: wcExStandard | wcExTimestamps})
	check(t, err)
	q, err := o.pd.CreateQP(&QPInitAttr{Type: RC, SendCQ: c, RecvCQ: c, Cap: smallCap})
	check(t, err)
	check(t, q.Modify(&QPAttr{State: StateRTS}, QPStateMask))
	want(t, "an empty queue", c.StartPoll(), unix.ENOENT)
	want(t, "next without a start", c.NextPoll(), unix.EINVAL)
	c.EndPoll() // does nothing
	for i := range uint64(4) {
		_, err = q.PostSend(SendWR{WRID: i, Opcode: WRSend, Flags: SendSignaled})
		check(t, err)
	}
	f.sent(q)
	var mono unix.Timespec
	check(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono))
	wcs := []WC{
		{
			WRID: 0, Status: cq.Success, Opcode: cq.Send, QPN: q.qpn, SrcQP: 7, ByteLen: 5, ImmData: 6,
			Flags: cq.WithImm, VendorErr: 9, InvalidatedRKey: 8, Timestamp: uint64(mono.Nano()),
		},
		success(q, 1, cq.Send), success(q, 2, cq.Send),
	}
	f.complete(c, wcs...)
	before := time.Now()
	check(t, c.StartPoll())
	if c.ReadWRID() != 0 || c.ReadStatus() != cq.Success || c.ReadOpcode() != cq.Send || c.ReadQPNum() != q.qpn ||
		c.ReadSrcQP() != 7 || c.ReadByteLen() != 5 || c.ReadImmData() != 6 || c.ReadWCFlags() != cq.WithImm ||
		c.ReadVendorErr() != 9 || c.ReadInvalidatedRKey() != 8 || c.ReadCompletionTS() != uint64(mono.Nano()) ||
		c.ReadSLID() != 0 || c.ReadSL() != 0 || c.ReadDLIDPathBits() != 0 {
		t.Errorf("read of %+v", c.ext.wc)
	}
	// Both clocks were read within this test; it does not run for an hour.
	if wall := time.Unix(0, int64(c.ReadCompletionWallclockNS())); wall.Sub(before).Abs() > time.Hour {
		t.Errorf("completed at %v, read at %v", wall, before)
	}
	for i := uint64(1); i < 3; i++ {
		check(t, c.NextPoll())
		if c.ReadWRID() != i || c.ReadCompletionTS() != 0 || c.ReadCompletionWallclockNS() != 0 {
			t.Errorf("completion %d is %+v", i, c.ext.wc)
		}
	}
	want(t, "no more", c.NextPoll(), unix.ENOENT)
	if c.ReadWRID() != 2 {
		t.Errorf("the last completion is gone: %+v", c.ext.wc)
	}
	f.complete(c, success(q, 3, cq.Send))
	check(t, c.NextPoll())
	c.EndPoll()
	for i := range uint64(4) {
		if _, err = q.PostSend(SendWR{WRID: i, Opcode: WRSend, Flags: SendSignaled}); err != nil {
			t.Fatalf("post after the completions were polled: %v", err)
		}
	}
	var buf [1]WC
	f.complete(c, success(q, 0, cq.Send))
	if n, err := c.Poll(buf[:]); n != 1 || err != nil {
		t.Errorf("Poll after it: %d, %v", n, err)
	}
	check(t, c.Destroy())
	want(t, "a destroyed queue", c.StartPoll(), unix.EINVAL)
	want(t, "a queue of CreateCQ", o.cq.StartPoll(), unix.EINVAL)
}

// Fields that were not asked for are 0.
func TestExtendedPollingFields(t *testing.T) {
	f, d := newFake(t)
	c, err := d.CreateCQEx(&CQInitAttrEx{CQE: 8})
	check(t, err)
	f.complete(c, WC{WRID: 3, QPN: 1, SrcQP: 7, ByteLen: 5, ImmData: 6, Timestamp: 4, InvalidatedRKey: 8})
	check(t, c.StartPoll())
	defer c.EndPoll()
	if c.ReadWRID() != 3 || c.ReadQPNum() != 0 || c.ReadSrcQP() != 0 || c.ReadByteLen() != 0 || c.ReadImmData() != 0 ||
		c.ReadCompletionTS() != 0 || c.ReadCompletionWallclockNS() != 0 || c.ReadInvalidatedRKey() != 0 {
		t.Error("a field is there that was not asked for")
	}
}

// Extended polling of a dead adapter gives what is flushed.
func TestExtendedPollingOfDeadDevice(t *testing.T) {
	f, d := newFake(t)
	c, err := d.CreateCQEx(&CQInitAttrEx{CQE: 8, WCFlags: WCExWithQPNum})
	check(t, err)
	pd, err := d.AllocPD()
	check(t, err)
	q, err := pd.CreateQP(&QPInitAttr{Type: RC, SendCQ: c, RecvCQ: c, Cap: smallCap})
	check(t, err)
	check(t, q.Modify(&QPAttr{State: StateRTS}, QPStateMask))
	_, err = q.PostSend(SendWR{WRID: 1, Opcode: WRLocalInv}, SendWR{WRID: 2, Opcode: WRRegMR, SGList: []SGE{{Length: 4096}}})
	check(t, err)
	check(t, f.conn.Close())
	<-d.Done()
	for i, op := range []WCOpcode{cq.LocalInv, cq.RegMR} {
		check(t, c.StartPoll())
		if c.ReadWRID() != uint64(i+1) || c.ReadStatus() != cq.WRFlushErr || c.ReadOpcode() != op {
			t.Errorf("%d, %v, %v", c.ReadWRID(), c.ReadStatus(), c.ReadOpcode())
		}
		c.EndPoll()
	}
	want(t, "nothing more", c.StartPoll(), unix.ENOENT)
}

// A resized queue goes on with what was not polled, and keeps count: completions
// of a life before RESET are still told from those of the new one.
func TestResizeCQ(t *testing.T) {
	f, d := newFake(t)
	o := newObjects(t, d, RC, StateRTS)
	post := func(wrid uint64) error {
		_, err := o.qp.PostSend(SendWR{WRID: wrid, Opcode: WRSend, Flags: SendSignaled})
		f.sent(o.qp)
		return err
	}
	for i := range uint64(4) {
		check(t, post(i))
	}
	f.complete(o.cq, success(o.qp, 0, cq.Send), success(o.qp, 1, cq.Send), success(o.qp, 2, cq.Send))
	var one [1]WC
	n, err := o.cq.Poll(one[:])
	if n != 1 || err != nil {
		t.Fatal(n, err)
	}
	var m uapi.ResizeCQRequest
	f.answer(uapi.OpResizeCQ, func(body []byte, _ []int) (uapi.Body, []int, unix.Errno) {
		check(t, m.Decode(body))
		rep := &uapi.CreateCQReply{Handle: m.Handle, CQE: 32, Ring: uapi.RingRef{Slots: 32}}
		mem, fd := f.ring(&rep.Ring, uapi.CQRingSize(32))
		ring, err := f.cqs[m.Handle].MoveTo(mem, rep.Ring)
		check(t, err)
		f.cqs[m.Handle] = ring
		return rep, []int{fd}, 0
	})
	check(t, o.cq.Resize(20))
	if m.Handle != o.cq.handle || m.CQE != 20 || o.cq.Cap() != 32 {
		t.Errorf("asked for %+v, %d entries", m, o.cq.Cap())
	}
	f.complete(o.cq, success(o.qp, 3, cq.Send))
	// RESET forgets the four; their completions stand for nothing any more.
	check(t, o.qp.Modify(&QPAttr{State: StateReset}, QPStateMask))
	check(t, o.qp.Modify(&QPAttr{State: StateRTS}, QPStateMask))
	for i := range uint64(4) {
		check(t, post(3+i)) // a mark that is an old completion's, too
	}
	got := o.poll(t)
	if len(got) != 3 || got[0].WRID != 1 || got[2].WRID != 3 {
		t.Errorf("polled %+v, want 1, 2 and 3", got)
	}
	want(t, "a full queue after old completions", post(99), unix.ENOMEM)
	f.complete(o.cq, success(o.qp, 3, cq.Send))
	if got = o.poll(t); len(got) != 1 || got[0].WRID != 3 {
		t.Errorf("polled %+v", got)
	}
	check(t, post(7))
	f.answer(uapi.OpResizeCQ, says(nil, unix.EINVAL))
	want(t, "refused", o.cq.Resize(1), unix.EINVAL)
	want(t, "no entries", o.cq.Resize(0), unix.EINVAL)
	f.complete(o.cq, success(o.qp, 4, cq.Send))
	if got = o.poll(t); len(got) != 1 || got[0].WRID != 4 {
		t.Errorf("after a refusal polled %+v", got)
	}
	check(t, o.cq.Destroy())
	want(t, "a destroyed queue", o.cq.Resize(4), unix.EINVAL)
}

package verbs

import (
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/qpstate"
)

// What a failed completion tells of the state: RC goes to ERR, the send queue of
// an unacknowledged service to SQE, a receive's failure is ERR for all.
func TestStateOfFailure(t *testing.T) {
	for _, c := range []struct {
		name  string
		typ   QPType
		wcs   func(q *QP) []WC
		state QPState
	}{
		{"RC send", RC, func(q *QP) []WC { return []WC{failure(q, 1, cq.Send, cq.RetryExcErr)} }, StateErr},
		{"UC send", UC, func(q *QP) []WC { return []WC{failure(q, 1, cq.Send, cq.LocProtErr)} }, StateSQE},
		{"UD send", UD, func(q *QP) []WC { return []WC{failure(q, 1, cq.Send, cq.LocQPOpErr)} }, StateSQE},
		{"UD send, then what was behind it", UD, func(q *QP) []WC {
			return []WC{failure(q, 1, cq.Send, cq.LocQPOpErr), failure(q, 2, cq.Send, cq.WRFlushErr)}
		}, StateSQE},
		{"UD flushed by ERR", UD, func(q *QP) []WC { return []WC{failure(q, 1, cq.Send, cq.WRFlushErr)} }, StateErr},
		{"UC receive", UC, func(q *QP) []WC { return []WC{failure(q, 1, cq.Recv, cq.LocLenErr)} }, StateErr},
		{"SQE, then ERR", UD, func(q *QP) []WC {
			return []WC{failure(q, 1, cq.Send, cq.LocQPOpErr), failure(q, 1, cq.Recv, cq.WRFlushErr)}
		}, StateErr},
		{"success", UD, func(q *QP) []WC { return []WC{success(q, 1, cq.Send)} }, StateRTS},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, d := newFake(t)
			o := newObjects(t, d, c.typ, StateRTS)
			for i := range uint64(2) {
				_, err := o.qp.PostSend(SendWR{WRID: i + 1, Opcode: WRSend, AH: 1})
				check(t, err)
			}
			_, err := o.qp.PostRecv(RecvWR{WRID: 1})
			check(t, err)
			f.complete(o.cq, c.wcs(o.qp)...)
			o.poll(t)
			if s := o.qp.State(); s != c.state {
				t.Errorf("state %v, want %v", s, c.state)
			}
			_, err = o.qp.PostSend(SendWR{Opcode: WRSend, AH: 1})
			want(t, "a post", err, 0)
		})
	}
}

// In ERR a posted receive rings, for it is to be flushed; and in SQE, as ERR may
// have come unseen.
func TestReceivesRing(t *testing.T) {
	f, d := newFake(t)
	o := newObjects(t, d, UD, StateInit)
	for _, c := range []struct {
		state QPState
		rings bool
	}{{StateInit, false}, {StateRTR, false}, {StateRTS, false}, {StateSQD, false}, {StateSQE, true}, {StateErr, true}} {
		check(t, o.qp.Modify(&QPAttr{State: StateReset}, QPStateMask))
		check(t, o.qp.Modify(&QPAttr{State: c.state}, QPStateMask))
		_, err := o.qp.PostRecv(RecvWR{})
		check(t, err)
		rang := false
		for _, ok := f.bell.Next(); ok; _, ok = f.bell.Next() {
			rang = true
		}
		for wr := (RecvWR{}); f.rqs[o.qp.handle].TakeRecv(&wr); {
			wr.SGList = wr.SGList[:0] // nothing to do but to make room
		}
		if rang != c.rings {
			t.Errorf("%v: a doorbell rang: %v, want %v", c.state, rang, c.rings)
		}
	}
}

// modifications keeps what a program asks to modify.
func (f *fake) modifications(t *testing.T) *[]uapi.ModifyQPRequest {
	var all []uapi.ModifyQPRequest
	f.answer(uapi.OpModifyQP, func(body []byte, _ []int) (uapi.Body, []int, unix.Errno) {
		var m uapi.ModifyQPRequest
		check(t, m.Decode(body))
		all = append(all, m)
		return &uapi.ModifyQPReply{State: m.Attr.State}, nil, 0
	})
	return &all
}

// Each helper's steps have what its transitions need and allow, by the one table.
func TestConnectSteps(t *testing.T) {
	f, d := newFake(t)
	f.answer(uapi.OpQueryPort, says(&uapi.QueryPortReply{Attr: PortAttr{ActiveMTU: MTU2048}}, 0))
	peer := RCPeer{QPN: 9, PSN: 8, GID: gid("192.0.2.9")}
	for _, c := range []struct {
		name string
		typ  QPType
		call func(*QP) error
	}{
		{"RC", RC, func(q *QP) error { return q.Connect(peer, RCConfig{PSN: 7}) }},
		{"UC", UC, func(q *QP) error { return q.Connect(peer, RCConfig{PSN: 7}) }},
		{"UD", UD, func(q *QP) error { return q.ReadyUD(0x1234, 7) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newObjects(t, d, c.typ, StateReset)
			all := f.modifications(t)
			check(t, c.call(o.qp))
			from := StateReset
			var states []QPState
			for _, m := range *all {
				next, err := qpstate.Check(c.typ, from, &m.Attr, m.Mask)
				check(t, err)
				from = next
				states = append(states, next)
			}
			if !reflect.DeepEqual(states, []QPState{StateInit, StateRTR, StateRTS}) {
				t.Errorf("states %v", states)
			}
			first, rtr, rts := (*all)[0].Attr, (*all)[1].Attr, (*all)[2].Attr
			if rts.SQPSN != 7 || c.typ == UD && first.QKey != 0x1234 {
				t.Errorf("send PSN %v, Q_Key %#x", rts.SQPSN, uint32(first.QKey))
			}
			if c.typ != UD && (rtr.DestQPN != 9 || rtr.RQPSN != 8 || rtr.PathMTU != MTU2048 || rtr.AH.DGID != peer.GID || rtr.AH.HopLimit != 64) {
				t.Errorf("RTR with %+v", rtr)
			}
			if c.typ == UC && first.AccessFlags != uint32(AccessRemoteWrite) {
				t.Errorf("access %#x", first.AccessFlags)
			}
		})
	}
	o := newObjects(t, d, UD, StateReset)
	want(t, "a UD queue pair", o.qp.Connect(peer, RCConfig{}), unix.EINVAL)
}

// A listing is all its parts; a cursor that does not rise ends it.
func TestListings(t *testing.T) {
	f, d := newFake(t)
	parts := map[uint64]*uapi.ListResourcesReply{
		0:  {Next: 10, Resources: []Resource{{Number: 1}, {Number: 2}}},
		10: {Next: 12, Resources: []Resource{{Number: 3}}},
		12: {Next: 12, Resources: []Resource{{Number: 4, PID: 5, Name: "x"}}},
	}
	f.answer(uapi.OpListResources, func(body []byte, _ []int) (uapi.Body, []int, unix.Errno) {
		var m uapi.ListResourcesRequest
		check(t, m.Decode(body))
		if m.Kind != ResourceSRQ {
			return nil, nil, unix.EINVAL
		}
		return parts[m.After], nil, 0
	})
	got, err := d.Resources(ResourceSRQ)
	if err != nil || len(got) != 4 || got[3] != (Resource{Number: 4, PID: 5, Name: "x"}) {
		t.Errorf("resources %+v, %v", got, err)
	}
	_, err = d.Resources(99)
	want(t, "an unknown kind", err, unix.EINVAL)
	f.answer(uapi.OpListCounters, says(&uapi.ListCountersReply{Counters: []Counter{{Name: "n", Help: "h", Value: 3}}}, 0))
	if c, err := d.Counters(); err != nil || len(c) != 1 || c[0].Value != 3 {
		t.Errorf("counters %+v, %v", c, err)
	}
}

// The values of the constants are the verbs API's.
func TestValues(t *testing.T) {
	for name, ok := range map[string]bool{
		"work requests": WRLocalInv == 7 && WRBindMW == 8 && WRSendWithInv == 9,
		"completions":   WCBindMW == 5 && WCLocalInv == 6 && WCWithInv == 8 && WCGRH == 1,
		"access":        AccessMWBind == 16 && AccessZeroBased == 32 && AccessOnDemand == 64 && AccessHugeTLB == 128,
		"device": DeviceSRQResize == 1<<13 && DeviceMemWindow == 1<<17 && DeviceMemMgtExtensions == 1<<21 &&
			DeviceMemWindowType2B == 1<<24 && DeviceBadQKeyCntr == 4,
		"send ops":       QPExWithSend == 4 && QPExWithSendWithInv == 512,
		"rereg":          ReregChangeTranslation == 1 && ReregChangePD == 2 && ReregChangeAccess == 4,
		"fields":         WCExWithCompletionTimestamp == 128 && WCExWithCompletionTimestampWallclock == 2048,
		"SRQ attributes": SRQMaxWRMask == 1 && SRQLimitMask == 2,
		"QP attributes":  QPQKeyMask == 0x40 && QPCurStateMask == 2 && QPEnSQDAsyncNotifyMask == 4,
	} {
		if !ok {
			t.Errorf("%s do not have the verbs API's values", name)
		}
	}
}

package adapter_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/softroce/softroce/internal/inspect"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/verbs"
)

// explained is what explain says of a program's queue pair, as one line.
func (p *program) explained() string {
	p.t.Helper()
	list, err := inspect.ExplainQP(p.dev, p.qp.Num())
	must(p.t, err)
	return p.printed(list)
}

func (p *program) printed(list []inspect.Explanation) string {
	p.t.Helper()
	var b bytes.Buffer
	must(p.t, inspect.WriteExplanations(&b, list, false))
	return strings.Join(strings.Fields(b.String()), " ")
}

// says checks that the explanation of a program's queue pair has all words.
func (p *program) says(words ...string) {
	p.t.Helper()
	got := p.explained()
	for _, w := range words {
		if !strings.Contains(got, w) {
			p.t.Errorf("%q is not in the explanation:\n%s", w, got)
		}
	}
}

// Each failure is provoked between two adapters; its explanation names status,
// attribute and value, at both ends where both know.
func TestExplainFailures(t *testing.T) {
	signaled := func(wr verbs.SendWR) verbs.SendWR {
		wr.WRID, wr.Flags = 1, verbs.SendSignaled
		return wr
	}
	send := func(a *program, n int) verbs.SendWR {
		return signaled(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(0, n)}})
	}
	for _, c := range []struct {
		name   string
		conf   verbs.RCConfig
		access verbs.Access // of the peer's region; 0: all
		status verbs.WCStatus
		do     func(a, b *program)
		a, b   func(a, b *program) []string
	}{
		{
			name: "rkey that is none", status: verbs.WCRemAccessErr,
			do: func(a, b *program) {
				wr := signaled(a.write(b, 0, 0, 512))
				wr.RKey ^= 0x55
				a.post(wr)
			},
			a: func(_, b *program) []string {
				return []string{
					"status 10, IBV_WC_REM_ACCESS_ERR", "RDMA_WRITE of 512 bytes", fmt.Sprintf("rkey = 0x%08x", uint32(b.mr.RKey())^0x55),
					fmt.Sprintf("remote_addr = %#x, length = 512", b.mr.Addr()), "last NAK received: NAK remote access error (syndrome 0x62)",
				}
			},
			b: func(_, b *program) []string {
				return []string{fmt.Sprintf("rkey = 0x%08x: no region or window has this key", uint32(b.mr.RKey())^0x55), "last NAK sent: NAK remote access error"}
			},
		},
		{
			name: "range beyond the region", status: verbs.WCRemAccessErr,
			do: func(a, b *program) { a.post(signaled(a.read(b, 0, 65536-100, 512))) },
			a:  func(_, _ *program) []string { return []string{"RDMA_READ of 512 bytes", "remote_read"} },
			b: func(_, b *program) []string {
				return []string{fmt.Sprintf("covers 65536 bytes from %#x", b.mr.Addr()), fmt.Sprintf("addr = %#x, length = 512 reaches outside", b.mr.Addr()+65536-100)}
			},
		},
		{
			name: "region without the right", status: verbs.WCRemAccessErr, access: verbs.AccessLocalWrite | verbs.AccessRemoteRead,
			do: func(a, b *program) { a.post(signaled(a.write(b, 0, 0, 512))) },
			a:  func(_, _ *program) []string { return []string{"it must grant remote_write"} },
			b: func(_, _ *program) []string {
				return []string{"its access is local_write,remote_read, and this needs remote_write"}
			},
		},
		{
			name: "operation not enabled", status: verbs.WCRemInvReqErr, conf: verbs.RCConfig{Access: verbs.AccessRemoteWrite},
			do: func(a, b *program) { a.post(signaled(a.read(b, 0, 0, 64))) },
			a:  func(_, _ *program) []string { return []string{"qp_access_flags of the peer: without remote_read"} },
			b: func(_, _ *program) []string {
				return []string{"qp_access_flags = 0x2 (remote_write): the operation needs remote_read"}
			},
		},
		{
			name: "receive too short", status: verbs.WCRemInvReqErr,
			do: func(a, b *program) { b.recv(2, 0, 100); a.post(send(a, 200)) },
			a:  func(_, _ *program) []string { return []string{"it must have room for the 200 bytes"} },
			b: func(_, _ *program) []string {
				return []string{"status 1, IBV_WC_LOC_LEN_ERR", "the posted receive has 100 bytes of room, and the message brought 200"}
			},
		},
		{
			name: "local key that is none", status: verbs.WCLocProtErr,
			do: func(a, b *program) {
				wr := signaled(a.write(b, 0, 0, 512))
				wr.SGList[0].LKey ^= 0x55
				a.post(wr)
			},
			a: func(a, _ *program) []string {
				return []string{"status 4, IBV_WC_LOC_PROT_ERR", fmt.Sprintf("lkey = 0x%08x: no region or window has this key", uint32(a.mr.LKey())^0x55), "nothing is wrong with the peer"}
			},
		},
		{
			name: "local buffer beyond its region", status: verbs.WCLocProtErr,
			do: func(a, b *program) {
				wr := signaled(a.write(b, 0, 0, 512))
				wr.SGList[0].Addr += 65536
				a.post(wr)
			},
			a: func(a, _ *program) []string {
				return []string{fmt.Sprintf("covers 65536 bytes from %#x", a.mr.Addr()), "reaches outside"}
			},
		},
		{
			name: "no receive, rnr_retry used up", status: verbs.WCRNRRetryExcErr, conf: verbs.RCConfig{RNRRetry: 2, MinRNRTimer: 5},
			do: func(a, _ *program) { a.post(send(a, 8)) },
			a: func(_, _ *program) []string {
				return []string{"status 13, IBV_WC_RNR_RETRY_EXC_ERR", "rnr_retry = 2 at this end: tried 3 times", "min_rnr_timer = 5 at the peer: it asks to wait 60µs", "no receive posted 3 times"}
			},
			b: func(_, _ *program) []string {
				return []string{"no receive was posted here 3 times", "last NAK sent: RNR NAK, 60µs", "Nothing has failed"}
			},
		},
		{
			name: "nobody answers", status: verbs.WCRetryExcErr, conf: verbs.RCConfig{RetryCnt: 2, Timeout: 8},
			do: func(a, b *program) {
				must(a.t, b.qp.Destroy())
				a.post(signaled(a.write(b, 0, 0, 8)))
			},
			a: func(a, b *program) []string {
				return []string{
					"status 12, IBV_WC_RETRY_EXC_ERR", "retry_cnt = 2, timeout = 8 (1.048576ms): given up after about 3.145728ms", "after 2 retries",
					fmt.Sprintf("dest_qp_num = 0x%06x and dgid = %v: nothing at all was ever received", uint32(b.qp.Num()), b.gid.Addr()), "the ACK timer expired 3 times",
				}
			},
		},
		{
			name: "the program's own ERR", status: verbs.WCWRFlushErr,
			do: func(a, _ *program) {
				must(a.t, a.qp.Modify(&verbs.QPAttr{State: qpstate.Err}, qpstate.MaskState))
				a.post(send(a, 8))
			},
			a: func(_, _ *program) []string {
				return []string{"status 5, IBV_WC_WR_FLUSH_ERR", "The program itself moved the queue pair to ERR", "nothing had failed before"}
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := start(t, nil).open(t, shape{}), start(t, nil).open(t, shape{access: c.access})
			connect(a, b, c.conf)
			c.do(a, b)
			a.status(1, c.status)
			a.says(c.a(a, b)...)
			if c.b != nil {
				b.says(c.b(a, b)...)
			}
		})
	}
}

// Path MTUs that differ: both ends' explanations name them, in either direction
// and also for the answers of a READ, where the asker sees both.
func TestExplainPathMTU(t *testing.T) {
	for _, mtus := range [][2]verbs.MTU{{verbs.MTU4096, verbs.MTU1024}, {verbs.MTU1024, verbs.MTU4096}} {
		ours, peers := mtus[0].String(), mtus[1].String()
		open := func() (a, b *program) {
			a, b = start(t, nil).open(t, shape{}), start(t, nil).open(t, shape{})
			a.connectTo(b.peer(), verbs.RCConfig{MTU: mtus[0]})
			b.connectTo(a.peer(), verbs.RCConfig{MTU: mtus[1]})
			return a, b
		}
		a, b := open()
		wr := a.write(b, 0, 0, 10000)
		wr.WRID, wr.Flags = 1, verbs.SendSignaled
		a.post(wr)
		a.status(1, verbs.WCRemInvReqErr)
		a.says("path_mtu = "+ours+": this queue pair sends packets of "+ours+" bytes", "NAK invalid request")
		b.says("path_mtu: the peer sends packets of "+ours+" bytes, this queue pair has path MTU "+peers, "set the same path_mtu at both ends")

		a, b = open()
		wr = a.read(b, 0, 0, 10000)
		wr.WRID, wr.Flags = 1, verbs.SendSignaled
		a.post(wr)
		a.status(1, verbs.WCBadRespErr)
		a.says("status 7, IBV_WC_BAD_RESP_ERR", "path_mtu: the peer sends packets of "+peers+" bytes, this queue pair has path MTU "+ours)
	}
}

// min_rnr_timer left at 0 is 655.36 ms: both logs say so when it happens, and both
// explanations, although nothing has failed.
func TestExplainRNRTimerZero(t *testing.T) {
	a, b := pair(t, shape{}, verbs.RCConfig{}, nil)
	must(t, b.qp.Modify(&verbs.QPAttr{MinRNRTimer: 0}, qpstate.MaskMinRNRTimer))
	a.post(verbs.SendWR{WRID: 1, Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(0, 8)}})
	eventually(t, "both logs tell of 655.36 ms", func() bool {
		return len(a.host.log.lines("level=WARN", "655.36ms", "min_rnr_timer was left at 0")) == 1 &&
			len(b.host.log.lines("level=WARN", "655.36ms", "min_rnr_timer is 0")) == 1
	})
	a.says("Nothing has failed", "the peer's min_rnr_timer was left at 0", "655.36ms")
	b.says("Nothing has failed", "min_rnr_timer = 0 here", "655.36ms", "set min_rnr_timer at RTR")
	b.recv(2, 0, 64)
	a.status(1, verbs.WCSuccess)
}

// A wrong GID index: the error of the call and the log name the index and what the
// table has; so for an address handle.
func TestExplainWrongGIDIndex(t *testing.T) {
	h := start(t, nil)
	p := h.open(t, shape{})
	err := p.qp.Connect(p.peer(), verbs.RCConfig{SGIDIndex: 3})
	_, errAH := p.pd.CreateAH(&verbs.AHAttr{IsGlobal: true, PortNum: 1, SGIDIndex: 4, DGID: p.gid})
	table := fmt.Sprintf("it has 0 (%v); softroce gids", p.gid.Addr())
	for _, c := range []struct {
		err   error
		index string
		call  string
	}{{err, "sgid_index 3:", "modify of queue pair"}, {errAH, "sgid_index 4:", "create AH"}} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.index) || !strings.Contains(c.err.Error(), table) || !strings.Contains(c.err.Error(), "EINVAL") {
			t.Errorf("%s: got %v, want EINVAL with %q and %q", c.call, c.err, c.index, table)
		}
		eventually(t, "the log tells it", func() bool {
			return len(h.log.lines("level=WARN", c.call, "a wrong GID index", c.index, table)) == 1
		})
	}
}

// A failure is explained when its queue pair is gone, and to whoever may see it.
func TestExplainLast(t *testing.T) {
	a, b := pair(t, shape{}, verbs.RCConfig{}, nil)
	if _, err := inspect.ExplainLast(a.dev, 1, 0); err == nil {
		t.Error("there is a failure before any")
	}
	wr := a.write(b, 0, 0, 512)
	wr.WRID, wr.RKey = 1, wr.RKey^0x55
	a.post(wr)
	a.status(1, verbs.WCRemAccessErr)
	qpn := a.qp.Num()
	must(t, a.qp.Destroy())
	list, err := inspect.ExplainLast(a.dev, 5, 0)
	must(t, err)
	if got := a.printed(list); len(list) != 1 || !strings.Contains(got, "IBV_WC_REM_ACCESS_ERR") || !strings.Contains(got, fmt.Sprintf("queue pair 0x%06x (RC, ERR)", uint32(qpn))) {
		t.Errorf("got %d explanations:\n%s", len(list), got)
	}
	a.says("IBV_WC_REM_ACCESS_ERR") // by its number, although it is gone
}

// The history begins anew with the next connection.
func TestExplainForgets(t *testing.T) {
	a, b := pair(t, shape{}, verbs.RCConfig{}, func(c *adapter.Config) { c.Workers = 1 })
	wr := a.write(b, 0, 0, 512)
	wr.WRID, wr.RKey = 1, wr.RKey^0x55
	for range 2 { // the second failure is remembered, too
		a.post(wr)
		a.status(1, verbs.WCRemAccessErr)
		for _, p := range []*program{a, b} {
			must(t, p.qp.Modify(&verbs.QPAttr{State: qpstate.Reset}, qpstate.MaskState))
		}
		connect(a, b, verbs.RCConfig{})
	}
	list, err := a.dev.Explain(a.qp.Num())
	must(t, err)
	if len(list) != 3 || list[0].First.Kind != "" || list[1].First.Kind != "refused" || list[2].First.Kind != "refused" {
		t.Errorf("got %d stories, want one without a failure and two with: %+v", len(list), list)
	}
}

// First PSNs that do not fit: the sender's explanation and the receiver's both name
// rq_psn.
func TestExplainFirstPSN(t *testing.T) {
	a, b := start(t, nil).open(t, shape{}), start(t, nil).open(t, shape{})
	a.connectTo(b.peer(), verbs.RCConfig{RetryCnt: 1, Timeout: 8})
	peer := a.peer()
	peer.PSN -= 100
	b.connectTo(peer, verbs.RCConfig{})
	b.recv(2, 0, 64)
	a.post(verbs.SendWR{WRID: 1, Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(0, 8)}})
	a.status(1, verbs.WCRetryExcErr)
	a.says(fmt.Sprintf("its rq_psn is not the sq_psn = 0x%06x here", uint32(a.psn)), "none acknowledged anything")
	b.says("Nothing has failed", fmt.Sprintf("rq_psn = 0x%06x: the peer's packets have other numbers (0x%06x)", uint32(a.psn)-100, uint32(a.psn)))
}

// What was flushed is explained by what failed before it.
func TestExplainFlush(t *testing.T) {
	a, b := pair(t, shape{}, verbs.RCConfig{}, nil)
	bad := a.write(b, 0, 0, 512)
	bad.WRID, bad.RKey = 1, bad.RKey^0x55
	good := a.write(b, 0, 0, 8)
	good.WRID = 2
	a.post(bad, good)
	a.status(1, verbs.WCRemAccessErr)
	a.status(2, verbs.WCWRFlushErr)
	a.says("status 10, IBV_WC_REM_ACCESS_ERR", "RDMA_WRITE of 512 bytes")
	if got := a.printed([]inspect.Explanation{inspect.ExplainStatus(verbs.WCWRFlushErr)}); !strings.Contains(got, "first completion") {
		t.Errorf("status 5: got\n%s", got)
	}
}

// Datagrams that the receiver drops are seen in its explanation.
func TestExplainDroppedDatagrams(t *testing.T) {
	a, b := start(t, nil).open(t, shape{typ: verbs.UD}), start(t, nil).open(t, shape{typ: verbs.UD})
	for _, p := range []*program{a, b} {
		must(t, p.qp.Modify(&verbs.QPAttr{State: qpstate.Init, PortNum: 1, QKey: 0x11}, qpstate.MaskState|qpstate.MaskPort|qpstate.MaskPKeyIndex|qpstate.MaskQKey))
		must(t, p.qp.Modify(&verbs.QPAttr{State: qpstate.RTR}, qpstate.MaskState))
		must(t, p.qp.Modify(&verbs.QPAttr{State: qpstate.RTS}, qpstate.MaskState|qpstate.MaskSQPSN))
	}
	ah, err := a.pd.CreateAH(&verbs.AHAttr{IsGlobal: true, PortNum: 1, DGID: b.gid})
	must(t, err)
	send := func(id uint64, key verbs.QKey, n int) {
		a.post(verbs.SendWR{
			WRID: id, Opcode: verbs.WRSend, Flags: verbs.SendSignaled, AH: ah.Handle(), RemoteQPN: b.qp.Num(), RemoteQKey: key, SGList: []verbs.SGE{a.mr.SGE(0, n)},
		})
		a.status(id, verbs.WCSuccess)
	}
	send(1, 0x12, 8)
	send(2, 0x11, 8) // no receive
	eventually(t, "the second arrived", func() bool { return strings.Contains(b.explained(), "drop_no_recv") })
	b.recv(3, 0, 16)
	send(3, 0x11, 8) // 40 bytes short
	eventually(t, "all three arrived", func() bool { return strings.Contains(b.explained(), "drop_length") })
	b.says("dropped, its Q_Key is not the queue pair's qkey (drop_qkey)", "dropped, no receive is posted (drop_no_recv)", "Nothing has failed")
}

// The peer of a queue pair whose answers are lost says that it took the requests: it shows the duplicates.
func TestExplainDuplicates(t *testing.T) {
	a, b := pair(t, shape{}, verbs.RCConfig{RetryCnt: 2, Timeout: 8}, nil)
	must(t, b.dev.Impair("drop sent ACK"))
	b.recv(2, 0, 64)
	a.post(verbs.SendWR{WRID: 1, Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(0, 8)}})
	a.status(1, verbs.WCRetryExcErr)
	eventually(t, "the peer got the last one", func() bool { return strings.Contains(b.explained(), "3 received") })
	b.says("3 received; 0 messages done, 1 taken", "2 duplicates received: this end had taken the requests before")
}

// The last failure says so when its program is gone.
func TestExplainLastOfTheGone(t *testing.T) {
	h := start(t, nil)
	a, b := h.open(t, shape{}), start(t, nil).open(t, shape{})
	connect(a, b, verbs.RCConfig{})
	wr := a.write(b, 0, 0, 512)
	wr.WRID, wr.RKey = 1, wr.RKey^0x55
	a.post(wr)
	a.status(1, verbs.WCRemAccessErr)
	other := h.open(t, shape{})
	last := func() string {
		list, err := inspect.ExplainLast(other.dev, 1, 0)
		must(t, err)
		return list[0].Heading
	}
	if got := last(); got != "" {
		t.Errorf("while its program is there: %q", got)
	}
	must(t, a.dev.Close())
	eventually(t, "the story is headed", func() bool { return strings.HasPrefix(last(), "A program that is gone (it ended ") })
}

package adapter_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/nic"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

// connectWith takes a queue pair to RTS with a min_rnr_timer that RCConfig
// takes for its default.
func (p *program) connectWith(peer *program, minRNR uint8) {
	p.t.Helper()
	must(p.t, p.qp.ToInit(allAccess))
	must(p.t, p.qp.Modify(&verbs.QPAttr{
		State: verbs.StateRTR, PathMTU: bth.MTU1024, DestQPN: peer.qp.Num(), RQPSN: peer.psn, MaxDestRDAtomic: 4, MinRNRTimer: minRNR,
		AH: verbs.AHAttr{DGID: peer.gid, IsGlobal: true, PortNum: 1},
	}, verbs.QPStateMask|verbs.QPAVMask|verbs.QPPathMTUMask|verbs.QPDestQPNMask|verbs.QPRQPSNMask|
		verbs.QPMaxDestRDAtomicMask|verbs.QPMinRNRTimerMask))
	must(p.t, p.qp.Modify(&verbs.QPAttr{
		State: verbs.StateRTS, SQPSN: p.psn, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 4,
	}, verbs.QPStateMask|verbs.QPTimeoutMask|verbs.QPRetryCntMask|verbs.QPRNRRetryMask|verbs.QPSQPSNMask|verbs.QPMaxQPRDAtomicMask))
}

// Field case F7: a connection whose min_rnr_timer was left at 0 waits 655.36 ms
// for each missing receive. It is correct, and it can be seen: per queue pair
// the RNR NAKs and the time waited, and one warning with code and time.
func TestF7SlowRNRTimerIsVisible(t *testing.T) {
	x, y := start(t, nil), start(t, nil)
	a, b := x.open(t, shape{}), y.open(t, shape{})
	a.connectWith(b, 0)
	b.connectWith(a, 0)
	a.post(verbs.SendWR{WRID: 1, Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(0, 100)}})
	eventually(t, "the RNR NAK arrives", func() bool { return x.stats(t, a.qp.Num()).Stats.RNRNAKsRcvd > 0 })
	b.recv(2, 0, 100)
	a.status(1, verbs.WCSuccess)
	b.status(2, verbs.WCSuccess)

	const wait = 655360 * time.Microsecond
	sx, sy := x.stats(t, a.qp.Num()).Stats, y.stats(t, b.qp.Num()).Stats
	if sx.RNRNAKsRcvd != 1 || sy.RNRNAKsSent != 1 || sx.RNRWait != wait || sx.Timeouts != 0 {
		t.Errorf("%d RNR NAKs received, %d sent, waited %v, %d timeouts; want 1, 1, %v, 0",
			sx.RNRNAKsRcvd, sy.RNRNAKsSent, sx.RNRWait, sx.Timeouts, wait)
	}
	// A second time: counted, not said again.
	a.post(verbs.SendWR{WRID: 3, Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(0, 100)}})
	eventually(t, "the second RNR NAK arrives", func() bool { return x.stats(t, a.qp.Num()).Stats.RNRNAKsRcvd > 1 })
	lines := x.log.lines("level=WARN", "timer code 0", "655.36ms", fmt.Sprintf("qpn=0x%06x ", uint32(a.qp.Num())))
	if len(lines) != 1 {
		t.Errorf("%d warnings name code and time, want 1; the log is\n%s", len(lines), x.log)
	}
}

// Field case F55: packets with a bad ICRC are told of at most once a second,
// with both values, the addresses and the QPN, and each is counted.
func TestF55BadICRCIsVisible(t *testing.T) {
	h := start(t, nil)
	p, raw := rawPair(t, h, shape{}, verbs.RCConfig{})
	b := raw.write(100, p.mr.Addr(), p.mr.RKey(), []byte{1, 2, 3, 4})
	n := len(b) - bth.ICRCLen
	right := raw.icrc(b[:n])
	wrong := right ^ 0x12345678
	bth.PutICRC(b[n:], wrong)
	const times = 300
	for i := range uint64(times) {
		raw.send(b)
		if i%50 == 49 {
			eventually(t, "the bad packets are counted", func() bool { return h.drops(nic.DropICRC) == i+1 })
		}
	}
	bth.PutICRC(b[n:], right)
	raw.send(b)
	raw.acked(100, ack)

	lines := h.log.lines("bad ICRC", "src="+raw.addr.String()+":4791", "dst="+h.Addrs()[0].String(),
		fmt.Sprintf("qpn=0x%06x ", uint32(p.qp.Num())), fmt.Sprintf("got=0x%08x ", wrong), fmt.Sprintf("want=0x%08x ", right))
	all := len(h.log.lines("bad ICRC"))
	// Which of the 300 fall into another second is up to the clock.
	if len(lines) == 0 || len(lines) != all || all > times/10 {
		t.Errorf("%d lines, %d with addresses, QPN and both values; the log is\n%s", all, len(lines), h.log)
	}
	if !strings.Contains(lines[0], "suppressed=0") {
		t.Errorf("no count of what was kept back in %s", lines[0])
	}
}

package adapter_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/nic"
	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/internal/testnet"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

// Field case F14: WRITE and READ of 1 to 8 MiB with several elements, with
// buffers as most hosts give them and with ones so small that sends are
// refused and receive buffers overflow for real. The bytes are right and the
// retransmits bounded; -v prints them.
func TestF14BigTransfers(t *testing.T) {
	for _, c := range []struct {
		name     string
		rcv, snd int
		mtu      verbs.MTU
		again    float64 // packets sent again per packet sent, at most
		mustLose bool
	}{
		{"212992 bytes each way", rcvbuf, rcvbuf, bth.MTU4096, 0.5, false},
		{"the least send buffer", rcvbuf, 1, bth.MTU4096, 0.5, false},
		{"a receive buffer that overflows", 16 << 10, 64 << 10, bth.MTU1024, 0.8, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := pair(t, shape{size: 16 << 20}, verbs.RCConfig{MTU: c.mtu, Timeout: 14}, func(cfg *adapter.Config) {
				cfg.RecvBuffer, cfg.SendBuffer = c.rcv, c.snd
			})
			if c.mustLose && testmatrix.Backend(t) == adapter.BackendTUN {
				shortQueue(t, a.host)
				shortQueue(t, b.host)
			}
			sum := bigTransfers(t, a, b)
			if float64(sum.again) > c.again*float64(sum.sent) {
				t.Errorf("%d of %d packets were sent again", sum.again, sum.sent)
			}
			if c.mustLose && sum.lost == 0 {
				t.Error("no packet was lost: the case shows nothing")
			}
		})
	}
}

// shortQueue has few packets wait on a host's TUN link, whose queue is what a socket
// has a receive buffer for.
func shortQueue(t *testing.T, h *host) {
	t.Helper()
	link, err := netlink.LinkByName(testmatrix.TUN(t, h.Addrs()))
	must(t, err)
	must(t, netlink.LinkSetTxQLen(link, 2))
}

// The same over a link that is slower than the sender, so that the send
// buffer fills: a refused send is waited out, and no packet is lost. Next to
// none is sent again: a veth with a queue before it swaps two packets now and
// then, when its sender moves to another processor.
func TestF14RefusedSendsAreWaits(t *testing.T) {
	x, y := testnet.Pair(t, 9000)
	slow(t, x)
	slow(t, y)
	var ends [2]*program
	for i, h := range []*testnet.Host{x, y} {
		must(t, h.Do(func() error {
			ends[i] = start(t, func(c *adapter.Config) {
				c.Addrs, c.RecvBuffer, c.SendBuffer = []netip.Addr{h.Addr4}, 4<<20, 32<<10
			}).open(t, shape{size: 16 << 20})
			return nil
		}))
	}
	// An ACK timer that a busy machine does not run out: 4.3 s.
	connect(ends[0], ends[1], verbs.RCConfig{Timeout: 20})
	sum := bigTransfers(t, ends[0], ends[1])
	if sum.refused == 0 {
		t.Error("no send was refused: the case shows nothing")
	}
	if sum.lost != 0 || sum.again > sum.sent/10 {
		t.Errorf("%d packets lost, %d sent again", sum.lost, sum.again)
	}
}

// slow puts a token bucket on a host's link: 60 MB/s, a queue that holds all
// that a send buffer can.
func slow(t *testing.T, h *testnet.Host) {
	t.Helper()
	err := h.Do(func() error {
		link, err := netlink.LinkByName(testnet.Iface)
		if err != nil {
			return err
		}
		return netlink.QdiscAdd(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       60e6, Limit: 64 << 20, Buffer: 128 << 10,
		})
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("this kernel has no token bucket (sch_tbf): %v", err)
	}
	must(t, err)
}

// bigSum is what a run cost both adapters.
type bigSum struct{ sent, lost, again, timeouts, refused uint64 }

func bigTransfers(t *testing.T, a, b *program) (s bigSum) {
	t.Helper()
	for i, n := range []int{1 << 20, 3<<20 + 5, 8<<20 - 1} {
		bigTransfer(t, a, b, n, i)
	}
	// What is on its way still counts as lost, an ACK at most.
	eventually(t, "all packets are there", func() bool {
		s = bigSum{}
		in := uint64(0)
		for _, h := range []*host{a.host, b.host} {
			w := h.workers()
			s.sent += w.Stats.PacketsOut
			in += w.Stats.PacketsIn
			s.again += w.Transport.Retransmits + w.Transport.Replays
			s.timeouts += w.Transport.LocalAckTimeoutErr
			s.refused += w.Stats.SendBlocked
			if n := w.Stats.Drops[nic.DropICRC]; n != 0 {
				t.Errorf("%d packets with a bad ICRC", n)
			}
		}
		s.lost = s.sent - in
		return s.again > 0 || s.lost == 0
	})
	t.Logf("%d packets sent, %d lost, %d sent again, %d ACK timeouts, %d sends refused", s.sent, s.lost, s.again, s.timeouts, s.refused)
	return s
}

// bigTransfer writes n bytes out of several elements to an odd place and reads
// them back into several others.
func bigTransfer(t *testing.T, a, b *program, n, seed int) {
	t.Helper()
	half := a.mr.Len() / 2
	src, back, dst := a.mr.Bytes()[:n], a.mr.Bytes()[half:half+n], b.mr.Bytes()[3:3+n]
	fill(src, seed)
	clear(dst)
	clear(back)
	cut := func(off int, at ...int) (list []verbs.SGE) {
		for i, last := 0, 0; i <= len(at); i++ {
			end := n
			if i < len(at) {
				end = at[i]
			}
			list, last = append(list, a.mr.SGE(off+last, end-last)), end
		}
		return list
	}
	write := a.write(b, 0, 3, 0)
	write.SGList = cut(0, 1, 4097, n/2, n-3)
	read := a.read(b, 0, 3, 0)
	read.SGList = cut(half, 5, 5000, n/3, n-1)
	for _, wr := range []verbs.SendWR{write, read} {
		wr.WRID = uint64(n)
		a.do(wr)
		got := dst
		if wr.Opcode == verbs.WRRDMARead {
			got = back
		}
		if !bytes.Equal(src, got) {
			t.Fatalf("%v of %d bytes: %s", wr.Opcode, n, firstDifference(src, got))
		}
	}
}

func firstDifference(want, got []byte) string {
	for i := range want {
		if want[i] != got[i] {
			return fmt.Sprintf("byte %d is %#x, want %#x", i, got[i], want[i])
		}
	}
	return "equal"
}

package nic

import (
	"bytes"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/internal/testnet"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/verbs"
)

// logLines collects what an adapter logs.
type logLines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// with are the lines that contain a word.
func (l *logLines) with(word string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, word) {
			found = append(found, line)
		}
	}
	return found
}

func (l *logLines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// A site is an adapter with a program on it, and its log.
type site struct {
	*Adapter
	log *logLines
	e   *endpoint
}

// newSite starts an adapter on a host, or on a loopback address where h is nil.
func newSite(t *testing.T, h *testnet.Host, size int, change func(*Config)) *site {
	t.Helper()
	s := &site{log: &logLines{}}
	start := func() error {
		s.Adapter = startAdapter(t, func(c *Config) {
			c.Log, c.RecvBuffer, c.Offload = s.log.logger(), 4<<20, OffloadAuto
			if h != nil {
				c.Addrs = c.Addrs[:0]
				c.Addrs = append(c.Addrs, h.Addr4)
			}
			if change != nil {
				change(c)
			}
		})
		return nil
	}
	if h == nil {
		_ = start() // fails by itself
	} else if err := h.Do(start); err != nil {
		t.Fatal(err)
	}
	if s.cfg.Offload != OffloadOff && !s.group.Segments() {
		t.Skip("this kernel has no UDP_SEGMENT")
	}
	s.e = newEndpoint(t, openDevice(t, s.Adapter), size)
	return s
}

// join connects two sites with an ACK timer of 4.096 us by a power of two.
func join(t *testing.T, a, b *site, timeout uint8) {
	t.Helper()
	for _, side := range [][2]*site{{a, b}, {b, a}} {
		gid, err := side[1].e.dev.QueryGID(0)
		if err != nil {
			t.Fatal(err)
		}
		peer := verbs.RCPeer{QPN: side[1].e.qp.Num(), PSN: 7, GID: gid}
		if err := side[0].e.qp.ConnectRC(peer, verbs.RCConfig{PSN: 7, Timeout: timeout}); err != nil {
			t.Fatal(err)
		}
	}
}

// stats sums what the workers counted.
func (s *site) stats() (sum WorkerStats, retransmits uint64) {
	for _, w := range s.Snapshot().Workers {
		sum.Sends += w.Stats.Sends
		sum.PacketsOut += w.Stats.PacketsOut
		sum.PacketsIn += w.Stats.PacketsIn
		sum.Receives += w.Stats.Receives
		sum.SegmentsStopped += w.Stats.SegmentsStopped
		for i, n := range w.Stats.SendErrors {
			sum.SendErrors[i] += n
		}
		for i, n := range w.Stats.Drops {
			sum.Drops[i] += n
		}
		retransmits += w.Transport.Retransmits + w.Transport.Replays
	}
	return sum, retransmits
}

// segmented says whether the routes to the other site still cut, and how many
// there are.
func (s *site) segmented(to *site) (on, off int) {
	for _, w := range s.workers {
		w.do(func() {
			if r := w.routes[to.Addrs()[0]]; r != nil && r.segments {
				on++
			} else if r != nil {
				off++
			}
		})
	}
	return on, off
}

// move writes n bytes to the other site, or reads them from it, and compares.
func move(t *testing.T, a, b *site, op verbs.WROpcode, n int, seed byte) {
	t.Helper()
	from, to := a.e.mr.Bytes()[:n], b.e.mr.Bytes()[:n]
	if op == verbs.WRRDMARead {
		from, to = to, from
	}
	for i := range from {
		from[i], to[i] = byte(i)*seed+byte(i>>8), 0
	}
	want := slices.Clone(from)
	wr := verbs.SendWR{
		Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.e.mr.SGE(0, n)},
		RemoteAddr: b.e.mr.Addr(), RKey: b.e.mr.RKey(),
	}
	if _, err := a.e.qp.PostSend(wr); err != nil {
		t.Fatal(err)
	}
	wc, err := completion(within(t), a.e.cq)
	if err != nil || wc.Status != cq.Success {
		t.Fatalf("%v of %d bytes: %v, %v", op, n, wc.Status, err)
	}
	b.Snapshot() // orders what the race detector does not see the packets order
	if !bytes.Equal(to, want) {
		t.Errorf("%v of %d bytes: the data differ", op, n)
	}
}

// filterPackets has an adapter's receive sockets drop what a program of classic
// BPF returns 0 for.
func (s *site) filterPackets(t *testing.T, prog []unix.SockFilter) {
	t.Helper()
	for w := range s.workers {
		for _, fd := range s.group.Queue(w).FDs() {
			err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Offsets of a socket filter that are none into the packet (linux/filter.h): the
// IP header, and a random number.
const (
	filterNet    = 0xFFF00000
	filterRandom = 0xFFFFF000 + 56
)

// firstOnly passes datagrams with IPv4 identification 0: of a segmented send the
// first. That is what a peer sees of a device that numbers its packets so that
// the ICRC of all others is wrong.
var firstOnly = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: filterNet + 4},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0x40000},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
}

// oneIn300 drops datagrams at random.
var oneIn300 = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: filterRandom},
	{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: (1 << 32) / 300, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0x40000},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
}

// sites are two adapters on a link whose device cuts nothing, so that the
// packets of a run are on the link one by one.
func sites(t *testing.T, size int) (a, b *site) {
	t.Helper()
	x, y := testnet.Pair(t, 9000)
	x.SetFeature(t, testnet.CutsUDP, false)
	y.SetFeature(t, testnet.CutsUDP, false)
	one := func(c *Config) { c.Workers = 1 }
	return newSite(t, x, size, one), newSite(t, y, size, one)
}

// Where of segmented sends only the first packets arrive, segmentation is given
// up after a few goings back, for requests and for answers to READs alike; all
// data arrive, and one line says what would decide it.
func TestSegmentationGivenUpWhereOnlyFirstPacketsArrive(t *testing.T) {
	for _, c := range []struct {
		name string
		op   verbs.WROpcode
	}{{"WRITE", verbs.WRRDMAWrite}, {"READ", verbs.WRRDMARead}} {
		t.Run(c.name, func(t *testing.T) {
			a, b := sites(t, 1<<20)
			sender, receiver := a, b
			if c.op == verbs.WRRDMARead {
				sender, receiver = b, a
			}
			receiver.filterPackets(t, firstOnly)
			join(t, a, b, 14)
			move(t, a, b, c.op, 1<<20, 3)
			s, again := sender.stats()
			if on, off := sender.segmented(receiver); s.SegmentsStopped != 1 || on != 0 || off != 1 {
				t.Errorf("segmentation stopped %d times; %d routes cut, %d do not", s.SegmentsStopped, on, off)
			}
			t.Logf("%d packets in %d sends, %d sent again", s.PacketsOut, s.Sends, again)
			move(t, a, b, c.op, 1<<20, 5)
			later, _ := sender.stats()
			if got, want := later.Sends-s.Sends, later.PacketsOut-s.PacketsOut; got != want {
				t.Errorf("afterwards %d packets went in %d sends", want, got)
			}
			if lines := sender.log.with("--gso"); len(lines) != 1 {
				t.Errorf("want one line that names --gso, got %q", lines)
			}
			if lines := receiver.log.with("--gso"); len(lines) != 0 {
				t.Errorf("the other side says %q", lines)
			}
		})
	}
}

// Loss at random is no reason to give segmentation up.
func TestSegmentationSurvivesLoss(t *testing.T) {
	a, b := sites(t, 8<<20)
	a.filterPackets(t, oneIn300)
	b.filterPackets(t, oneIn300)
	join(t, a, b, 14)
	for i, op := range []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRRDMARead, verbs.WRRDMAWrite} {
		move(t, a, b, op, 8<<20, byte(3+2*i))
	}
	for _, s := range []*site{a, b} {
		st, again := s.stats()
		if st.SegmentsStopped != 0 || len(s.log.with("--gso")) != 0 {
			t.Errorf("segmentation was given up: %q", s.log.with("--gso"))
		}
		if merged := st.PacketsOut - st.Sends; again == 0 || merged < 256 {
			t.Errorf("%d packets in %d sends, %d sent again: the case shows nothing", st.PacketsOut, st.Sends, again)
		}
		t.Logf("%d packets in %d sends, %d sent again", st.PacketsOut, st.Sends, again)
	}
}

// On loopback, and with offload on, nothing is on trial: whatever is lost,
// segmentation stays.
func TestNoTrialWhereItIsDecided(t *testing.T) {
	for _, c := range []struct {
		offload Offload
		dst     string
		want    bool
	}{
		{OffloadAuto, "192.0.2.1", true},
		{OffloadAuto, "2001:db8::1", false}, // has no identification to get wrong
		{OffloadAuto, "127.64.0.1", false},
		{OffloadOn, "192.0.2.1", false},
		{OffloadOff, "192.0.2.1", false},
	} {
		a := &Adapter{cfg: Config{Offload: c.offload}}
		w := &worker{a: a, routes: map[netip.Addr]*route{}}
		r := w.route(netip.MustParseAddr(c.dst))
		if r.trial != c.want || w.route(netip.MustParseAddr(c.dst)) != r {
			t.Errorf("offload %v to %s: trial %v, want %v", c.offload, c.dst, r.trial, c.want)
		}
	}
}

// The memory for routes is bounded, and a queue pair keeps the one it uses.
func TestRoutesAreBounded(t *testing.T) {
	w := &worker{a: &Adapter{}, routes: map[netip.Addr]*route{}}
	kept := w.route(peer4)
	for i := range maxRoutes + 100 {
		w.route(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}))
	}
	if len(w.routes) > maxRoutes {
		t.Errorf("%d routes, limit %d", len(w.routes), maxRoutes)
	}
	if kept.dst != peer4 || !kept.segments {
		t.Errorf("a route in use became %+v", kept)
	}
}

// A kernel that refuses a segmented send is given its packets one by one: none
// is lost, the route is marked, and one line says so.
func TestRefusedSegmentsGoOneByOne(t *testing.T) {
	testmatrix.SkipOn(t, "a link that cuts does it for all: there is no socket to set otherwise", BackendTUN)
	one := func(c *Config) { c.Workers = 1 }
	a, b := newSite(t, nil, 1<<20, one), newSite(t, nil, 1<<20, one)
	join(t, a, b, 20)
	// The kernel cuts nothing for a socket that sends no checksum.
	a.workers[0].do(func() {
		for _, q := range a.workers[0].byQPN {
			if err := unix.SetsockoptInt(a.workers[0].ep.WriteFD(q.flow), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1); err != nil {
				t.Error(err)
			}
		}
	})
	move(t, a, b, verbs.WRRDMAWrite, 1<<20, 3)
	move(t, a, b, verbs.WRRDMARead, 1<<20, 5)
	s, again := a.stats()
	if on, off := a.segmented(b); s.SegmentsStopped != 1 || on != 0 || off != 1 {
		t.Errorf("segmentation stopped %d times; %d routes cut, %d do not", s.SegmentsStopped, on, off)
	}
	if s.SendErrors != [maxErrno]uint64{} || again != 0 || s.Sends != s.PacketsOut {
		t.Errorf("%d packets in %d sends, %d sent again, refused: %v", s.PacketsOut, s.Sends, again, s.SendErrors)
	}
	if lines := a.log.with("--gso"); len(lines) != 1 || !strings.Contains(lines[0], "refuses") || !strings.Contains(lines[0], b.Addrs()[0].String()) {
		t.Errorf("want one line that names --gso and the peer, got %q", lines)
	}
	// The other side's sockets are as ever.
	if st, _ := b.stats(); st.SegmentsStopped != 0 || st.Sends == st.PacketsOut {
		t.Errorf("the peer: %d packets in %d sends, stopped %d times", st.PacketsOut, st.Sends, st.SegmentsStopped)
	}
}

// Packets longer than the link carries are refused singly as well: each is a
// loss that is counted, and once the link carries them all is as it was, with
// segmented sends.
func TestPacketsOverTheLinkMTU(t *testing.T) {
	x, y := testnet.Pair(t, 9000)
	one := func(c *Config) { c.Workers = 1 }
	a, b := newSite(t, x, 1<<20, one), newSite(t, y, 1<<20, one)
	join(t, a, b, 14)
	move(t, a, b, verbs.WRRDMAWrite, 1<<20, 3)
	linkMTU(t, x, 1500)
	wr := verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.e.mr.SGE(0, 200<<10)},
		RemoteAddr: b.e.mr.Addr(), RKey: b.e.mr.RKey(),
	}
	if _, err := a.e.qp.PostSend(wr); err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	for {
		if s, _ := a.stats(); s.SendErrors[unix.EMSGSIZE] > 0 {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("no packet was refused")
		}
		runtime.Gosched()
	}
	linkMTU(t, x, 9000)
	if wc, err := completion(ctx, a.e.cq); err != nil || wc.Status != cq.Success {
		t.Fatalf("%v, %v", wc.Status, err)
	}
	move(t, a, b, verbs.WRRDMAWrite, 1<<20, 7)
	s, again := a.stats()
	if s.SegmentsStopped == 0 || again == 0 {
		t.Errorf("segmentation stopped %d times, %d packets sent again", s.SegmentsStopped, again)
	}
	until(t, "segmented sends are tried again", func() bool { on, off := a.segmented(b); return on == 1 && off == 0 })
	move(t, a, b, verbs.WRRDMAWrite, 1<<20, 9)
	if later, _ := a.stats(); later.SegmentsStopped != s.SegmentsStopped {
		t.Errorf("they were given up again: %d times", later.SegmentsStopped)
	}
	if lines := a.log.with("MTU"); len(lines) == 0 {
		t.Error("no line says that the MTU is the reason")
	}
	t.Logf("%d packets were refused, %d sent again", s.SendErrors[unix.EMSGSIZE], again)
}

func linkMTU(t *testing.T, h *testnet.Host, mtu int) {
	t.Helper()
	err := h.Do(func() error {
		link, err := netlink.LinkByName(testnet.Iface)
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(link, mtu)
	})
	if err != nil {
		t.Fatal(err)
	}
}

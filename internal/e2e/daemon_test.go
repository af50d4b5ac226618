package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

// The daemon tells the service manager when it is ready and when it stops, and
// SIGTERM ends it with status 0 and without its socket (sd_notify(3)).
func TestDaemonNotifiesAndStops(t *testing.T) {
	for _, kind := range []string{"file", "abstract"} {
		t.Run(kind, func(t *testing.T) {
			socket := socketIn(t)
			name := filepath.Join(filepath.Dir(socket), "n")
			if kind == "abstract" {
				name = "@softroce-e2e-" + strconv.Itoa(os.Getpid())
			}
			c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			t.Setenv("NOTIFY_SOCKET", name)
			d := startDaemon(t, testaddr.Take(t, 1)[0], socket)
			wantState(t, c, "READY=1")
			if _, err := verbs.Open(&verbs.Options{Socket: socket}); err != nil {
				t.Errorf("ready, but: %v", err)
			}
			if code := d.stop(); code != 0 {
				t.Errorf("exit status %d after SIGTERM, want 0\n%s", code, d.log)
			}
			wantState(t, c, "STOPPING=1")
			if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the socket is still there: %v", err)
			}
		})
	}
}

func wantState(t *testing.T, c *net.UnixConn, want string) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 256)
	if n, err := c.Read(buf); err != nil || !slices.Contains(strings.Split(string(buf[:n]), "\n"), want) {
		t.Fatalf("the service manager was told %q, %v, want %q", buf[:n], err, want)
	}
}

// A signal that comes twice, as timeout(1) sends it, ends a daemon in good order.
func TestSignalTwice(t *testing.T) {
	for _, addr := range testaddr.Take(t, 10) {
		socket := socketIn(t)
		d := startDaemon(t, addr, socket)
		for range 2 {
			_ = d.cmd.Process.Signal(syscall.SIGTERM) // it may have ended at the first
			for end := time.Now().Add(limit); !strings.Contains(d.log.String(), "msg=stopping") && time.Now().Before(end); runtime.Gosched() {
			}
		}
		d.gone.Do(func() { _ = d.cmd.Wait() }) // the status says it
		if st := d.cmd.ProcessState; st.ExitCode() != 0 {
			t.Fatalf("it ends with %v", st)
		}
	}
}

// A daemon whose programs do nothing sleeps: its workers' turns do not go on,
// whatever queue pairs there are.
func TestIdleDaemonSleeps(t *testing.T) {
	needsSharedMemory(t)
	addrs := testaddr.Take(t, 2)
	a, b := startDaemon(t, addrs[0], socketIn(t), "--workers", "2"), startDaemon(t, addrs[1], socketIn(t), "--workers", "2")
	for i := range 8 {
		ea, err := openEnd(a.socket, 1)
		if err != nil {
			t.Fatal(err)
		}
		eb, err := openEnd(b.socket, 2)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(ea.qp.ConnectRC(eb.id, verbs.RCConfig{PSN: 1}), eb.qp.ConnectRC(ea.id, verbs.RCConfig{PSN: 2})); err != nil {
			t.Fatal(err)
		}
		writeOnce(t, ea, eb, i)
	}
	for _, d := range []*daemon{a, b} {
		d.sleeps(t)
	}
}

// sleeps waits until a daemon's workers stand still. A look at the counters is a
// turn of each worker and some rounds before it sleeps again, so a hundred turns
// between two looks are no sign of life; one that never slept makes thousands.
func (d *daemon) sleeps(t *testing.T) {
	t.Helper()
	const looks, rest = 10, 100 * time.Millisecond
	tick := time.NewTicker(rest)
	defer tick.Stop()
	last, quiet := d.metric("softroce_turns_total", ""), 0
	eventually(t, "the workers sleep", func() bool {
		<-tick.C
		n := d.metric("softroce_turns_total", "")
		if quiet++; n-last > 200 {
			quiet = 0
		}
		t.Logf("%v turns in %v", n-last, rest)
		last = n
		return quiet == looks
	})
	if d.metric("softroce_sleeps_total", "") == 0 {
		t.Error("no sleep is counted")
	}
}

// writeOnce writes from a to b and waits for the completion.
func writeOnce(t *testing.T, a, b *end, i int) {
	t.Helper()
	_, err := a.qp.PostSend(verbs.SendWR{
		WRID: uint64(i), Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{a.mr.SGE(0, 100_000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	})
	if err != nil {
		t.Fatal(err)
	}
	a.completed(t, uint64(i))
}

// The two daemons' captures have every packet of a run, one a segment, with the
// traffic class, time to live and identification that were on the wire: what one
// sent and what the other received are equal, and nothing of the IP header is
// unknown.
func TestCapturesOfBothEndsAgree(t *testing.T) {
	dir := t.TempDir()
	addrs := testaddr.Take(t, 2)
	var d [2]*daemon
	var file [2]string
	for i := range d {
		file[i] = filepath.Join(dir, fmt.Sprint(i))
		d[i] = startDaemon(t, addrs[i], socketIn(t), "--pcap", file[i])
	}
	port := freePort(t)
	args := []string{"perf", "write", "--bw", "--check", "-n", "40", "-s", "20000", "-m", "1024", "-p", strconv.Itoa(port)}
	srv := tool(t, append(args, "--socket", d[0].socket, "--tclass", "8")...)
	eventually(t, "the server listens", func() bool { return listening(t, port) || srv.ended() })
	tool(t, append(args, "--socket", d[1].socket, "--tclass", "104", toolHost(t, addrs[0]))...).finish(t)
	srv.finish(t)
	seen := [2][2]map[string]int{} // by adapter; sent and received
	for i := range d {
		if code := d[i].stop(); code != 0 {
			t.Fatalf("exit status %d\n%s", code, d[i].log)
		}
		seen[i] = packetsOf(t, file[i], addrs[i].String())
	}
	for i, tclass := range []string{"tos=8", "tos=104"} {
		sent, got := seen[i][0], seen[1-i][1]
		if len(sent) == 0 {
			t.Fatalf("adapter %d has captured nothing that it sent", i)
		}
		for p, n := range sent {
			if got[p] != n {
				t.Errorf("adapter %d sent %d times, the other received %d times: %s", i, n, got[p], p)
			}
			if !strings.HasPrefix(p, tclass+" ttl=64 ") {
				t.Errorf("adapter %d sent %s, want %s and TTL 64", i, p, tclass)
			}
		}
		for p, n := range got {
			if sent[p] == 0 {
				t.Errorf("adapter %d received what adapter %d did not send (%d times): %s", 1-i, i, n, p)
			}
		}
	}
}

// packetsOf reads a capture of the adapter at addr and counts each packet that it
// sent, and each that it received.
func packetsOf(t *testing.T, file, addr string) (seen [2]map[string]int) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	err = capture.Decode(bytes.NewReader(raw), func(r capture.Record) {
		if text := r.String(); r.Bad() || strings.Contains(text, "not known: identification") || strings.Contains(text, "not known: TTL") {
			t.Errorf("%s: %s", file, text)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	ng, err := pcapgo.NewNgReader(bytes.NewReader(raw), pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	seen = [2]map[string]int{{}, {}}
	routers := uint8(0)
	if testmatrix.Backend(t) == adapter.BackendTUN {
		routers = 1 // the host
	}
	for {
		data, _, err := ng.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return seen
		}
		if err != nil {
			t.Fatal(err)
		}
		p := gopacket.NewPacket(data, layers.LayerTypeIPv4, gopacket.NoCopy)
		ip, ok := p.NetworkLayer().(*layers.IPv4)
		if !ok {
			t.Fatalf("not IPv4: % x", data[:20])
		}
		dir, ttl := 1, ip.TTL+routers
		if ip.SrcIP.String() == addr {
			dir, ttl = 0, ip.TTL
		}
		seen[dir][fmt.Sprintf("tos=%d ttl=%d id=%d %x", ip.TOS, ttl, ip.Id, ip.Payload)]++
	}
}

// A quota given to the daemon holds, and the refusal names it.
func TestDaemonLimit(t *testing.T) {
	d := startDaemon(t, testaddr.Take(t, 1)[0], socketIn(t), "--limit", "user:protection_domains=2", "--limit", "program:programs=1")
	var got error
	for i := range 3 {
		dev, err := verbs.Open(&verbs.Options{Socket: d.socket})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		if _, got = dev.AllocPD(); (got == nil) != (i < 2) {
			t.Fatalf("domain %d: %v", i, got)
		}
	}
	if !errors.Is(got, unix.ENOMEM) || !strings.Contains(got.Error(), "protection domains") || !strings.Contains(got.Error(), "limit 2") {
		t.Errorf("got %v, want ENOMEM that names the limit", got)
	}
}

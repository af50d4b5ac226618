package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/testnet"
	"github.com/softroce/softroce/pkg/udp4791"
)

// host is where one side runs: an address, in a namespace or here.
type host struct {
	addr netip.Addr
	ns   *testnet.Host // nil: this namespace
}

// in runs f in the host's namespace.
func (h host) in(f func() error) error {
	if h.ns == nil {
		return f()
	}
	return h.ns.Do(f)
}

// Sizes of the run.
const (
	floorPackets = 60_000
	tcpBytes     = 512 << 20
	patience     = 60 * time.Second
)

// measure does everything once between two hosts.
func measure(b *testing.B, tab *Table, bin, path string, x, y host) {
	b.Helper()
	const floor, tcp, ping = "raw UDP, 4096-byte packets", "kernel TCP, 1 MiB writes", "raw UDP ping-pong, polling"
	gbs := func(name, base string, must, v float64) {
		tab.Add(Row{Name: name, Path: path, Unit: "GB/s", Base: base, Must: must}, v)
	}
	bw, rtt := floors(b, x, y)
	gbs(floor, "", 0, bw)
	tab.Add(Row{Name: ping, Path: path, Unit: "us round trip"}, rtt)
	gbs(tcp, "", 0, tcpStream(b, x, y))
	p := startPair(b, bin, x, y)
	defer p.stop()
	gbs("WRITE 64 KiB", floor, mustWrite, p.bandwidth("write", 65536, 4000))
	gbs("READ 64 KiB", floor, 0, p.bandwidth("read", 65536, 2000))
	gbs("SEND 64 KiB", floor, 0, p.bandwidth("send", 65536, 2000))
	gbs("WRITE 1 MiB", floor, 0, p.bandwidth("write", 1<<20, 300))
	gbs("WRITE 1 MiB against TCP", tcp, 0, p.bandwidth("write", 1<<20, 300))
	tab.Add(Row{Name: "WRITE 8 bytes, polling", Path: path, Unit: "us round trip", Base: ping}, 2*p.latency("write", 8, 3000))
	tab.Add(Row{Name: "SEND 8 bytes, polling", Path: path, Unit: "us round trip", Base: ping}, 2*p.latency("send", 8, 3000))
}

// floors gives raw bandwidth in GB/s and the raw round trip in microseconds.
func floors(b *testing.B, x, y host) (gbs, us float64) {
	b.Helper()
	open := func(h host) (g *udp4791.Group) {
		err := h.in(func() (err error) {
			g, err = udp4791.Open(udp4791.Config{Addrs: []netip.Addr{h.addr}, Workers: 1})
			return err
		})
		if err != nil {
			b.Fatalf("floor: %v", err)
		}
		return g
	}
	tx, rx := open(x), open(y)
	defer func() { _ = errors.Join(tx.Close(), rx.Close()) }() // sockets only
	r, err := udp4791.Floor(tx, rx, udp4791.FloorConfig{Packets: floorPackets})
	if err != nil {
		b.Fatalf("floor: %v", err)
	}
	pp, err := udp4791.FloorPingPong(tx, rx, udp4791.FloorConfig{Packets: 5000, Size: 48})
	if err != nil {
		b.Fatalf("floor ping-pong: %v", err)
	}
	payload := float64(r.Packets) * 4096
	return payload / r.Elapsed.Seconds() / 1e9, float64(pp.Median.Nanoseconds()) / 1e3
}

// tcpStream gives what one kernel TCP connection carries in GB/s.
func tcpStream(b *testing.B, x, y host) float64 {
	b.Helper()
	var l net.Listener
	err := y.in(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(y.addr, 0).String())
		return err
	})
	if err != nil {
		b.Fatalf("tcp: %v", err)
	}
	defer l.Close()
	var c net.Conn
	if err := x.in(func() (err error) { c, err = net.Dial("tcp", l.Addr().String()); return err }); err != nil {
		b.Fatalf("tcp: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		s, err := l.Accept()
		if err == nil {
			buf := make([]byte, 1<<20)
			for err == nil {
				_, err = s.Read(buf)
			}
			_ = s.Close() // read to its end
		}
		done <- err
	}()
	buf := make([]byte, 1<<20)
	start := time.Now()
	for range tcpBytes / len(buf) {
		if _, err := c.Write(buf); err != nil {
			b.Fatalf("tcp: %v", err)
		}
	}
	_ = c.Close() // the reader sees the end
	if err := <-done; !errors.Is(err, io.EOF) {
		b.Fatalf("tcp: %v", err)
	}
	return tcpBytes / time.Since(start).Seconds() / 1e9
}

// pair is two daemons.
type pair struct {
	b       *testing.B
	bin     string
	x, y    host
	sockets [2]string
	daemons [2]*exec.Cmd
	port    int
}

func startPair(b *testing.B, bin string, x, y host) *pair {
	b.Helper()
	dir, err := os.MkdirTemp("", "bench") //nolint:usetesting // b.TempDir's path is too long for a socket (2026-11)
	if err != nil {
		b.Fatal(err)
	}
	p := &pair{b: b, bin: bin, x: x, y: y, port: 18600}
	b.Cleanup(func() { p.stop(); _ = os.RemoveAll(dir) })
	for i, h := range []host{x, y} {
		p.sockets[i] = filepath.Join(dir, fmt.Sprint(i))
		cmd := exec.Command(bin, "daemon", "--addr", h.addr.String(), "--socket", p.sockets[i], "--log-level", "warn")
		cmd.Stderr = os.Stderr
		if err := h.in(cmd.Start); err != nil {
			b.Fatal(err)
		}
		p.daemons[i] = cmd
		end := time.Now().Add(patience)
		for {
			if _, err := os.Stat(p.sockets[i]); err == nil {
				break
			}
			if time.Now().After(end) {
				b.Fatal("the daemon does not serve")
			}
			<-time.After(5 * time.Millisecond)
		}
	}
	return p
}

func (p *pair) stop() {
	for i, d := range p.daemons {
		if d != nil {
			_ = d.Process.Signal(syscall.SIGTERM) // it may have ended
			_ = d.Wait()                          // its log has said why
			p.daemons[i] = nil
		}
	}
}

// perfReport is what the perf command's --json gives of a row.
type perfReport struct {
	Rows []struct {
		Bandwidth struct {
			Average float64 `json:"average_mib_per_sec"`
		} `json:"bandwidth"`
		Latency struct {
			Typical float64 `json:"t_typical_usec"`
		} `json:"latency"`
	} `json:"rows"`
}

// bandwidth gives one run's average in GB/s.
func (p *pair) bandwidth(op string, size, iters int) float64 {
	r := p.perf(op, "--bw", "-s", fmt.Sprint(size), "-n", fmt.Sprint(iters))
	return r.Rows[0].Bandwidth.Average * (1 << 20) / 1e9
}

// latency gives the typical half round trip in microseconds.
func (p *pair) latency(op string, size, iters int) float64 {
	return p.perf(op, "--lat", "-s", fmt.Sprint(size), "-n", fmt.Sprint(iters)).Rows[0].Latency.Typical
}

// perf runs server and client programs.
func (p *pair) perf(op string, args ...string) (r perfReport) {
	p.b.Helper()
	p.port++
	common := append([]string{"perf", op, "-p", fmt.Sprint(p.port), "-m", "4096"}, args...)
	server := exec.Command(p.bin, append(common, "--socket", p.sockets[1])...)
	server.Stderr = os.Stderr
	if err := p.y.in(server.Start); err != nil {
		p.b.Fatal(err)
	}
	// The client is tried until the server listens.
	end := time.Now().Add(patience)
	for {
		var stdout, stderr bytes.Buffer
		client := exec.Command(p.bin, append(common, "--socket", p.sockets[0], "--json", p.y.addr.String())...)
		client.Stdout, client.Stderr = &stdout, &stderr
		err := p.x.in(client.Start)
		if err == nil {
			err = client.Wait()
		}
		if err == nil {
			err = json.Unmarshal(stdout.Bytes(), &r)
		}
		if err == nil && len(r.Rows) == 1 {
			break
		}
		if time.Now().After(end) || !strings.Contains(stderr.String(), "refused") {
			_ = server.Process.Kill() // the failure is the client's
			p.b.Fatalf("perf %v: %v: %s", args, err, stderr.String())
		}
		<-time.After(20 * time.Millisecond)
	}
	if err := server.Wait(); err != nil {
		p.b.Fatalf("perf server: %v", err)
	}
	return r
}

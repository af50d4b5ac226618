package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/pkg/rdmanet"
	"github.com/softroce/softroce/pkg/verbs"
)

var (
	streamTime   = flag.Duration("streamtime", 50*time.Millisecond, "how long TestStreamBesidePerf measures each")
	streamRounds = flag.Int("streamrounds", 1, "rounds of TestStreamBesidePerf")
)

// readStream is a program that reads a stream into a buffer until it ends.
func readStream(socket, addr, size, how string) error {
	n, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	dev, err := verbs.Open(&verbs.Options{Socket: socket})
	if err != nil {
		return err
	}
	defer dev.Close()
	l, err := rdmanet.Listen(dev, net.JoinHostPort(addr, "0"))
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	c, err := l.Accept()
	if err != nil {
		return err
	}
	total, err := readAll(c, n, how)
	if err != nil {
		return err
	}
	fmt.Println(total)
	return errors.Join(c.Close(), l.Close())
}

// Ways of a program to use a stream.
const (
	byCalls = "Write and Read"
	byCopy  = "io.Copy on both sides" // without data of its own, as perf is
)

func readAll(c net.Conn, size int, how string) (total int64, err error) {
	if how == byCopy {
		return io.Copy(nowhere{}, c)
	}
	for buf := make([]byte, size); ; {
		n, err := c.Read(buf)
		total += int64(n)
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

type nowhere struct{}

func (nowhere) Write(b []byte) (int, error) { return len(b), nil }

// until is a reader of anything, until a moment comes.
type until struct{ end time.Time }

func (u until) Read(b []byte) (int, error) {
	if time.Now().After(u.end) {
		return 0, io.EOF
	}
	return len(b), nil
}

func writeAll(c net.Conn, size int, end time.Time, how string) (total int64, err error) {
	if how == byCopy {
		return io.Copy(c, until{end})
	}
	for buf := make([]byte, size); time.Now().Before(end); {
		n, err := c.Write(buf)
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// writeStream is a program that writes to it for a while, and tells how many bytes
// went in how many seconds.
func writeStream(socket, to, size, long, how string) error {
	n, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(long)
	if err != nil {
		return err
	}
	dev, err := verbs.Open(&verbs.Options{Socket: socket})
	if err != nil {
		return err
	}
	defer dev.Close()
	c, err := rdmanet.Dial(context.Background(), dev, to)
	if err != nil {
		return err
	}
	start := time.Now()
	total, err := writeAll(c, n, start.Add(d), how)
	if err != nil {
		return err
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	fmt.Println(total, time.Since(start).Seconds())
	return c.Close()
}

// TestStreamBesidePerf is a stream of package rdmanet beside `softroce perf write`
// with messages of the same size, by the same daemons. It fails when one does not
// work; its figures are for who asks for them (docs/performance.md has the command).
func TestStreamBesidePerf(t *testing.T) {
	addrs := testaddr.Take(t, 2)
	server, client := startDaemon(t, addrs[0], socketIn(t)), startDaemon(t, addrs[1], socketIn(t))
	type row struct {
		size                  int
		how                   string
		streams, perfs, ratio []float64
	}
	rows := []*row{{size: 64 << 10, how: byCalls}, {size: 1 << 20, how: byCalls}, {size: 64 << 10, how: byCopy}, {size: 1 << 20, how: byCopy}}
	for range *streamRounds {
		for _, r := range rows {
			s, p := stream(t, server, client, r.size, r.how), perfWrite(t, server, client, r.size)
			r.streams, r.perfs, r.ratio = append(r.streams, s), append(r.perfs, p), append(r.ratio, s/p)
		}
	}
	for _, r := range rows {
		t.Logf("%7d bytes, %s: stream %.2f GB/s, perf write %.2f GB/s; ratio %.2f (%.2f to %.2f)",
			r.size, r.how, median(r.streams), median(r.perfs), median(r.ratio), slices.Min(r.ratio), slices.Max(r.ratio))
	}
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// stream tells how many GB a second a stream carries.
func stream(t *testing.T, server, client *daemon, size int, how string) float64 {
	t.Helper()
	reader := startProgram(t, "read-stream", server.socket, server.addr.String(), strconv.Itoa(size), how)
	defer reader.kill()
	at := reader.line(t)
	writer := startProgram(t, "write-stream", client.socket, at, strconv.Itoa(size), streamTime.String(), how)
	defer writer.kill()
	var wrote int
	var seconds float64
	line := writer.line(t)
	if _, err := fmt.Sscan(line, &wrote, &seconds); err != nil {
		t.Fatalf("the writer says %q: %v", line, err)
	}
	if read := reader.line(t); read != strconv.Itoa(wrote) {
		t.Errorf("%d bytes were written, %s read", wrote, read)
	}
	return float64(wrote) / seconds / 1e9
}

// perfWrite tells what `softroce perf write` measures, in GB a second.
func perfWrite(t *testing.T, server, client *daemon, size int) float64 {
	t.Helper()
	port := strconv.Itoa(freePort(t))
	srv := tool(t, "perf", "write", "--bw", "-R", "-p", port, "--socket", server.socket)
	var r ran
	eventually(t, "the server listens", func() bool {
		r = softroce(t, nil, "perf", "write", "--bw", "-R", "-p", port, "-s", strconv.Itoa(size), "--json",
			"-D", strconv.FormatFloat(streamTime.Seconds(), 'f', 3, 64), "--socket", client.socket, server.addr.String())
		return r.code == 0 || srv.ended() || !strings.Contains(r.stderr, "no server to connect to")
	})
	srv.finish(t)
	var rep struct {
		Rows []struct {
			Bandwidth struct {
				Average float64 `json:"average_mib_per_sec"`
			} `json:"bandwidth"`
		} `json:"rows"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &rep); err != nil || len(rep.Rows) != 1 {
		t.Fatalf("perf: status %d: %v\n%s%s", r.code, err, r.stdout, r.stderr)
	}
	return rep.Rows[0].Bandwidth.Average * (1 << 20) / 1e9
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	osexec "os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// softroce is two adapters, each the daemon of a namespace of its own, joined by a veth pair.
type softroce struct {
	program string
	daemons []*osexec.Cmd
}

// A side is one namespace; the client is on the first, the server on the second.
type side struct{ namespace, link, address, socket string }

var sides = [2]side{
	{"softroce1", "veth1", "10.99.0.1", "/tmp/softroce1.sock"},
	{"softroce2", "veth2", "10.99.0.2", "/tmp/softroce2.sock"},
}

// vethMTU is that of the guest's own card, which rxe is on.
const vethMTU = "9000"

const metricsPort = "9479"

// in makes the command that runs args in the side's namespace.
func (s side) in(args ...string) []string {
	return append([]string{"ip", "netns", "exec", s.namespace}, args...)
}

// startSoftroce makes the namespaces and starts the daemons, with the faster CRC where they let it be chosen.
func startSoftroce(ctx context.Context, program string, flags []string, r *result) (*softroce, error) {
	if err := link(ctx); err != nil {
		return nil, err
	}
	s := &softroce{program: program}
	help, err := run(ctx, program, "daemon", "--help")
	if err != nil {
		return nil, err
	}
	if strings.Contains(help, "--crc ") && !slices.Contains(flags, "--crc") {
		flags = append(flags, "--crc", fastest(r.CRC))
	}
	if i := slices.Index(flags, "--crc"); i >= 0 && i+1 < len(flags) {
		r.CRCUsed = flags[i+1]
	}
	r.Flags = strings.Join(flags, " ")
	for _, x := range sides {
		if err := s.start(ctx, x, flags); err != nil {
			s.stop()
			return nil, err
		}
	}
	return s, nil
}

// link joins the two namespaces.
func link(ctx context.Context) error {
	a, b := sides[0], sides[1]
	commands := [][]string{
		{"ip", "netns", "add", a.namespace},
		{"ip", "netns", "add", b.namespace},
		{"ip", "link", "add", a.link, "netns", a.namespace, "mtu", vethMTU, "type", "veth", "peer", "name", b.link, "netns", b.namespace, "mtu", vethMTU},
	}
	for _, x := range sides {
		commands = append(commands,
			[]string{"ip", "-n", x.namespace, "address", "add", x.address + "/24", "dev", x.link},
			[]string{"ip", "-n", x.namespace, "link", "set", x.link, "up"},
			[]string{"ip", "-n", x.namespace, "link", "set", "lo", "up"})
	}
	for _, c := range commands {
		if _, err := run(ctx, c...); err != nil {
			return err
		}
	}
	return nil
}

// start returns once the daemon takes connections.
func (s *softroce) start(ctx context.Context, x side, flags []string) error {
	args := x.in(append([]string{s.program, "daemon", "--addr", x.address, "--socket", x.socket, "--metrics", x.address + ":" + metricsPort}, flags...)...)
	log, err := os.Create(x.socket + ".log")
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the daemon writes it, not we (2026-11)
	cmd := osexec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	s.daemons = append(s.daemons, cmd)
	for range 200 {
		if conn, err := net.Dial("unixpacket", x.socket); err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	said, _ := os.ReadFile(log.Name()) // what there is of it
	return fmt.Errorf("the daemon takes no connection after 10 s: %s", said)
}

func (s *softroce) stop() {
	for _, d := range s.daemons {
		_ = d.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = d.Wait()                          // the guest ends anyway
	}
}

func (s *softroce) measure(ctx context.Context, c config) (figure, error) {
	if c.Op == opConnect {
		cmtime := []string{s.program, "cmtime", "-c", fmt.Sprint(c.Iters)}
		server := sides[1].in(append(cmtime[:len(cmtime):len(cmtime)], "--socket", sides[1].socket)...)
		client := sides[0].in(append(cmtime[:len(cmtime):len(cmtime)], "--socket", sides[0].socket, "-s", sides[1].address)...)
		return connect(ctx, c, server, client, []string{s.program, "resource", "cm_id", "--socket", sides[1].socket})
	}
	mode := "--bw"
	if c.Latency {
		mode = "--lat"
	}
	args := append([]string{s.program, "perf", c.Op, mode, "-p", fmt.Sprint(serverPort)}, c.receives()...)
	args = append(args, "-m", fmt.Sprint(c.MTU), "-s", fmt.Sprint(c.Size), "-n", fmt.Sprint(c.Iters))
	args = args[:len(args):len(args)]
	server := sides[1].in(append(args, "--socket", sides[1].socket)...)
	client := sides[0].in(append(args, "--socket", sides[0].socket, "--json", sides[1].address)...)
	p, err := pair(ctx, server, client)
	if err != nil {
		return figure{}, fmt.Errorf("softroce perf %s: %w", c.Op, err)
	}
	f, err := readPerf(p.out.String(), c)
	f.wall = p.took
	return f, err
}

// readPerf finds the figures in what `softroce perf --json` printed.
func readPerf(out string, c config) (figure, error) {
	var r struct {
		Rows []struct {
			Bandwidth struct {
				Average float64 `json:"average_mib_per_sec"`
			} `json:"bandwidth"`
			Latency struct {
				Typical float64 `json:"t_typical_usec"`
				Average float64 `json:"t_avg_usec"`
			} `json:"latency"`
		} `json:"rows"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Rows) != 1 {
		return figure{}, errors.Join(err, fmt.Errorf("no figures in %q", out))
	}
	if row := r.Rows[0]; c.Latency {
		return c.figure(row.Latency.Typical, row.Latency.Average)
	}
	return c.figure(r.Rows[0].Bandwidth.Average, r.Rows[0].Bandwidth.Average)
}

// retransmissions is how many packets both adapters have sent again.
func (s *softroce) retransmissions(ctx context.Context) (int64, error) {
	var sum int64
	for _, x := range sides {
		page, err := run(ctx, x.in("busybox", "wget", "-q", "-O", "-", "http://"+x.address+":"+metricsPort+"/metrics")...)
		if err != nil {
			return 0, err
		}
		n, err := readRetransmissions(page)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func readRetransmissions(page string) (int64, error) {
	var sum float64
	found := false
	for l := range strings.Lines(page) {
		if !strings.HasPrefix(l, "softroce_retransmits_total") {
			continue
		}
		f := strings.Fields(l)
		v, err := strconv.ParseFloat(f[len(f)-1], 64)
		if err != nil {
			return 0, err
		}
		sum, found = sum+v, true
	}
	if !found {
		return 0, errors.New("the metrics have no softroce_retransmits_total")
	}
	return int64(sum), nil
}

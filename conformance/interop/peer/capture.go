package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

// A capture records a case's RoCE packets at the guest's tap with tcpdump.
type capture struct {
	file   string
	cmd    *exec.Cmd
	stderr *bytes.Buffer
	ready  chan struct{}
	done   chan struct{}
}

// Immediate mode: without it tcpdump would lose what the kernel has collected but not handed over when it is stopped.
func startCapture(ctx context.Context, file string) (*capture, error) {
	c := &capture{file: file, stderr: &bytes.Buffer{}, ready: make(chan struct{}), done: make(chan struct{})}
	c.cmd = child(ctx, "tcpdump", "-i", "tap1", "-Z", "root", "-n", "-s", "0", "-B", "65536", "--immediate-mode", "-w", file, "udp port 4791")
	pipe, err := c.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go c.listen(pipe)
	select {
	case <-c.ready:
		return c, nil
	case <-c.done:
		return nil, fmt.Errorf("tcpdump ended: %s", strings.TrimSpace(c.stderr.String()))
	case <-time.After(20 * time.Second):
		_ = c.cmd.Process.Kill()
		return nil, errors.New("tcpdump did not start within 20 s")
	}
}

// listen reads what tcpdump says; c.stderr is safe to read once c.done is closed.
func (c *capture) listen(pipe io.Reader) {
	defer close(c.done)
	ready := c.ready
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		c.stderr.WriteString(lines.Text() + "\n")
		if ready != nil && strings.Contains(lines.Text(), "listening on") {
			close(ready)
			ready = nil
		}
	}
}

var kernelDrops = regexp.MustCompile(`(\d+) packets? dropped by kernel`)

// stop ends the recording and returns how many packets the kernel could not give to it.
func (c *capture) stop() (missed int, err error) {
	if err := c.cmd.Process.Signal(syscall.SIGINT); err != nil {
		return 0, err
	}
	<-c.done
	if err := c.cmd.Wait(); err != nil {
		return 0, fmt.Errorf("tcpdump: %w: %s", err, c.stderr)
	}
	if m := kernelDrops.FindStringSubmatch(c.stderr.String()); m != nil {
		missed, err = strconv.Atoi(m[1])
	}
	return missed, err
}

// A wire is what a capture holds, counted.
type wire struct {
	packets int
	// count has "payload 1024" (packets by payload length), "psn 0x000100", "nak 0x62", "rnr nak", and
	// "again": requests whose QPN, PSN and opcode were there before, so a retransmission or a duplicate.
	count map[string]int
}

func nakName(code int) string { return fmt.Sprintf("nak %#x", code) }

// readWire counts the packets of an Ethernet pcap file as tcpdump writes it here: little-endian, microseconds.
func readWire(file string) (*wire, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if len(b) < 24 || binary.LittleEndian.Uint32(b) != 0xa1b2c3d4 {
		return nil, fmt.Errorf("%s is not a pcap file", file)
	}
	w := &wire{count: map[string]int{}}
	seen := map[[2]uint64]bool{}
	for b = b[24:]; len(b) >= 16; {
		n := int(binary.LittleEndian.Uint32(b[8:]))
		if len(b) < 16+n {
			return nil, fmt.Errorf("%s: packet %d is cut", file, w.packets+1)
		}
		w.packets++
		w.add(b[16:16+n], seen)
		b = b[16+n:]
	}
	return w, nil
}

// add counts one frame. What does not parse is left to decode and tshark, which complain.
func (w *wire) add(frame []byte, seen map[[2]uint64]bool) {
	skip := 14 + 20 + 8
	if len(frame) > 14 && frame[14]>>4 == 6 {
		skip = 14 + 40 + 8
	}
	var p bth.Packet
	if len(frame) < skip || p.Parse(frame[skip:]) != nil {
		return
	}
	h := p.BTH()
	w.count[fmt.Sprintf("payload %d", len(p.Payload))]++
	w.count[fmt.Sprintf("psn 0x%06x", uint32(h.PSN()))]++
	if p.Has(bth.HasAETH) {
		switch s := p.AETH().Syndrome(); {
		case s.IsRNR():
			w.count["rnr nak"]++
		case s.IsNAK():
			w.count[nakName(int(s))]++
		}
	}
	if p.Info.Request {
		key := [2]uint64{uint64(h.DestQP())<<8 | uint64(p.Opcode), uint64(h.PSN())}
		if seen[key] {
			w.count["again"]++
		}
		seen[key] = true
	}
}

// lacks names the first thing that the capture should show and does not.
func (w *wire) lacks(shows map[string]int) string {
	for what, least := range shows {
		if w.count[what] < least {
			return fmt.Sprintf("the capture shows %q %d times, at least %d are due", what, w.count[what], least)
		}
	}
	return ""
}

// Upper protocols that tshark guesses from a payload; what it then calls malformed is none of ours.
var guessing = []string{"rpcordma", "smb_direct", "nvme-rdma", "iser", "infiniband.eoib", "smc", "lnet", "loop"}

// tsharkCheck has tshark read a capture: every packet must be InfiniBand to it, and none malformed or an error.
func tsharkCheck(ctx context.Context, file string, packets int) error {
	args := []string{
		"-n", "-r", file, "-T", "fields", "-e", "frame.number", "-e", "_ws.malformed", "-e", "_ws.expert.severity", "-e", "infiniband.bth.psn",
		"-o", "udp.ignore_ipv6_zero_checksum:TRUE",
	} // rxe leaves the UDP checksum out, over IPv6 too
	for _, p := range guessing {
		args = append(args, "--disable-protocol", p)
	}
	out, err := child(ctx, "tshark", args...).Output()
	if err != nil {
		return fmt.Errorf("tshark: %w", err)
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		seen++
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != 4 {
			return fmt.Errorf("tshark: packet %d: line %q is not understood", seen, line)
		}
		switch {
		case f[1] != "":
			return fmt.Errorf("tshark calls packet %s of %s malformed", f[0], file)
		case strings.Contains(f[2], expertError):
			return fmt.Errorf("tshark reports an error in packet %s of %s", f[0], file)
		case f[3] == "":
			return fmt.Errorf("tshark does not see InfiniBand in packet %s of %s", f[0], file)
		}
	}
	if seen != packets {
		return fmt.Errorf("tshark read %d packets of %s, %d are there", seen, file, packets)
	}
	return nil
}

// expertError is PI_ERROR, the worst severity of tshark's expert notes, as it prints the number.
const expertError = "8388608"

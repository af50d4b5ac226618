package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// agent is the command agent of guest 1, from the lab's namespace.
const agent = "127.0.0.1:2201"

// Words that begin a line of the guest's that is not progress.
const (
	beginWord  = "begin"   // the guest's clock starts
	resultWord = "result " // the result follows; the guest's clock has stopped
)

// Where the programs lie in the guest: in memory.
const (
	guestBench    = "/tmp/benchrxe"
	guestSoftroce = "/tmp/softroce"
)

// clockTolerance is how far the guest's clock may run off this machine's before the figures are void.
const clockTolerance = 0.02

// outside has the guest measure, and writes what it found.
func (o options) outside(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for from, to := range map[string]string{self: guestBench, o.softroce: guestSoftroce} {
		if err := put(ctx, from, to); err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
	}
	before := load()
	r, err := o.measure(ctx)
	if err != nil {
		return err
	}
	r.Load = [2]float64{before, load()}
	r.Date = time.Now().UTC().Format("2006-01-02")
	fmt.Println()
	fmt.Print(r.markdown())
	if o.out == "" {
		return nil
	}
	return o.write(r)
}

// measure plays the guest's side and gives its result, with the two clocks compared.
func (o options) measure(ctx context.Context) (*result, error) {
	command := fmt.Sprintf("%s -guest -softroce %s -rounds %d -run '%s' -daemon-flags '%s'", guestBench, guestSoftroce, o.rounds, o.run, o.flags)
	var r *result
	var begin time.Time
	var clock time.Duration
	err := exec(ctx, command, nil, func(line string) error {
		switch text, ok := strings.CutPrefix(line, resultWord); {
		case ok:
			clock = time.Since(begin)
			return json.Unmarshal([]byte(text), &r)
		case line == beginWord:
			begin = time.Now()
		default:
			fmt.Println(line)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, errors.New("the guest gave no result")
	}
	r.Clock = r.Elapsed.Seconds() / clock.Seconds()
	if math.Abs(r.Clock-1) > clockTolerance {
		return nil, fmt.Errorf("void: by the guest's clock it took %v, by this machine's %v", r.Elapsed, clock)
	}
	return r, nil
}

// load is this machine's load average of the last minute, 0 where it is not known.
func load() (v float64) {
	b, _ := os.ReadFile("/proc/loadavg")    // shown, not judged
	_, _ = fmt.Sscanf(string(b), "%g ", &v) // 0 then
	return v
}

// put copies a program into the guest.
func put(ctx context.Context, from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return exec(ctx, fmt.Sprintf("head -c %d >%s && chmod 755 %s", len(data), to, to), data, func(line string) error {
		return errors.New(line)
	})
}

// exec runs a shell command in the guest and hands over each line as it comes. A status other than 0 is an error.
func exec(ctx context.Context, command string, input []byte, each func(line string) error) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", agent)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	head := base64.StdEncoding.EncodeToString([]byte(command)) + "\n"
	if _, err := io.WriteString(conn, head+string(input)); err != nil {
		return err
	}
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		// The agent's last word is the byte 036 and "rc=N", wherever the output ended.
		text, status, last := strings.Cut(lines.Text(), "\x1e")
		if text != "" || !last {
			if err := each(text); err != nil {
				return err
			}
		}
		if last && status != "rc=0" {
			return fmt.Errorf("in the guest: %s", status)
		}
		if last {
			return nil
		}
	}
	return errors.Join(errors.New("the guest broke off"), lines.Err())
}

// write puts the table into the document and the JSON beside it.
func (o options) write(r *result) error {
	name := filepath.Join(o.out, "performance.md")
	doc, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	next, err := replace(string(doc), r.markdown())
	if err != nil {
		return err
	}
	if err := os.WriteFile(name, []byte(next), 0o644); err != nil {
		return err
	}
	data, err := r.json()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, "bench-rxe.json"), data, 0o644)
}

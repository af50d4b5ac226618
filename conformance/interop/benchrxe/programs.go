package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"strings"
	"time"
)

// limit is how long one program may take; kernel rxe is known to freeze a queue pair.
const limit = 60 * time.Second

// serverPort is where a server waits for its client.
const serverPort = 18515

// pair runs a server, and its client once the server listens, and gives the client.
func pair(ctx context.Context, server, client []string) (*program, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s, err := start(ctx, server)
	if err != nil {
		return nil, err
	}
	err = s.listening(ctx)
	var c *program
	if err == nil {
		c, err = start(ctx, client)
	}
	if err != nil {
		cancel()
		return nil, errors.Join(err, s.wait())
	}
	if err := c.wait(); err != nil {
		cancel()
		return nil, errors.Join(err, s.wait())
	}
	return c, s.wait()
}

// A program that runs.
type program struct {
	cmd            *osexec.Cmd
	out, complaint bytes.Buffer // read them after the end
	done           chan struct{}
	took           time.Duration // valid when done
	err            error         // valid when done
}

func start(ctx context.Context, args []string) (*program, error) {
	p := &program{cmd: osexec.CommandContext(ctx, args[0], args[1:]...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.complaint
	begin := time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.done)
		p.err = p.cmd.Wait()
		p.took = time.Since(begin)
	}()
	return p, nil
}

// wait gives how the program ended, with the last line of what it said.
func (p *program) wait() error {
	<-p.done
	if p.err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w: %s", p.cmd.Path, p.err, tail(p.out.String()+p.complaint.String()))
}

// listening waits until a process of the program's network namespace listens on the server's port.
func (p *program) listening(ctx context.Context) error {
	for {
		for _, family := range []string{"tcp", "tcp6"} {
			table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", p.cmd.Process.Pid, family))
			if err == nil && listens(string(table), serverPort) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.done:
			return errors.New("the server ended before it listened")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// listens says whether /proc/net/tcp has a listener on that port.
func listens(table string, port int) bool {
	for l := range strings.Lines(table) {
		// sl, local address, remote address, state: 0A is LISTEN
		if f := strings.Fields(l); len(f) > 3 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) && f[3] == "0A" {
			return true
		}
	}
	return false
}

// tail is the last line of a text.
func tail(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// run runs a program to its end and gives what it printed.
func run(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, err := osexec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

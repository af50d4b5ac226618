package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// connect runs cmtime, rdma-core's or softroce's: all connections at a time. listing is a command that lists the
// identifiers of the server's adapter.
func connect(ctx context.Context, c config, server, client, listing []string) (figure, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	serving, end := context.WithCancel(ctx)
	s, err := start(serving, server)
	if err != nil {
		end()
		return figure{}, err
	}
	defer func() {
		end() // rdma-core's server serves for ever
		<-s.done
	}()
	if err := s.listed(ctx, listing); err != nil {
		return figure{}, err
	}
	p, err := start(ctx, client)
	if err != nil {
		return figure{}, err
	}
	if err := p.wait(); err != nil {
		return figure{}, err
	}
	f, err := readCmtime(p.out.String(), c)
	f.wall = p.took
	return f, err
}

// listed waits until a listing has an identifier that listens.
func (p *program) listed(ctx context.Context, listing []string) error {
	for {
		out, err := run(ctx, listing...)
		if err != nil {
			return err
		}
		if strings.Contains(out, "LISTEN") {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.done:
			return fmt.Errorf("the server ended before it listened: %w", p.wait())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// readCmtime finds in cmtime's table how many connections came up in a second.
func readCmtime(out string, c config) (figure, error) {
	for l := range strings.Lines(out) {
		f := strings.Fields(strings.Replace(l, ":", " ", 1))
		if len(f) != 5 || f[0] != "connect" {
			continue
		}
		ms, err := strconv.ParseFloat(f[1], 64)
		if err != nil || ms <= 0 {
			return figure{}, fmt.Errorf("no time in %q", l)
		}
		total := time.Duration(ms * float64(time.Millisecond))
		return figure{value: float64(c.Iters) / total.Seconds(), claims: total}, nil
	}
	return figure{}, fmt.Errorf("no connections in %q", out)
}

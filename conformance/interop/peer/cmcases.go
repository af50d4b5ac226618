package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// A cmCase is rdma-core's rping or cmtime in the guest against softroce's command of that name, which connect by the connection
// manager, the guest once as the server and once as the client. Both get the same options.
type cmCase struct {
	name    string
	program string // rping when it is empty
	options string
	ipv6    bool
	pings   int
	loss    string // what the guest's network does to packets; empty: nothing
	shows   map[string]int
}

// cmLoss loses and doubles management datagrams, too, of which a connection has six: each one that is lost takes 4 to 6 s.
const cmLoss = "10 5 0"

var cmCases = []cmCase{
	{name: "defaults", options: "-C 10", pings: 10},
	{name: "4096", options: "-C 100 -S 4096", pings: 100, shows: map[string]int{"payload 4096": 190}},
	{name: "smallest", options: "-C 5 -S 23", pings: 5},
	{name: "largest", options: "-C 5 -S 65535", pings: 5, shows: map[string]int{"payload 4096": 140}},
	{name: "other-port", options: "-C 3 -p 19000", pings: 3},
	{name: "ipv6", options: "-C 20 -S 4096", ipv6: true, pings: 20},
	{name: "loss", options: "-C 10 -S 4096", loss: cmLoss, pings: 10, shows: map[string]int{"again": 1}},
	{name: "200", program: "cmtime", options: "-c 200"},
	{name: "ipv6", program: "cmtime", options: "-c 20", ipv6: true},
	{name: "loss", program: "cmtime", options: "-c 20", loss: cmLoss},
	{name: "many", program: "ucmatose", options: "-c 10 -C 100 -S 1000"},
	{name: "ipv6", program: "ucmatose", options: "-c 2 -C 10 -S 1000", ipv6: true},
	{name: "several", program: "udaddy", options: "-c 4 -C 10 -S 1000", shows: map[string]int{"payload 1000": 80}},
	{name: "ipv6", program: "udaddy", options: "-c 2 -C 10 -S 1000", ipv6: true},
	{name: "large", program: "ucmatose", options: "-c 1 -C 10 -S 30000", shows: map[string]int{"payload 4096": 140}},
}

// A cmHost runs one end.
type cmHost interface {
	name() string
	ip(ipv6 bool) string
	// rping runs a server, or with a server's address a client, and returns what it printed.
	rping(ctx context.Context, options, server string, listens func()) (string, error)
	// cmtime is the same of that program. The guest's server does not end by itself, but by endServer.
	cmtime(ctx context.Context, options, server string, listens func()) (string, error)
	endServer(ctx context.Context)
	ucmatose(ctx context.Context, options, server string, listens func()) (string, error)
	udaddy(ctx context.Context, options, server string, listens func()) (string, error)
}

const rpingLimit = 160 * time.Second // a datagram may be lost several times

func (g guest) ip(ipv6 bool) string {
	if ipv6 {
		return fmt.Sprintf("fd77::1%d", g.n)
	}
	return g.address()
}

// awaitListener returns once the guest's kernel has an identifier that listens.
func (g guest) awaitListener(ctx context.Context) error {
	return g.must(ctx, "for i in $(seq 200); do rdma res show cm_id | grep -q LISTEN && exit; sleep 0.05; done; exit 1")
}

func (g guest) listens(ctx context.Context, listens func()) {
	if g.awaitListener(ctx) == nil {
		listens()
	}
}

func (g guest) cmtime(ctx context.Context, options, server string, listens func()) (string, error) {
	if server == "" {
		go g.listens(ctx, listens)
		out, _, err := g.exec(ctx, rpingLimit, "cmtime "+options+" 2>&1")
		return out, err
	}
	out, status, err := g.exec(ctx, rpingLimit, "cmtime -s "+server+" "+options+" 2>&1")
	if err == nil && status != 0 {
		err = fmt.Errorf("ended with %d", status)
	}
	return out, err
}

func (g guest) ucmatose(ctx context.Context, options, server string, listens func()) (string, error) {
	return g.transfers(ctx, "ucmatose", options, server, listens)
}

func (g guest) udaddy(ctx context.Context, options, server string, listens func()) (string, error) {
	return g.transfers(ctx, "udaddy", options, server, listens)
}

func (g guest) transfers(ctx context.Context, program, options, server string, listens func()) (string, error) {
	if server != "" {
		options += " -s " + server
	} else {
		go g.listens(ctx, listens)
	}
	out, status, err := g.exec(ctx, rpingLimit, program+" "+options+" 2>&1")
	if err == nil && status != 0 {
		err = fmt.Errorf("ended with %d", status)
	}
	return out, err
}

func (g guest) endServer(ctx context.Context) {
	_, _, _ = g.exec(ctx, callLimit, "pkill -x cmtime") // it may have ended
}

func (softroceHost) endServer(context.Context) {}

func (g guest) rping(ctx context.Context, options, server string, listens func()) (string, error) {
	role := "-s"
	if server != "" {
		role = "-c -V -a " + server
	} else {
		go g.listens(ctx, listens)
	}
	// Apart, as the program's output is buffered and its errors are not.
	out, status, err := g.exec(ctx, rpingLimit, fmt.Sprintf("rping %s -v %s 2>/tmp/rping.err; rc=$?; cat /tmp/rping.err; exit $rc", role, options))
	if err == nil && status != 0 {
		err = fmt.Errorf("ended with %d", status)
	}
	return out, err
}

func (s softroceHost) ip(ipv6 bool) string {
	addrs := s.d.addrs()
	if ipv6 {
		return addrs[1]
	}
	return addrs[0]
}

func (s softroceHost) rping(ctx context.Context, options, server string, listens func()) (string, error) {
	args := append([]string{"rping", "-v"}, strings.Fields(options)...)
	if server != "" {
		args = append(args, "-c", "-V", "-a", server)
	} else {
		args = append(args, "-s", "-d")
	}
	return s.command(ctx, args, listens)
}

func (s softroceHost) cmtime(ctx context.Context, options, server string, listens func()) (string, error) {
	args := append([]string{"cmtime"}, strings.Fields(options)...)
	if server != "" {
		args = append(args, "-s", server)
	}
	return s.command(ctx, args, listens)
}

// command runs softroce; listens is called when it says that it listens.
func (s softroceHost) command(ctx context.Context, args []string, listens func()) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, rpingLimit)
	defer cancel()
	out := &watched{text: "listening on", seen: listens}
	cmd := child(ctx, s.d.program, args...)
	cmd.Env = append(os.Environ(), "SOFTROCE_SOCKET="+s.d.socket)
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("not done after %v", rpingLimit)
	}
	return out.String(), err
}

// watched is what a program prints. seen is called once a text is among it.
type watched struct {
	text string
	seen func()
	mu   sync.Mutex
	b    bytes.Buffer
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b.Write(p)
	if w.text != "" && bytes.Contains(w.b.Bytes(), []byte(w.text)) {
		w.text = ""
		w.seen()
	}
	return len(p), nil
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// run plays the case once; the reason why it failed, or nil.
func (c cmCase) run(ctx context.Context, server, client cmHost, log logf) error {
	type result struct {
		out string
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served, listens := make(chan result, 1), make(chan struct{})
	go func() {
		out, err := c.play(ctx, server, "", func() { close(listens) })
		served <- result{out, err}
	}()
	select {
	case s := <-served:
		return errors.Join(fmt.Errorf("the server (%s) ended before a client came: %s", server.name(), lastLine(s.out)), s.err)
	case <-listens:
	}
	var cl result
	cl.out, cl.err = c.play(ctx, client, server.ip(c.ipv6), nil)
	if c.program == "cmtime" {
		server.endServer(ctx)
	}
	if cl.err != nil {
		cancel() // the server may wait for ever
	}
	s := <-served
	log("--- server %s\n%s", server.name(), s.out)
	log("--- client %s\n%s", client.name(), cl.out)
	if cl.err != nil {
		return fmt.Errorf("the client (%s): %w: %s", client.name(), cl.err, lastLine(cl.out))
	}
	if s.err != nil {
		return fmt.Errorf("the server (%s): %w: %s", server.name(), s.err, lastLine(s.out))
	}
	return c.judge(s.out, cl.out)
}

// play runs one end.
func (c cmCase) play(ctx context.Context, host cmHost, server string, listens func()) (string, error) {
	options := c.options
	if server == "" && c.ipv6 && c.program != "" { // rdma-core's listen on IPv4 else
		options += " -b " + host.ip(true)
	}
	switch {
	case c.program == "cmtime":
		return host.cmtime(ctx, options, server, listens)
	case c.program == "udaddy":
		return host.udaddy(ctx, options, server, listens)
	case c.program == "ucmatose":
		return host.ucmatose(ctx, options, server, listens)
	case server == "":
		return host.rping(ctx, c.options+" -a "+host.ip(c.ipv6), "", listens)
	}
	return host.rping(ctx, c.options, server, listens)
}

// judge compares what both ends printed: each ping's data, the same at both. Of cmtime the client's table is there, which is
// printed when every connection came up and ended.
func (c cmCase) judge(server, client string) error {
	if c.program == "ucmatose" || c.program == "udaddy" {
		if !strings.Contains(server, "data transfers complete") || !strings.Contains(client, "data transfers complete") {
			return fmt.Errorf("data transfers are not complete: %s, %s", lastLine(server), lastLine(client))
		}
		return nil
	}
	if c.program == "cmtime" {
		if !strings.Contains(client, "us / conn") || !strings.Contains(client, "\ndestroy ") {
			return fmt.Errorf("the client printed no table: %s", lastLine(client))
		}
		return nil
	}
	sent, got := pingLines(client, "ping data: "), pingLines(server, "server ping data: ")
	if len(sent) != c.pings || len(got) != c.pings {
		return fmt.Errorf("the client printed %d pings, the server %d, not %d", len(sent), len(got), c.pings)
	}
	for i := range sent {
		if sent[i] != got[i] || !strings.HasPrefix(sent[i], fmt.Sprintf("rdma-ping-%d: ", i)) {
			return fmt.Errorf("ping %d is %.40q at the client, %.40q at the server", i, sent[i], got[i])
		}
	}
	return nil
}

func pingLines(out, start string) (data []string) {
	for line := range strings.Lines(out) {
		if d, is := strings.CutPrefix(strings.TrimSuffix(line, "\n"), start); is {
			data = append(data, d)
		}
	}
	return data
}

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// ClientConfig says how to talk to an agent. The zero value will do.
type ClientConfig struct {
	// Token is the word that the agent was started with, if it was.
	Token string
	// Timeout is how long an answer may take, beside what the request waits itself (ms); default 20 s.
	Timeout time.Duration
	// Local is the address to connect from, if not any: the agent knows its tester by it.
	Local net.IP
}

// Client is the tester's end of a connection to an agent. Its methods may be called from several goroutines; requests are
// answered one after the other.
type Client struct {
	hello   *Hello
	timeout time.Duration

	mu    sync.Mutex
	conn  net.Conn
	lines *lines
	dead  error // why nothing can be asked any more
}

// Dial connects to the agent at addr, HOST or HOST:PORT, and says hello. An agent of another version is an error.
func Dial(ctx context.Context, addr string, cfg ClientConfig) (*Client, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		addr = net.JoinHostPort(addr, strconv.Itoa(DefaultPort))
	}
	var d net.Dialer
	if cfg.Local != nil {
		d.LocalAddr = &net.TCPAddr{IP: cfg.Local}
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 20 * time.Second
	}
	within, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	conn, err := d.DialContext(within, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	c := &Client{timeout: cfg.Timeout, conn: conn, lines: newLines(conn)}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err = c.greet(cfg.Token)
	if !stop() && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("agent at %s: %w", addr, err)
	}
	return c, nil
}

// greet says hello and looks at the answer.
func (c *Client) greet(token string) error {
	a, err := c.Do(Request{Do: DoHello, Version: Version, Token: token})
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w (does it know this host as its tester?)", err)
	case err != nil:
		return err
	case a.Hello == nil:
		return errors.New("what answers is no agent: it does not say its version")
	case a.Hello.Version != Version:
		return fmt.Errorf("it speaks version %d of the protocol, this is version %d", a.Hello.Version, Version)
	}
	c.hello = a.Hello
	return a.Hello.plausible()
}

// Hello is what the agent said of its target.
func (c *Client) Hello() *Hello { return c.hello }

// Do asks and waits for the answer. A refusal is an *[Error], and changes nothing for the next request. After any other error
// (silence, a connection that ended, an answer that is none) the client is dead: it returns that error again.
func (c *Client) Do(r Request) (*Answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead != nil {
		return nil, c.dead
	}
	a, err := c.ask(r)
	if err != nil {
		c.dead = fmt.Errorf("the agent is lost since %q: %w", r.Do, err)
		_ = c.conn.Close()
		return nil, c.dead
	}
	if a.Error != "" || a.Errno != "" {
		return nil, &Error{Do: r.Do, Text: a.Error, Errno: a.Errno}
	}
	return a, nil
}

// ask is one exchange.
func (c *Client) ask(r Request) (*Answer, error) {
	line, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if len(line) >= MaxLine {
		return nil, errLong
	}
	wait := c.timeout + time.Duration(min(max(r.MS, 0), MaxWait))*time.Millisecond
	if err := c.conn.SetDeadline(time.Now().Add(wait)); err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(append(line, '\n')); err != nil {
		return nil, silence(err, wait)
	}
	if line, err = c.lines.next(); err != nil {
		return nil, silence(err, wait)
	}
	a := &Answer{}
	if err := decode(line, a, false); err != nil {
		return nil, fmt.Errorf("its answer is not one: %w in %s", err, brief(line))
	}
	return a, nil
}

// silence says what an error of the connection means.
func silence(err error, wait time.Duration) error {
	var n net.Error
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("it closed the connection: %w", err)
	case errors.As(err, &n) && n.Timeout():
		return fmt.Errorf("it did not answer for %v: %w", wait, err)
	}
	return err
}

// Close ends the session: the agent destroys its objects.
func (c *Client) Close() error {
	err := c.conn.Close() // first, so that a request that waits ends
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead != nil {
		return nil
	}
	c.dead = net.ErrClosed
	return err
}

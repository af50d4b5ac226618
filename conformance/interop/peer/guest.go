package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// A guest is reached over its second card, from the namespace's loopback.
type guest struct{ n int }

func (g guest) agent() string   { return fmt.Sprintf("127.0.0.1:%d", 2200+g.n) }
func (g guest) peer() string    { return fmt.Sprintf("127.0.0.1:%d", 2300+g.n) }
func (g guest) address() string { return fmt.Sprintf("10.77.0.1%d", g.n) }

// exec runs a shell command in the guest and returns both its streams and its exit status. The command is ended there
// after limit.
func (g guest) exec(ctx context.Context, limit time.Duration, command string) (output string, status int, err error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", g.agent())
	if err != nil {
		return "", 0, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(limit + 10*time.Second)); err != nil {
		return "", 0, err
	}
	line := fmt.Sprintf("timeout %d bash -c %s", int(limit.Seconds()), quote(command))
	if _, err := io.WriteString(conn, base64.StdEncoding.EncodeToString([]byte(line))+"\n"); err != nil {
		return "", 0, err
	}
	// The agent's last word is the byte 036 and "rc=N".
	b, err := io.ReadAll(conn)
	at := bytes.LastIndexByte(b, 0o36)
	if at < 0 {
		return string(b), 0, errors.Join(fmt.Errorf("guest %d broke off %q", g.n, command), err)
	}
	status, err = strconv.Atoi(string(bytes.TrimSpace(bytes.TrimPrefix(b[at+1:], []byte("rc=")))))
	return string(b[:at]), status, err
}

// must runs a command that has to succeed.
func (g guest) must(ctx context.Context, command string) error {
	out, status, err := g.exec(ctx, callLimit, command)
	if err == nil && status != 0 {
		err = fmt.Errorf("guest %d: %q ended with %d: %s", g.n, command, status, out)
	}
	return err
}

// quote makes one word of a shell command.
func quote(s string) string {
	return "'" + string(bytes.ReplaceAll([]byte(s), []byte("'"), []byte(`'\''`))) + "'"
}

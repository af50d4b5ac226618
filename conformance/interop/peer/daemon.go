package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// A daemon is the softroce daemon of this run, in the lab's namespace.
type daemon struct {
	program string
	socket  string
	logs    string

	cmd  *exec.Cmd
	done chan struct{} // closed when it ended, err is set then
	err  error
}

func (d *daemon) logFile() string { return filepath.Join(d.logs, "daemon.log") }

// start returns once the daemon takes connections.
func (d *daemon) start(ctx context.Context) error {
	file, err := os.Create(d.logFile())
	if err != nil {
		return err
	}
	defer file.Close()
	// Not bound to ctx: an interrupted run ends it by stop, too.
	d.cmd = child(context.WithoutCancel(ctx), d.program, "daemon", "--addr", "10.77.0.1", "--addr", "fd77::1", "--socket", d.socket,
		"--metrics", metricsAddress)
	d.cmd.Stdout, d.cmd.Stderr = file, file
	if err := d.cmd.Start(); err != nil {
		return err
	}
	d.done = make(chan struct{})
	go func() {
		d.err = d.cmd.Wait()
		close(d.done)
	}()
	for range 400 {
		conn, err := net.Dial("unixpacket", d.socket)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-d.done:
			b, _ := os.ReadFile(d.logFile())
			return fmt.Errorf("the daemon ended (%s): %s", d.cmd.ProcessState, lastLine(string(b)))
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return errors.New("the daemon takes no connection after 20 s")
}

// stop asks the daemon to end and says how it did: it must still be there, and leave with status 0.
func (d *daemon) stop() error {
	select {
	case <-d.done:
		return fmt.Errorf("the daemon ended before it was asked to (%s)", d.cmd.ProcessState)
	default:
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-d.done:
		return d.err
	case <-time.After(10 * time.Second):
		_ = d.cmd.Process.Kill()
		<-d.done
		return errors.New("the daemon did not end within 10 s of SIGTERM")
	}
}

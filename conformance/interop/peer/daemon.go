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
	tun     string // link of its own; "": it has this side's addresses
	packet  bool   // on the packet backend

	cmd  *exec.Cmd
	done chan struct{} // closed when it ended, err is set then
	err  error
}

func (d *daemon) logFile() string { return filepath.Join(d.logs, "daemon.log") }

// addrs are the daemon's addresses, IPv4 and IPv6.
func (d *daemon) addrs() [2]string {
	if d.tun != "" {
		return [2]string{"10.77.1.2", "fd77:1::2"}
	}
	return [2]string{"10.77.0.1", "fd77::1"}
}

// start returns once the daemon takes connections.
func (d *daemon) start(ctx context.Context) error {
	file, err := os.Create(d.logFile())
	if err != nil {
		return err
	}
	defer file.Close()
	// Not bound to ctx: an interrupted run ends it by stop, too.
	addrs := d.addrs()
	args := []string{"daemon", "--addr", addrs[0], "--addr", addrs[1], "--socket", d.socket, "--metrics", metricsAddress}
	if d.tun != "" {
		args = append(args, "--backend", "tun", "--tun", d.tun)
	}
	if d.packet {
		args = append(args, "--backend", "packet")
	}
	d.cmd = child(context.WithoutCancel(ctx), d.program, args...)
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

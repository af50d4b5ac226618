package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/softroce/softroce/internal/nic"
	"github.com/softroce/softroce/internal/shm"
)

// firstPassed is the first descriptor that a service manager passes
// (sd_listen_fds(3)).
const firstPassed = 3

// passedListener takes over the control socket that the service manager opened;
// nil when it passed none. The variables that say so are removed: they are for
// this process alone.
func passedListener() (*shm.Listener, error) {
	pid, fds := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS")
	if fds == "" || pid != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		if err := os.Unsetenv(name); err != nil {
			return nil, err
		}
	}
	if fds != "1" {
		return nil, fmt.Errorf("the service manager passed %s sockets (LISTEN_FDS), want 1, the control socket", fds)
	}
	l, err := shm.Inherit(firstPassed)
	if err != nil {
		return nil, fmt.Errorf("the socket that the service manager passed: %w", err)
	}
	return l, nil
}

// inheritOrListen takes the socket that the service manager passed, or makes
// one.
func (f *daemonFlags) inheritOrListen() (*shm.Listener, error) {
	l, err := passedListener()
	if err != nil {
		return nil, err
	}
	if l == nil {
		return f.listen()
	}
	if f.socket != "" && f.socket != l.Path() {
		err := fmt.Errorf("--socket %s, but the service manager passed %s: leave one of them out", f.socket, l.Path())
		return nil, &exitError{exitUsage, errors.Join(err, l.Close())}
	}
	return l, nil
}

// manager is the service manager that started the daemon (sd_notify(3)), or
// nobody.
type manager struct {
	log      *slog.Logger
	socket   string        // "" for nobody
	watchdog time.Duration // how long the daemon may be silent; 0 for as long as it likes
}

func newManager(log *slog.Logger) *manager {
	m := &manager{log: log, socket: os.Getenv("NOTIFY_SOCKET")}
	if pid := os.Getenv("WATCHDOG_PID"); pid == "" || pid == strconv.Itoa(os.Getpid()) {
		if us, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64); err == nil && us > 0 {
			m.watchdog = time.Duration(us) * time.Microsecond
		}
	}
	if strings.HasPrefix(m.socket, "@") {
		m.socket = "\x00" + m.socket[1:]
	}
	return m
}

// tell sends assignments, as READY=1.
func (m *manager) tell(assignments ...string) {
	if m.socket == "" {
		return
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: m.socket, Net: "unixgram"})
	if err != nil {
		m.log.Warn("cannot notify the service manager", keyErr, err)
		return
	}
	defer c.Close()
	if _, err := c.Write([]byte(strings.Join(assignments, "\n"))); err != nil {
		m.log.Warn("cannot notify the service manager", keyErr, err)
	}
}

// beat tells the manager twice in the time of its watchdog that the adapter is
// alive, until stop is called. The snapshot is the proof: every worker and the
// control plane have to answer it.
func (m *manager) beat(a *nic.Adapter, path string) (stop func()) {
	if m.socket == "" || m.watchdog == 0 {
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(m.watchdog / 2)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				s := a.Snapshot()
				m.tell("WATCHDOG=1", status(path, &s))
			}
		}
	}()
	return func() { close(done) } // a worker that hangs must not hold the end up
}

// status is the line that systemctl status shows.
func status(path string, s *nic.Snapshot) string {
	qps := 0
	for i := range s.Workers {
		for _, n := range s.Workers[i].QPs {
			qps += n
		}
	}
	return fmt.Sprintf("STATUS=serving %s: %d programs, %d queue pairs", path, len(s.Programs), qps)
}

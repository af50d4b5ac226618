package testnet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// netnsDir is where ip(8) looks for named namespaces.
const netnsDir = "/run/netns"

// A name tells its maker: pid and start time, so that the next run can clear
// away what a killed test left.
const namePrefix = "softroce-test"

func hostName(n uint32, end string) string {
	return fmt.Sprintf("%s-%d-%s-%d%s", namePrefix, os.Getpid(), startTime(os.Getpid()), n, end)
}

// startTime is field 22 of /proc/PID/stat, "" for a dead process. The command
// name (field 2) may hold anything, but ends at the last parenthesis.
func startTime(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	s := string(b)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 20 {
		return ""
	}
	return f[19]
}

// sweep removes the namespaces of dead test processes. Best effort: another
// process may sweep at the same time.
func sweep() {
	files, _ := filepath.Glob(netnsDir + "/" + namePrefix + "-*")
	for _, f := range files {
		var pid int
		var start string
		s := strings.Split(strings.TrimPrefix(filepath.Base(f), namePrefix+"-"), "-")
		if len(s) != 3 {
			continue
		}
		if _, err := fmt.Sscanf(s[0], "%d", &pid); err != nil {
			continue
		}
		if start = s[1]; startTime(pid) != start {
			_ = removeNamespace(f)
		}
	}
}

// newNamespace makes a network namespace, binds it to path and returns an
// open descriptor of it.
func newNamespace(path string) (int, error) {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return -1, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return -1, err
	}
	if err := f.Close(); err != nil {
		return -1, err
	}
	type result struct {
		fd  int
		err error
	}
	done := make(chan result)
	go func() {
		// Never unlocked: the thread is in the new namespace and ends with
		// this goroutine.
		runtime.LockOSThread()
		fd, err := unshareTo(path)
		done <- result{fd, err}
	}()
	r := <-done
	if r.err != nil {
		_ = os.Remove(path)
	}
	return r.fd, r.err
}

func unshareTo(path string) (int, error) {
	const self = "/proc/thread-self/ns/net"
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return -1, fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount(self, path, "", unix.MS_BIND, ""); err != nil {
		return -1, fmt.Errorf("mount: %w", err)
	}
	fd, err := unix.Open(self, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = removeNamespace(path)
		return -1, err
	}
	return fd, nil
}

func removeNamespace(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return os.Remove(path)
}

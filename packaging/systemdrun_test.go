package packaging

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// bootScript makes what a systemd of its own needs, in namespaces of its own, and
// becomes it: $UNITS is its /etc/systemd, with the users' files beside the units.
const bootScript = `
mount --make-rprivate /
ip link set lo up
mount -t proc proc /proc
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
	mount -t cgroup2 cgroup2 /sys/fs/cgroup
else
	mount -t tmpfs tmpfs /sys/fs/cgroup
	mkdir /sys/fs/cgroup/systemd
	mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
fi
mount -t tmpfs tmpfs /run
if [ -c /dev/net/tun ]; then # with the mode that udev gives it
	mount -t tmpfs tmpfs /dev/net
	mknod -m 666 /dev/net/tun c 10 200
fi
for f in passwd group; do mount --bind "$UNITS/sysroot/etc/$f" /etc/$f; done
mount --bind "$UNITS" /etc/systemd
for s in /lib/systemd/systemd /usr/lib/systemd/systemd; do
	if [ -x $s ]; then exec env container=test $s --system --unit=try.target --show-status=no; fi
done
exit 1
`

// tryTarget is all that this systemd starts: the socket, and a script.
const (
	tryTarget  = "[Unit]\nDefaultDependencies=no\nAllowIsolate=yes\nWants=softroce.socket try.service\n"
	tryService = "[Unit]\nDefaultDependencies=no\nAfter=softroce.socket\n[Service]\nType=oneshot\nExecStart=/bin/sh /etc/systemd/try.sh\n" +
		"StandardOutput=file:/etc/systemd/out\nStandardError=inherit\n"
	tryScript = `
softroce() { timeout 20 /etc/systemd/softroce "$@"; }
echo booted
stat -c 'socket %U:%G %a' /run/softroce/softroce.sock
echo before: $(systemctl is-active softroce.service)
softroce devinfo | head -n 1
echo after: $(systemctl is-active softroce.service)
systemctl show -p StatusText softroce.service
grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/$(systemctl show -P MainPID softroce.service)/status
systemctl restart softroce.service && echo restarted: $(softroce devinfo | head -n 1)
systemctl stop softroce.service && echo stopped: $(systemctl is-active softroce.service)
echo again: $(softroce devinfo | head -n 1)
echo watchdog: $(systemctl show -P WatchdogUSec softroce.service)
systemctl kill -s KILL softroce.service
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
	if [ "$(systemctl show -P NRestarts softroce.service)" = 1 ] && systemctl is-active softroce.service; then break; fi
	sleep 0.2
done
echo killed: $(softroce devinfo | head -n 1), restarts: $(systemctl show -P NRestarts softroce.service)
backend() {
	cp "/etc/systemd/$1.conf" /etc/systemd/system/softroce.service.d/
	echo "SOFTROCE_ARGS=\"$2\"" >/etc/systemd/softroce.default
	systemctl daemon-reload
	systemctl restart softroce.service && echo $1: $(softroce devinfo | head -n 1), $(grep CapEff /proc/$(systemctl show -P MainPID softroce.service)/status)
	rm "/etc/systemd/system/softroce.service.d/$1.conf"
}
mkdir -p /etc/systemd/system/softroce.service.d
backend packet '--addr 127.0.0.1 --backend packet'
if [ -c /dev/net/tun ]; then backend tun '--backend tun --tun roce0 --addr 10.99.0.2/24'; else echo no tun; fi
echo done
systemctl --force exit
`
)

// controlGroups makes a control group of the test's own below that of the
// process, in each hierarchy that systemd uses, and removes it with all that
// systemd makes in it.
func controlGroups(t *testing.T) (dirs []string) {
	t.Helper()
	for line := range strings.Lines(read(t, "/proc/self/cgroup")) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		root := ""
		switch {
		case f[0] == "0":
			root = "/sys/fs/cgroup"
			if _, err := os.Stat(root + "/cgroup.controllers"); err != nil {
				root += "/unified"
			}
		case f[1] == "name=systemd":
			root = "/sys/fs/cgroup/systemd"
		}
		dir := filepath.Join(root, f[2], "softroce-packaging-"+strconv.Itoa(os.Getpid()))
		if root == "" || os.Mkdir(dir, 0o755) != nil {
			continue
		}
		dirs = append(dirs, dir)
		t.Cleanup(func() { removeGroup(t, dir) })
	}
	return dirs
}

// removeGroup waits until the kernel is through with the processes that ended.
func removeGroup(t *testing.T, dir string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); time.Now().Before(end); <-tick.C {
		var below []string
		_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				below = append(below, name)
			}
			return nil
		})
		for _, d := range slices.Backward(below) {
			_ = os.Remove(d) // busy: again
		}
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return
		}
	}
	t.Errorf("the control group %s cannot be removed", dir)
}

// bootable puts units, user and command where the systemd of bootScript finds
// them. What is below /tmp is hidden from the service (PrivateTmp=).
func bootable(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"softroce.service", "softroce.socket"} {
		unit := strings.NewReplacer(installed, "/etc/systemd/softroce", "/etc/default/softroce", "/etc/systemd/softroce.default",
			"Wants=network-online.target\nAfter=network-online.target\n", "", "[Unit]\n", "[Unit]\nDefaultDependencies=no\n").Replace(read(t, "systemd/"+name))
		write(t, filepath.Join(dir, "system", name), unit)
	}
	write(t, filepath.Join(dir, "system/try.target"), tryTarget)
	write(t, filepath.Join(dir, "system/try.service"), tryService)
	write(t, filepath.Join(dir, "try.sh"), tryScript)
	// The file of flags would be in /etc/default.
	write(t, filepath.Join(dir, "softroce.default"), "SOFTROCE_ARGS=\"--addr 127.0.0.1\"\n")
	write(t, filepath.Join(dir, "out"), "")
	for _, name := range dropins {
		write(t, filepath.Join(dir, name), read(t, "systemd/"+name))
	}
	for _, name := range []string{"passwd", "group"} {
		write(t, filepath.Join(dir, "sysroot/etc", name), read(t, "/etc/"+name))
	}
	command(t, "cp", softroce, filepath.Join(dir, "softroce"))
	if err := os.Chmod(filepath.Join(dir, "softroce"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	command(t, "cp", "systemd/softroce.sysusers", filepath.Join(dir, "sysroot/softroce.conf"))
	command(t, "systemd-sysusers", "--root="+filepath.Join(dir, "sysroot"), filepath.Join(dir, "sysroot/softroce.conf"))
	return dir
}

// The units do under a real systemd what the documents say: the socket is there
// first and starts the adapter, as its user, in its cage; it outlives a restart
// and a stop; and an adapter that dies comes back.
func TestUnitsUnderSystemd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a systemd of its own needs root")
	}
	needs(t, "systemd-sysusers", "systemd")
	needs(t, "unshare", "util-linux")
	needs(t, "ip", "iproute2")
	dir := bootable(t)
	groups := controlGroups(t)
	if len(groups) == 0 {
		t.Skip("no control group can be made here")
	}
	const enter = `for g in $GROUPS_OF_TEST; do echo $$ >"$g/cgroup.procs"; done
exec timeout -k 1 50 unshare --pid --fork --mount --net --cgroup --uts --ipc --kill-child sh -eu -c "$0"`
	c := exec.CommandContext(t.Context(), "sh", "-eu", "-c", enter, bootScript)
	c.Env = append(os.Environ(), "UNITS="+dir, "GROUPS_OF_TEST="+strings.Join(groups, " "))
	log, err := c.CombinedOutput()
	out := read(t, filepath.Join(dir, "out"))
	if !strings.Contains(out, "booted") {
		t.Skipf("no systemd runs in namespaces here: %v\n%s", err, log)
	}
	for _, want := range []string{
		"socket softroce:softroce 660", "before: inactive", "hca_id:", "after: active", "StatusText=serving /run/softroce/softroce.sock",
		"CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "restarted: hca_id", "stopped: inactive", "again: hca_id",
		"watchdog: 30s", "killed: hca_id: softroce0, restarts: 1", "packet: hca_id: softroce0, CapEff: 0000000000002000", "done",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q", want)
		}
	}
	if !strings.Contains(out, "no tun\n") && !strings.Contains(out, "tun: hca_id: softroce0, CapEff: 0000000000001000\n") {
		t.Error("the TUN backend does not serve")
	}
	if t.Failed() {
		t.Logf("the script:\n%s\nsystemd: %v\n%s", out, err, log)
	}
}

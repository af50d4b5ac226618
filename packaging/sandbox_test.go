package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// sandboxSetup makes, in namespaces of its own, what a container engine makes: a
// network with eth0, a root file system that is the image's and read-only, with
// the volume and /proc in it. as USER:GROUP GROUPS COMMAND... runs a command
// there in a process namespace of its own, as each container has one; enter is that
// for the background, where a signal has to reach it.
const sandboxSetup = `
ip link set lo up
ip link add eth0 type veth peer name peer0
ip link set peer0 up
ip address add 192.0.2.10/24 dev eth0
ip link set eth0 up
mount --bind "$ROOT" "$ROOT"
mount --bind "$VOLUME" "$ROOT/run/softroce"
mount -t proc proc "$ROOT/proc"
mount -o remount,bind,ro "$ROOT"
enter() {
	user=$1 groups=$2
	shift 2
	exec timeout 50 unshare --pid --fork --mount sh -ec 'mount -t proc proc "$ROOT/proc"; groups=$1; shift; exec chroot --userspec="$0" --groups="$groups" "$ROOT" "$@"' "$user" "$groups" "$@"
}
as() { (enter "$@"); }
healthy() {
	n=0
	until "$@" >"$LOGS/health" 2>&1; do
		n=$((n + 1))
		if [ $n -gt 200 ]; then cat "$LOGS/health" "$LOGS/daemon"; return 1; fi
		sleep 0.05
	done
}
export SOFTROCE_SOCKET=/run/softroce/softroce.sock
`

// sandbox runs a script in the image's root file system, whose files are what the
// Dockerfile copies into it. It gives the script's output.
func sandbox(t *testing.T, script string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a root file system and namespaces of its own need root")
	}
	needs(t, "ip", "iproute2")
	needs(t, "unshare", "util-linux")
	root, volume, logs := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{"proc", "etc", "run/softroce"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { // the container's user goes through them
			t.Fatal(err)
		}
	}
	if err := os.Chown(volume, 65532, 65532); err != nil {
		t.Fatal(err)
	}
	command(t, "cp", softroce, filepath.Join(root, "softroce"))
	write(t, filepath.Join(root, "etc/hosts"), "127.0.0.1 localhost\n192.0.2.10 pingpong-server\n")
	c := exec.CommandContext(t.Context(), "timeout", "55", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-eu", "-c", sandboxSetup+script)
	c.Env = append(os.Environ(), "ROOT="+root, "VOLUME="+volume, "LOGS="+logs)
	out, err := c.CombinedOutput()
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(logs, "daemon")) // if it came so far
		if strings.Contains(string(out), "Operation not permitted") {
			t.Skipf("namespaces or mounts are not permitted here: %s", out)
		}
		t.Fatalf("%v\n%s\nthe daemon:\n%s", err, out, log)
	}
	return string(out)
}

// quoted puts words into a shell script.
func quoted(words ...string) string {
	var b strings.Builder
	for _, w := range words {
		b.WriteString(" '" + strings.ReplaceAll(w, "'", `'\''`) + "'")
	}
	return b.String()
}

// The image as the Dockerfile makes it serves, on eth0, as its user, what the
// health check and a ping-pong ask; another user's program may only with its
// group.
func TestImageRuns(t *testing.T) {
	_, final := image(t)
	health := final.one("HEALTHCHECK")
	check := quoted(execForm(t, "HEALTHCHECK", health[strings.Index(health, "CMD ")+4:])...)
	entry := quoted(append(execForm(t, "ENTRYPOINT", final.one("ENTRYPOINT")), execForm(t, "CMD", final.one("CMD"))...)...)
	user := final.one("USER")
	out := sandbox(t, `
enter `+user+` ''`+entry+` >"$LOGS/daemon" 2>&1 &
daemon=$!
healthy as `+user+` ''`+check+`
enter `+user+` '' /softroce pingpong -n 100 --patience 20s >"$LOGS/server" 2>&1 &
server=$!
healthy as `+user+` '' /softroce pingpong -n 100 pingpong-server
cat "$LOGS/health"
wait $server || { cat "$LOGS/server"; exit 1; }
as 1000:1000 65532 /softroce devinfo >/dev/null && echo with the group
if as 1000:1000 '' /softroce devinfo; then echo without the group; fi
ls "$VOLUME"
kill $daemon
wait $daemon || true
echo left: $(ls "$VOLUME")
`)
	for _, want := range []string{"100 iters in", "with the group", "no permission to connect", "\nsoftroce.sock\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	if strings.Contains(out, "without the group") {
		t.Errorf("a user without the group connected:\n%s", out)
	}
}

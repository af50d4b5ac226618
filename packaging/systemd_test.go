package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/softroce/softroce/internal/testaddr"
)

const installed = "/usr/local/bin/softroce"

// dropins are the examples of drop-ins for the service.
var dropins = []string{"limits.conf", "packet.conf", "tun.conf"}

// units puts the units where the tools find them, with the command that was
// built in the place of the installed one.
func units(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"softroce.service", "softroce.socket"} {
		write(t, filepath.Join(dir, name), strings.ReplaceAll(read(t, "systemd/"+name), installed, softroce))
	}
	for _, name := range dropins {
		write(t, filepath.Join(dir, "softroce.service.d", name), strings.ReplaceAll(read(t, "systemd/"+name), installed, softroce))
	}
	return dir
}

// setting gives the values of a unit's setting, in their order.
func setting(unit, name string) []string {
	var values []string
	text := strings.ReplaceAll(unit, "\\\n", " ")
	for _, m := range regexp.MustCompile(`(?m)^`+name+`=(.*)$`).FindAllStringSubmatch(text, -1) {
		values = append(values, strings.TrimSpace(m[1]))
	}
	return values
}

// systemd knows every setting of the units and of the drop-in, and has nothing to
// say about them.
func TestUnitsVerify(t *testing.T) {
	analyze := needs(t, "systemd-analyze", "systemd")
	dir := units(t)
	service := filepath.Join(dir, "softroce.service")
	if out := command(t, analyze, "verify", service, filepath.Join(dir, "softroce.socket")); strings.TrimSpace(out) != "" {
		t.Errorf("systemd-analyze verify:\n%s", out)
	}
	write(t, service, read(t, service)+"ProtectEverything=yes\n")
	out, err := exec.CommandContext(t.Context(), analyze, "verify", service).CombinedOutput()
	if err == nil && !strings.Contains(string(out), "ProtectEverything") {
		t.Errorf("a setting that does not exist is not seen: %s", out)
	}
}

// The service's exposure, by systemd's own measure, stays where it is.
func TestUnitSecurity(t *testing.T) {
	analyze := needs(t, "systemd-analyze", "systemd")
	dir := units(t)
	if err := os.RemoveAll(filepath.Join(dir, "softroce.service.d")); err != nil {
		t.Fatal(err)
	}
	service := filepath.Join(dir, "softroce.service")
	out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold=20", "--no-pager", service).CombinedOutput()
	if strings.Contains(string(out), "unrecognized option") {
		t.Skipf("this systemd-analyze cannot look at files: %s", out)
	}
	if err != nil {
		t.Errorf("exposure above 2.0: %v\n%s", err, out)
	}
}

// The commands of the units are ones that the daemon takes, and the settings of
// the two units fit each other.
func TestUnitsFit(t *testing.T) {
	service, socket := read(t, "systemd/softroce.service"), read(t, "systemd/softroce.socket")
	flags := regexp.MustCompile(`"(.*)"`).FindStringSubmatch(read(t, "systemd/softroce.default"))
	if flags == nil {
		t.Fatal("softroce.default sets no flags")
	}
	commands := append(setting(service, "ExecStart"), setting(read(t, "systemd/limits.conf"), "ExecStart")...)
	for _, c := range commands {
		if c == "" { // a drop-in clears the list first
			continue
		}
		words := strings.Fields(strings.ReplaceAll(c, "$SOFTROCE_ARGS", flags[1]))
		if words[0] != installed {
			t.Errorf("%s: not %s", c, installed)
		}
		takes(t, words[1:])
	}
	listen := setting(socket, "ListenSequentialPacket")
	if len(listen) != 1 || filepath.Dir(listen[0]) != "/run/"+setting(service, "RuntimeDirectory")[0] {
		t.Errorf("the socket %v is not in the runtime directory", listen)
	}
	if !slices.Equal(setting(service, "RuntimeDirectoryPreserve"), []string{"yes"}) {
		t.Error("a stop of the service would take the socket's directory away")
	}
	user := setting(service, "User")[0]
	if g := setting(socket, "SocketGroup"); !slices.Equal(g, []string{user}) || !strings.Contains(read(t, "systemd/softroce.sysusers"), "\nu "+user+" ") {
		t.Errorf("user %s, socket's group %v, sysusers: %s", user, g, read(t, "systemd/softroce.sysusers"))
	}
}

// The drop-ins of the backends give what those need, and no more.
func TestBackendDropins(t *testing.T) {
	for name, want := range map[string]string{"packet.conf": "CAP_NET_RAW", "tun.conf": "CAP_NET_ADMIN"} {
		unit := read(t, "systemd/"+name)
		for _, s := range []string{"CapabilityBoundingSet", "AmbientCapabilities"} {
			if got := setting(unit, s); !slices.Equal(got, []string{want}) {
				t.Errorf("%s: %s=%v, want %s", name, s, got, want)
			}
		}
		if !strings.Contains(read(t, "../docs/operations.md"), "systemd/"+name) {
			t.Errorf("docs/operations.md does not name %s", name)
		}
	}
}

// systemd-sysusers makes the user and the group.
func TestSysusers(t *testing.T) {
	sysusers := needs(t, "systemd-sysusers", "systemd")
	root := t.TempDir()
	file, err := filepath.Abs("systemd/softroce.sysusers")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), sysusers, "--root="+root, file).CombinedOutput(); err != nil {
		if os.Geteuid() != 0 {
			t.Skipf("making users, below another root as well, needs root: %s", out)
		}
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"passwd", "group"} {
		if text := read(t, filepath.Join(root, "etc", name)); !strings.Contains(text, "softroce:x:") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// filter expands the service's SystemCallFilter= as systemd does: sets are
// replaced by what is in them, ~ takes away, later lines go on from there.
func filter(t *testing.T, analyze, unit string) map[string]bool {
	t.Helper()
	var expand func(set string) []string
	expand = func(set string) []string {
		var calls []string
		for line := range strings.Lines(command(t, analyze, "syscall-filter", "--no-pager", set)) {
			switch word := strings.TrimSpace(line); {
			case word == "" || word[0] == '#' || word == set:
			case word[0] == '@':
				calls = append(calls, expand(word)...)
			default:
				calls = append(calls, word)
			}
		}
		return calls
	}
	allowed := map[string]bool{}
	for _, line := range setting(unit, "SystemCallFilter") {
		names, away := strings.CutPrefix(line, "~")
		for _, name := range strings.Fields(names) {
			calls := []string{name}
			if name[0] == '@' {
				calls = expand(name)
			}
			for _, c := range calls {
				allowed[c] = !away
			}
		}
	}
	return allowed
}

// tryPing starts a daemon as the service does and has its programs ping.
func tryPing(t *testing.T, prefix ...string) {
	t.Helper()
	addr, socket := testaddr.Take(t, 1)[0].String(), filepath.Join(shortDir(t), "s")
	line := append(prefix, softroce, "daemon", "--addr", addr, "--socket", socket, "--socket-group", strconv.Itoa(os.Getgid()),
		"--socket-mode", "0660", "--metrics", addr+":0")
	start(t, "msg=serving", line[0], line[1:]...)
	server := start(t, "", softroce, "rping", "-s", "--socket", socket)
	for range 200 { // until the server listens
		out, err := exec.CommandContext(t.Context(), softroce, "rping", "-c", "-a", addr, "-C", "3", "--socket", socket).CombinedOutput()
		if err == nil {
			return
		}
		if !strings.Contains(string(out), "reason 8") {
			t.Fatalf("%v: %s\n%s", err, out, server)
		}
	}
	t.Fatalf("the server does not listen: %s", server)
}

// Every system call that the daemon makes is one that the service may make.
func TestUnitSystemCalls(t *testing.T) {
	analyze, strace := needs(t, "systemd-analyze", "systemd"), needs(t, "strace", "strace")
	trace := filepath.Join(t.TempDir(), "trace")
	t.Run("daemon", func(t *testing.T) { tryPing(t, strace, "-f", "-qq", "-o", trace) }) // it has ended at the end
	allowed := filter(t, analyze, read(t, "systemd/softroce.service"))
	if !allowed["recvmmsg"] || allowed["mount"] || allowed["mlock"] {
		t.Fatal("the filter is not understood")
	}
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\d+ +([a-z0-9_]+)\(`).FindAllStringSubmatch(read(t, trace), -1) {
		if name := m[1]; !seen[name] && !allowed[name] {
			t.Errorf("the daemon calls %s, which SystemCallFilter= refuses", name)
		}
		seen[m[1]] = true
	}
	if !seen["memfd_create"] || !seen["recvmmsg"] || len(seen) < 30 {
		t.Errorf("the trace has only %d kinds of calls", len(seen))
	}
}

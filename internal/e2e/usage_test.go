package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/pkg/adapter"
)

// ran is what one run of the command left.
type ran struct {
	stdout, stderr string
	code           int
}

// softroce runs the command to its end.
func softroce(t *testing.T, stdin []byte, args ...string) ran {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), binaries.softroce, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &errs
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return ran{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// What cannot be carried out as it was given ends with status 2, what fails with
// status 1; either says so in one line that names what is wrong.
func TestRefusals(t *testing.T) {
	addrs := testaddr.Take(t, 2)
	held := startDaemon(t, addrs[0], socketIn(t))
	free, socket := addrs[1].String(), socketIn(t)
	daemon := func(more ...string) []string {
		return append([]string{"daemon", "--log-level", "error", "--socket", socket}, more...)
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		says []string
	}{
		{"unknown command", []string{"nonsense"}, 2, []string{`unknown command "nonsense"`}},
		{"unknown verb of perf", []string{"perf", "nonsense"}, 2, []string{`unknown command "nonsense"`}},
		{"rping without a role", []string{"rping"}, 2, []string{"server", "client"}},
		{"rping to nobody", []string{"rping", "-c"}, 2, []string{"-a"}},
		{"rping of nothing", []string{"rping", "-s", "-S", "0"}, 2, []string{"-S 0", "23"}},
		{"perf -R of a path MTU", []string{"perf", "write", "--bw", "-R", "-m", "1024", "--socket", held.socket}, 2, []string{"path MTU", "connection manager"}},
		{"nc to nobody", []string{"nc", "7000"}, 2, []string{"host and port", "-l"}},
		{"nc to no port", []string{"nc", "192.0.2.1", "http"}, 2, []string{`"http"`, "65535"}},
		{"nc's options of a client", []string{"nc", "-l", "7000", "-w", "1"}, 2, []string{"-w", "client"}},
		{"nc without its file", []string{"nc", free, "7000", "--in", "/proc/none/f", "--socket", held.socket}, 1, []string{"--in", "/proc/none/f"}},
		{"nobody listens to nc", []string{"nc", addrs[0].String(), "7000", "--socket", held.socket}, 1, []string{addrs[0].String() + ":7000"}},
		{"cmtime of nothing", []string{"cmtime", "-s", free, "-c", "0"}, 2, []string{"-c 0"}},
		{"perf without a verb", []string{"perf"}, 2, []string{"write, read, send or atomic"}},
		{"unknown flag", []string{"perf", "write", "--bogus"}, 2, []string{"--bogus", "softroce perf write --help"}},
		{"value of a flag", []string{"pingpong", "-n", "many"}, 2, []string{"many", "--iters"}},
		{"no address", daemon(), 2, []string{"addr", "interface"}},
		{"address and interface", daemon("--addr", free, "--interface", "lo"), 2, []string{"addr", "interface"}},
		{"no IP address", daemon("--addr", "nonsense"), 2, []string{`"nonsense"`, "IP address"}},
		{"address not ours", daemon("--addr", "192.0.2.77"), 1, []string{"192.0.2.77", "not an address of this host"}},
		{"no such interface", daemon("--interface", "nosuch0"), 1, []string{"nosuch0", "ip link"}},
		{"workers", daemon("--addr", free, "--workers", "99"), 2, []string{"99", "1 to 8"}},
		{"limit", daemon("--addr", free, "--limit", "user:camels=3"), 2, []string{"--limit", "camels", "queue_pairs"}},
		{"log level", daemon("--addr", free, "--log-level", "loud"), 2, []string{`"loud"`, "debug"}},
		{"socket mode", daemon("--addr", free, "--socket-mode", "99"), 2, []string{`"99"`, "octal"}},
		{"socket group", daemon("--addr", free, "--socket-group", "no-such-group"), 2, []string{"no-such-group"}},
		{"socket's directory", []string{"daemon", "--addr", free, "--socket", "/proc/none/s"}, 1, []string{"/proc/none", "--socket"}},
		{"capture file", daemon("--addr", free, "--pcap", "/proc/none/p"), 1, []string{"--pcap", "/proc/none/p"}},
		{"port busy", daemon("--addr", addrs[0].String()), 1, []string{"4791", "busy", pid(held), "another address"}},
		{"socket busy", []string{"daemon", "--addr", free, "--socket", held.socket}, 1, []string{held.socket, pid(held), "another path"}},
		{"metrics busy", daemon("--addr", free, "--metrics", hostport(t, held)), 1, []string{"--metrics", "in use", "another address"}},
		{"no daemon", []string{"devinfo", "--socket", socket}, 1, []string{socket, "softroce daemon", "--socket"}},
		{"no daemon for pingpong", []string{"pingpong", "--socket", socket}, 1, []string{socket, "softroce daemon"}},
		{"path MTU", []string{"pingpong", "-m", "77", "--socket", held.socket}, 2, []string{"77", "4096"}},
		{"datagram too long", []string{"pingpong", "ud", "-s", "4097", "--socket", held.socket}, 2, []string{"4097 bytes", "4096", "-s"}},
		{"unknown flag of a service", []string{"pingpong", "ud", "-m", "1024"}, 2, []string{"-m", "softroce pingpong ud --help"}},
		{"too many queue pairs", []string{"pingpong", "srq", "-q", "255", "-r", "1000"}, 2, []string{"255 queue pairs", "254"}},
		{"too few receives", []string{"pingpong", "srq", "-q", "20", "-r", "19"}, 2, []string{"rx-depth 19", "20 queue pairs"}},
		{"no kind of object", []string{"resource", "qps"}, 2, []string{`"qps"`, "qp"}},
		{"two kinds of object", []string{"resource", "qp", "mr"}, 2, []string{"one kind"}},
		{"an interval apart", []string{"resource", "qp", "2s"}, 2, []string{"--watch=2s"}},
		{"an interval apart of stat", []string{"stat", "2s", "--socket", held.socket}, 2, []string{"--watch=2s"}},
		{"no interval", []string{"stat", "--watch=0s"}, 2, []string{"--watch=0s"}},
		{"a state of regions", []string{"resource", "mr", "--state", "RTS"}, 2, []string{"--state", "resource qp"}},
		{"no state", []string{"resource", "qp", "--state", "UP"}, 2, []string{`"UP"`, "RTS"}},
		{"no queue pair number", []string{"stat", "qp", "--qpn", "0x1000000"}, 2, []string{"0x1000000", "0xffffff"}},
		{"no counter", []string{"stat", "nope", "--socket", held.socket}, 2, []string{`"nope"`, "softroce stat"}},
		{"a process of counters", []string{"stat", "--pid", "1"}, 2, []string{"--pid", "stat qp"}},
		{"no daemon for resource", []string{"resource", "--socket", socket}, 1, []string{socket, "softroce daemon"}},
		{"another device", []string{"pingpong", "-d", "rxe0", "--socket", held.socket}, 1, []string{"rxe0", "softroce0"}},
		{"GID index", []string{"pingpong", "-g", "9", "--socket", held.socket}, 1, []string{"9"}},
		{"bandwidth and latency", []string{"perf", "read", "--bw", "--lat"}, 2, []string{"bw", "lat"}},
		{"one address for the demo", []string{"demo", "--addr", free}, 2, []string{"two different addresses"}},
		{"no seconds of a capture", []string{"capture", "-w", "/dev/null", "--seconds", "NaN"}, 2, []string{`"NaN"`, "--seconds", "0 to 1e+09"}},
		{"too many seconds of perf", []string{"perf", "write", "--bw", "-D", "1e10", free}, 2, []string{`"1e10"`, "--duration", "0 to 1e+09"}},
		{"decode without a file", []string{"decode"}, 2, []string{"one file"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := softroce(t, nil, c.args...)
			if r.code != c.code {
				t.Errorf("exit status: got %d, want %d", r.code, c.code)
			}
			if strings.Count(r.stderr, "\n") != 1 || !strings.HasPrefix(r.stderr, "softroce: ") || r.stdout != "" {
				t.Errorf("got %q on stderr and %q on stdout, want one line on stderr", r.stderr, r.stdout)
			}
			for _, s := range c.says {
				if !strings.Contains(r.stderr, s) {
					t.Errorf("got %q, want it to say %q", r.stderr, s)
				}
			}
		})
	}
}

func pid(d *daemon) string { return strconv.Itoa(d.cmd.Process.Pid) }

// hostport is the address that a daemon serves its metrics on.
func hostport(t *testing.T, d *daemon) string {
	t.Helper()
	_, rest, ok := strings.Cut(d.metrics, "//")
	host, _, ok2 := strings.Cut(rest, "/")
	if !ok || !ok2 {
		t.Fatalf("metrics at %q", d.metrics)
	}
	return host
}

// Every command explains itself, and the shells complete them.
func TestHelpAndCompletion(t *testing.T) {
	for _, c := range []string{
		"", "daemon", "devinfo", "demo", "decode", "pingpong", "perf", "perf write", "perf read", "perf send", "perf atomic", "completion",
	} {
		r := softroce(t, nil, append(strings.Fields(c), "--help")...)
		if r.code != 0 || !strings.Contains(r.stdout, "Usage:\n  "+strings.TrimSpace("softroce "+c)) || r.stderr != "" {
			t.Errorf("softroce %s --help: %+v", c, r)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if r := softroce(t, nil, "completion", shell); r.code != 0 || !strings.Contains(r.stdout, "softroce") {
			t.Errorf("completion %s: status %d, %d bytes", shell, r.code, len(r.stdout))
		}
	}
	r := softroce(t, nil, "__complete", "perf", "")
	for _, verb := range []string{"write\t", "read\t", "send\t", "atomic\t"} {
		if !strings.Contains(r.stdout, verb) {
			t.Errorf("completion of softroce perf: got %q, want %q in it", r.stdout, verb)
		}
	}
}

// devinfo shows what ibv_devinfo -v shows, under its names.
func TestDevinfo(t *testing.T) {
	addr := testaddr.Take(t, 1)[0]
	d := startDaemon(t, addr, socketIn(t), "--name", "roce7")
	text := softroce(t, nil, "devinfo", "--socket", d.socket)
	shown := map[string]string{}
	for line := range strings.Lines(text.stdout) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		shown[name] = strings.TrimSpace(value)
	}
	for name, want := range map[string]string{
		"hca_id": "roce7", "transport": "InfiniBand (0)", "fw_ver": "", "node_guid": "", "sys_image_guid": "", "vendor_id": "",
		"vendor_part_id": "", "hw_ver": "", "phys_port_cnt": "1", "max_mr_size": "", "page_size_cap": "", "max_qp": "",
		"max_qp_wr": "", "device_cap_flags": "", "RC_RNR_NAK_GEN": "", "max_sge": "", "max_sge_rd": "", "max_cq": "", "max_cqe": "",
		"max_mr": "", "max_pd": "", "max_qp_rd_atom": "", "max_res_rd_atom": "", "max_qp_init_rd_atom": "", "atomic_cap": "ATOMIC_HCA (1)",
		"max_mw": "65536", "max_mcast_grp": "4096", "max_mcast_qp_attach": "1024", "max_total_mcast_qp_attach": "16384", "max_ah": "65536",
		"max_srq": "16384", "max_srq_wr": "32768", "max_srq_sge": "32", "general_odp_caps": "", "ODP_SUPPORT_IMPLICIT": "", "rc_odp_caps": "", "uc_odp_caps": "", "ud_odp_caps": "",
		"SUPPORT_ATOMIC": "", "completion timestamp_mask": "0xffffffffffffffff", "hca_core_clock": "1000000kHZ",
		"MEM_WINDOW_TYPE_2B": "", "SRQ_RESIZE": "",
		"max_pkeys": "1", "local_ca_ack_delay": "", "num_comp_vectors": "", "port": "1", "state": "PORT_ACTIVE (4)", "max_mtu": "4096 (5)",
		"active_mtu": "4096 (5)", "sm_lid": "0", "port_lid": "0", "port_lmc": "0x00", "link_layer": "Ethernet", "max_msg_sz": "0x40000000",
		"port_cap_flags": "", "port_cap_flags2": "", "max_vl_num": "", "bad_pkey_cntr": "0x0", "qkey_viol_cntr": "0x0", "sm_sl": "0",
		"pkey_tbl_len": "1", "gid_tbl_len": "", "subnet_timeout": "", "init_type_reply": "", "active_width": "1X (1)",
		"active_speed": "10.0 Gbps (8)", "phys_state": "LINK_UP (5)", "GID[  0]": "::ffff:" + addr.String() + ", RoCE v2 (" + addr.String() + ")",
	} {
		if testmatrix.Backend(t) == adapter.BackendTUN && strings.Contains(name, "mcast") {
			want = "0" // a host routes none to a TUN link
		}
		got, ok := shown[name]
		if !ok || want != "" && got != want {
			t.Errorf("%s: got %q (there: %v), want %q", name, got, ok, want)
		}
	}
	if t.Failed() {
		t.Log("\n" + text.stdout)
	}
	var info struct {
		Name string
		Port struct{ State int }
		GIDs []struct{ Address string }
	}
	decodeJSON(t, softroce(t, nil, "devinfo", "--json", "--socket", d.socket).stdout, &info)
	if info.Name != "roce7" || info.Port.State != 4 || len(info.GIDs) != 1 || info.GIDs[0].Address != addr.String() {
		t.Errorf("devinfo --json: got %+v", info)
	}
}

// decodeJSON reads one JSON value, which must be all there is.
func decodeJSON(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Errorf("not JSON and nothing else: %v\n%s", err, text)
	}
}

// With --json the tools print a JSON value and nothing else.
func TestToolsPrintJSON(t *testing.T) {
	addrs := testaddr.Take(t, 4)
	server, client := startDaemon(t, addrs[0], socketIn(t)), startDaemon(t, addrs[1], socketIn(t))
	for _, args := range []string{"pingpong --json -n 20", "perf write --bw --json -n 20 -s 4096", "perf read --lat --json -n 20"} {
		port := strconv.Itoa(freePort(t))
		args := append(strings.Fields(args), "-p", port)
		srv := tool(t, append(args, "--socket", server.socket)...)
		eventually(t, "the server listens", func() bool { n, _ := strconv.Atoi(port); return listening(t, n) || srv.ended() })
		cl := tool(t, append(args, "--socket", client.socket, toolHost(t, addrs[0]))...)
		cl.finish(t)
		srv.finish(t)
		for _, p := range []*toolProcess{cl, srv} {
			var v map[string]any
			if decodeJSON(t, p.out.String(), &v); len(v) == 0 {
				t.Errorf("%v printed an empty object", args)
			}
		}
	}
	var rep struct{ Rows []struct{ Checked bool } }
	decodeJSON(t, softroce(t, nil, "demo", "--json", "--addr", addrs[2].String()+","+addrs[3].String()).stdout, &rep)
	if len(rep.Rows) == 0 || !rep.Rows[0].Checked {
		t.Errorf("demo --json: got %+v, want rows of checked data", rep)
	}
}

// Long work shows on a terminal how far it is, and nowhere else.
func TestProgressOnATerminal(t *testing.T) {
	addrs := testaddr.Take(t, 4)
	master, slave := terminal(t)
	cmd := exec.Command(binaries.softroce, "demo", "--addr", addrs[0].String()+","+addrs[1].String())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, slave
	seen := make(chan string, 1)
	go func() {
		var b []byte
		for buf := make([]byte, 4096); ; {
			n, err := master.Read(buf) // EIO once nobody has the slave open
			if b = append(b, buf[:n]...); err != nil {
				seen <- string(b)
				return
			}
		}
	}()
	if err := cmd.Run(); err != nil {
		t.Fatalf("demo on a terminal: %v", err)
	}
	slave.Close()
	line := <-seen
	if strings.Count(line, "\r") < 3 || strings.Contains(line, "\n") || !strings.Contains(line, "RDMA_WRITE") {
		t.Errorf("the terminal shows %q, want one line that is replaced", line)
	}
	if strings.Contains(out.String(), "\r") {
		t.Errorf("stdout has progress in it: %q", out.String())
	}
	if r := softroce(t, nil, "demo", "--addr", addrs[2].String()+","+addrs[3].String()); r.stderr != "" {
		t.Errorf("stderr that is no terminal has %q", r.stderr)
	}
}

// terminal opens a pseudo-terminal.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("skipped: no pseudo-terminal here: %v", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Skipf("skipped: no pseudo-terminal here: %v", err)
	}
	slave, err = os.OpenFile(filepath.Join("/dev/pts", strconv.Itoa(n)), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("skipped: no pseudo-terminal here: %v", err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	return master, slave
}

package bench

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testnet"
)

var (
	rounds = flag.Int("rounds", 5, "rounds of the interleaved run")
	out    = flag.String("out", "", "document whose table is replaced; empty: print only")
)

// What is asked for before segmentation offload is there: a 64 KiB write moves
// at least half of what the raw floor does.
const mustWrite = 0.5

// BenchmarkTable makes the whole table; go test runs it with -bench only.
// Everything is measured once a round, so that a disturbed minute disturbs all
// alike.
func BenchmarkTable(b *testing.B) {
	var tab Table
	paths := []func(*testing.B, *Table, string){loopback}
	if os.Geteuid() == 0 {
		paths = append(paths, veth)
	} else {
		b.Log("veth: left out, it needs root for network namespaces")
	}
	bin := build(b)
	for i := range *rounds {
		for _, path := range paths {
			b.Logf("round %d of %d", i+1, *rounds)
			path(b, &tab, bin)
		}
	}
	report(b, &tab)
}

func loopback(b *testing.B, tab *Table, bin string) {
	addrs := testaddr.Take(b, 2)
	measure(b, tab, bin, "loopback", host{addr: addrs[0]}, host{addr: addrs[1]})
}

func veth(b *testing.B, tab *Table, bin string) {
	x, y := testnet.Pair(b, 9000)
	measure(b, tab, bin, "veth, MTU 9000", host{addr: x.Addr4, ns: x}, host{addr: y.Addr4, ns: y})
}

// build makes the command as a user has it.
func build(b *testing.B) string {
	b.Helper()
	bin := filepath.Join(b.TempDir(), "softroce")
	if msg, err := exec.Command("go", "build", "-o", bin, "../../cmd/softroce").CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, msg)
	}
	return bin
}

// report prints the table and puts it into the document.
func report(b *testing.B, tab *Table) {
	b.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "Made %s on %s, %d CPUs, %s; %d interleaved rounds; GB/s is 10^9 bytes of payload a second.\n\n",
		time.Now().UTC().Format("2006-01-02"), kernel(), runtime.NumCPU(), cpuModel(), *rounds)
	if _, err := tab.WriteTo(&text); err != nil {
		b.Fatal(err)
	}
	fmt.Println(text.String())
	if *out == "" {
		return
	}
	doc, err := os.ReadFile(*out)
	if err != nil {
		b.Fatal(err)
	}
	next, err := Replace(string(doc), text.String())
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(*out, []byte(next), 0o644); err != nil {
		b.Fatal(err)
	}
	data, err := json.MarshalIndent(tab, "", "  ")
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(*out), "bench.json"), append(data, '\n'), 0o644); err != nil {
		b.Fatal(err)
	}
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "an unknown kernel"
	}
	release := unix.ByteSliceToString(u.Release[:])
	if i := strings.IndexByte(release, '-'); i > 0 {
		release = release[:i]
	}
	return "Linux " + release
}

func cpuModel() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "an unknown CPU"
	}
	for l := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "an unknown CPU"
}

package bench

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/rawudp"
	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testnet"
)

var (
	rounds = flag.Int("rounds", 5, "rounds of the interleaved run")
	quick  = flag.Bool("quick", false, "measure what the targets are about, nothing else")
	docs   = flag.String("docs", "", "directory whose performance.md, bench.json and charts are written; empty: print only")
	seed   = flag.Uint64("seed", 0, "of the order within the rounds; 0: any")
)

// references are programs to hold floors to, by the name of the floor.
var references = map[string][]string{}

func init() {
	flag.Func("reference", "`FLOOR=COMMAND`: run a command that prints a floor's figure (4096 and 1024: N GB/s, sendmmsg: N kpps) in each round,"+
		" as root, in a network namespace; the floor is void below 0.8 of the best of its commands", func(s string) error {
		name, command, ok := strings.Cut(s, "=")
		if !ok || !slices.ContainsFunc(Floors, func(f Floor) bool { return f.Name == name }) {
			return fmt.Errorf("want 4096=COMMAND, 1024=COMMAND or sendmmsg=COMMAND, got %q", s)
		}
		references[name] = append(references[name], command)
		return nil
	})
}

// BenchmarkTable makes the whole table; go test runs it with -bench only.
// Everything is measured once a round, so that a disturbed minute disturbs all
// alike.
func BenchmarkTable(b *testing.B) {
	iperf, err := exec.LookPath("iperf3")
	if err != nil {
		b.Fatal("bench: iperf3 is not installed; on Debian: apt-get install iperf3")
	}
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	r := &run{b: b, s: newStarter(b), bin: build(b), iper: iperf, rng: rand.New(rand.NewPCG(*seed, 0))}
	if len(references) > 0 {
		r.apart.ns = testnet.One(b)
	}
	parts := r.parts()
	start := time.Now()
	for i := range *rounds {
		fmt.Fprintf(os.Stderr, "bench: round %d of %d, %.0f s so far\n", i+1, *rounds, time.Since(start).Seconds())
		r.rng.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		for _, f := range parts {
			f()
		}
	}
	r.report()
}

// parts are the groups that a round measures. What is compared is of one
// group, so that it is measured close together.
func (r *run) parts() []func() {
	a := testaddr.Take(r.b, 4)
	x, y := host{addr: a[0]}, host{addr: a[1]}
	parts := []func(){
		func() { r.with(x, y, func(d *daemons) []func() { return r.targetSteps(d, x, y) }) },
		func() { r.with(x, y, func(d *daemons) []func() { return r.tripSteps(d, x, y) }) },
		func() { r.with(host{addr: a[2]}, host{addr: a[2]}, r.insideSteps) },
		func() { r.idle(host{addr: a[3]}) },
	}
	if *quick {
		return parts
	}
	parts = append(parts, func() { r.with(x, y, func(d *daemons) []func() { return r.sweepSteps(d, x, y) }) })
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "bench: veth: left out, it needs root for network namespaces")
		return parts
	}
	for path, mtu := range map[string]int{Veth1500: 1500, Veth9000: 9000} {
		p, q := testnet.Pair(r.b, mtu)
		x, y := host{addr: p.Addr4, ns: p}, host{addr: q.Addr4, ns: q}
		parts = append(parts, func() { r.with(x, y, func(d *daemons) []func() { return r.vethSteps(d, x, y, path) }) })
	}
	return parts
}

// targetSteps are the bandwidths that targets are about.
func (r *run) targetSteps(d *daemons, x, y host) []func() {
	write := func(s stress) stress {
		s.op, s.seconds = "WRITE", perfSeconds
		return s
	}
	steps := append(r.floors(x, y, Loop, 4096), r.floors(x, y, Loop1024, 1024)...)
	for _, f := range Floors {
		steps = append(steps, r.refer(f)...)
	}
	return append(steps,
		r.batches(x, y, Loop, 64+onlyBytes),
		r.tcp(x, y, Loop, mib),
		r.bandwidth(d, write(stress{path: Loop, size: mib, mtu: 4096, base: Raw(Loop)})),
		r.bandwidth(d, write(stress{path: Loop, size: kib64, mtu: 4096, base: Raw(Loop)})),
		r.bandwidth(d, write(stress{path: Loop1024, size: mib, mtu: 1024, base: Raw(Loop1024)})),
		r.bandwidth(d, stress{path: Loop, op: "READ", size: mib, mtu: 4096, seconds: perfSeconds, base: Raw(Loop)}),
		r.bandwidth(d, write(stress{
			path: Loop, size: kib64, mtu: 4096, special: qps1000, base: []Ref{{Loop, Message("WRITE", kib64, "")}},
			args: []string{"-q", "1000", "-t", "4"},
		})),
		r.rate(d, write(stress{
			path: Loop, size: 64, mtu: 4096, special: qps16, base: []Ref{{Loop, RawBatches}}, args: []string{"-q", "16", "-I", "64"},
		})),
		r.beside(d),
	)
}

// tripSteps are the round trips that targets are about.
func (r *run) tripSteps(d *daemons, x, y host) []func() {
	return []func(){
		r.rawTrips(x, y, RawSpinning+SizeName(8), 8, false, false),
		r.rawTrips(x, y, RawBlocking, 8, true, false),
		r.rawTrips(x, y, RawPlaced, 8, true, true),
		r.trips(d, Trips, "WRITE", 8, "", []Ref{{Trips, RawSpinning + SizeName(8)}}),
		r.trips(d, Trips, "WRITE", 8, blocking, []Ref{{Trips, RawBlocking}}, "-e"),
	}
}

// insideSteps is one adapter on which both programs are.
func (r *run) insideSteps(d *daemons) []func() {
	steps := []func(){r.memcpy, r.bandwidth(d, stress{
		path: Inside, op: "WRITE", size: mib, mtu: 4096, seconds: perfSeconds, base: []Ref{{Memory, MemcpyName}},
	})}
	if *quick {
		return steps
	}
	for _, op := range []string{"WRITE", "READ", "SEND"} {
		for _, size := range []int{kib64, mib} {
			if op == "WRITE" && size == mib {
				continue
			}
			steps = append(steps, r.bandwidth(d, stress{
				path: Inside, op: op, size: size, mtu: 4096, seconds: sweepSecs, base: []Ref{{Memory, MemcpyName}},
			}))
		}
	}
	return append(steps, r.trips(d, Inside, "WRITE", 8, "", nil))
}

// sweepSteps are sizes, operations and numbers of queue pairs on loopback.
func (r *run) sweepSteps(d *daemons, x, y host) []func() {
	var steps []func()
	for _, size := range []int{8, 64, 512, 4 << 10, kib64, mib, 8 << 20} {
		for _, op := range []string{"WRITE", "READ", "SEND"} {
			s := stress{path: Loop, op: op, size: size, mtu: 4096, seconds: sweepSecs, base: Raw(Loop)}
			if size < 4096 {
				s.base = []Ref{{Loop, RawPackets + SizeName(size)}}
			}
			if (op != "WRITE" || size != kib64) && (op == "SEND" || size != mib) { // the targets have it
				steps = append(steps, r.bandwidth(d, s))
			}
			if s.path, s.mtu, s.base = Loop1024, 1024, Raw(Loop1024); (size == kib64 || size == mib) && (op != "WRITE" || size != mib) {
				steps = append(steps, r.bandwidth(d, s))
			}
			if size <= mib && (op != "WRITE" || size != 8) {
				steps = append(steps, r.trips(d, Trips, op, size, "", nil))
			}
		}
		if size < 4096 {
			steps = append(steps, r.stream(x, y, Row{Ref: Ref{Loop, RawPackets + SizeName(size)}, Size: size}, rawudp.Recvmsg, size))
		}
		if size > 8 && size <= 4096 {
			steps = append(steps, r.rawTrips(x, y, RawSpinning+SizeName(size), size, false, false))
		}
	}
	for special, qps := range map[string]string{qps16: "16", ", 100 QPs": "100"} {
		steps = append(steps, r.bandwidth(d, stress{
			path: Loop, op: "WRITE", size: kib64, mtu: 4096, special: special, seconds: sweepSecs,
			base: []Ref{{Loop, Message("WRITE", kib64, "")}}, args: []string{"-q", qps, "-t", "16"},
		}))
	}
	for special, qps := range map[string]string{"": "1", qps16: "16"} {
		steps = append(steps, r.rate(d, stress{
			path: Loop, op: "FETCH_AND_ADD", size: 8, mtu: 4096, special: special, seconds: sweepSecs, args: []string{"-q", qps},
		}))
	}
	for _, size := range []int{4 << 10, kib64, 128 << 10} {
		steps = append(steps, r.tcp(x, y, Loop, size))
	}
	return append(steps, r.trips(d, Trips, "FETCH_AND_ADD", 8, "", nil))
}

// vethSteps is a path between two network namespaces.
func (r *run) vethSteps(d *daemons, x, y host, path string) []func() {
	mtu := map[string]int{Veth1500: 1024, Veth9000: 4096}[path]
	steps := append(r.floors(x, y, path, mtu), r.tcp(x, y, path, mib), r.tcp(x, y, path, 128<<10), r.trips(d, path, "WRITE", 8, "", nil))
	for _, op := range []string{"WRITE", "READ", "SEND"} {
		for _, size := range []int{kib64, mib} {
			steps = append(steps, r.bandwidth(d, stress{path: path, op: op, size: size, mtu: mtu, seconds: sweepSecs, base: Raw(path)}))
		}
	}
	return steps
}

// report prints the tables, and writes them where asked to.
func (r *run) report() {
	dir := *docs
	if dir == "" {
		dir = filepath.Join("..", "..", "docs")
	}
	targets, err := MergeRxe(r.tab.Targets(Wants, Floors), filepath.Join(dir, "bench-rxe.json"))
	if err != nil {
		r.b.Error(err)
	}
	m := made()
	var detail strings.Builder
	if _, err := r.tab.WriteTo(&detail); err != nil {
		r.b.Fatal(err)
	}
	fmt.Printf("%s\n%s\n%s", m.sentence(), detail.String(), FormatTargets(targets))
	if *docs == "" || r.b.Failed() {
		return
	}
	if err := write(*docs, m, &r.tab, targets, detail.String()); err != nil {
		r.b.Fatal(err)
	}
}

// circumstances are those of a run.
type circumstances struct {
	Date   string `json:"date"`
	Kernel string `json:"kernel"`
	CPUs   int    `json:"cpus"`
	CPU    string `json:"cpu"`
	Go     string `json:"go"`
	Rounds int    `json:"rounds"`
}

func made() circumstances {
	return circumstances{
		Date: time.Now().UTC().Format("2006-01-02"), Kernel: kernel(), CPUs: runtime.NumCPU(), CPU: cpuModel(), Go: runtime.Version(), Rounds: *rounds,
	}
}

func (m circumstances) sentence() string {
	return fmt.Sprintf("Made %s on %s, %d CPUs, %s, %s; interleaved rounds: %d; medians; GB/s is 10^9 bytes of payload a second.\n",
		m.Date, m.Kernel, m.CPUs, m.CPU, m.Go, m.Rounds)
}

// write puts a run into the documents of a directory.
func write(dir string, m circumstances, tab *Table, targets []Target, detail string) error {
	name := filepath.Join(dir, "performance.md")
	doc, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	next, err := Replace(string(doc), m.sentence()+"\n"+FormatTargets(targets)+"\n"+detail)
	if err != nil {
		return err
	}
	data, err := json.MarshalIndent(struct {
		circumstances
		Targets []Target `json:"targets"`
		Rows    []*Row   `json:"rows"`
	}{m, targets, tab.Rows}, "", "  ")
	if err != nil {
		return err
	}
	files := map[string]string{name: next, filepath.Join(dir, "bench.json"): string(data) + "\n"}
	for file, c := range tab.Charts() {
		files[filepath.Join(dir, file)] = c.SVG()
	}
	for file, text := range files {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
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

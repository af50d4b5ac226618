package bench

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/rawudp"
	"github.com/softroce/softroce/pkg/verbs"
)

// How long single things are measured.
const (
	floorTime   = 400 * time.Millisecond
	shortTime   = 250 * time.Millisecond
	perfSeconds = "0.5"
	sweepSecs   = "0.3"
	besideSecs  = "1"
	idleTime    = 3 * time.Second
	idleQPs     = 10_000
)

// run is the whole benchmark.
type run struct {
	b    *testing.B
	tab  Table
	s    *starter
	bin  string
	iper string // path of iperf3
	rng  *rand.Rand
	// apart is where reference programs run.
	apart host
}

// add takes a figure in, or fails the benchmark and goes on.
func (r *run) add(row Row, v float64, err error) {
	if err != nil {
		r.b.Errorf("%s: %s: %v", row.Path, row.Name, err)
		return
	}
	r.tab.Add(row, v)
}

// floorTries is how often a floor is measured when others keep it from its CPUs.
const floorTries = 4

// floor measures a floor: again when it was disturbed, and the least disturbed
// counts. What is held against it is measured once.
func (r *run) floor(row Row, measure func() (v, waited float64, err error)) {
	best, least := 0.0, math.Inf(1)
	for i := 0; i < floorTries && least > mostWaited; i++ {
		v, waited, err := measure()
		if err != nil {
			r.add(row, 0, err)
			return
		}
		if waited < least {
			best, least = v, waited
		}
	}
	r.tab.AddFloor(row, best, least)
}

// shuffled makes steps in an order of the round's own.
func (r *run) shuffled(steps []func()) {
	r.rng.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	for _, f := range steps {
		f()
	}
}

// with runs steps while adapters serve two hosts.
func (r *run) with(x, y host, steps func(d *daemons) []func()) {
	d, err := startDaemons(r.s, r.bin, x, y)
	if err != nil {
		r.b.Errorf("daemons: %v", err)
		return
	}
	defer d.stop()
	r.shuffled(steps(d))
}

// stream measures a floor with segmentation offload, in GB/s of payload.
func (r *run) stream(x, y host, row Row, rx rawudp.Receiver, size int) func() {
	row.Unit = GBs
	c := rawudp.Config{Tx: x.side(), Rx: y.side(), Size: size + middleBytes, Receiver: rx, Duration: floorTime}
	return func() {
		r.floor(row, func() (float64, float64, error) {
			res, err := rawudp.Stream(c)
			return res.Rate() * float64(size) / 1e9, res.Waited, err
		})
	}
}

// floors are both receivers' on a path.
func (r *run) floors(x, y host, path string, mtu int) []func() {
	names := Raw(path)
	return []func(){
		r.stream(x, y, Row{Ref: names[0]}, rawudp.Recvmsg, mtu),
		r.stream(x, y, Row{Ref: names[1]}, rawudp.Recvmmsg, mtu),
	}
}

// batches measures datagrams by sendmmsg, in millions a second.
func (r *run) batches(x, y host, path string, size int) func() {
	c := rawudp.Config{Tx: x.side(), Rx: y.side(), Size: size, Duration: floorTime}
	return func() {
		r.floor(Row{Ref: Ref{path, RawBatches}, Unit: Rate}, func() (float64, float64, error) {
			res, err := rawudp.Batches(c)
			return res.Rate() / 1e6, res.Waited, err
		})
	}
}

// rawTrips measures a floor's round trip of a message of size bytes. Its median
// is one of trips for which both threads had their CPUs.
func (r *run) rawTrips(x, y host, name string, size int, block, unpinned bool) func() {
	c := rawudp.Config{Tx: x.side(), Rx: y.side(), Size: size + onlyBytes, Block: block, Unpinned: unpinned, Duration: shortTime}
	return func() {
		res, err := rawudp.PingPong(c)
		r.add(Row{Ref: Ref{Trips, name}, Unit: Micros, Size: size}, float64(res.Median.Nanoseconds())/1e3, err)
	}
}

func (r *run) memcpy() {
	r.floor(Row{Ref: Ref{Memory, MemcpyName}, Unit: GBs, Size: 64 << 20}, func() (float64, float64, error) {
		v, waited, err := rawudp.Memcpy(64<<20, shortTime)
		return v / 1e9, waited, err
	})
}

// tcp measures kernel TCP with writes of size bytes.
func (r *run) tcp(x, y host, path string, size int) func() {
	return func() {
		v, err := r.iperf(x, y, size)
		r.add(Row{Ref: Ref{path, TCPName + SizeName(size)}, Unit: GBs, Size: size}, v, err)
	}
}

func (r *run) iperf(x, y host, size int) (float64, error) {
	port, err := freePort()
	if err != nil {
		return 0, err
	}
	server, err := r.s.start(y, r.iper, "-s", "-1", "-p", port, "-B", y.addr.String())
	if err != nil {
		return 0, err
	}
	defer server.stop()
	for end := time.Now().Add(patience); ; {
		client, err := r.s.start(x, r.iper, "-c", y.addr.String(), "-p", port, "-t", "1", "-l", fmt.Sprint(size), "-J")
		if err != nil {
			return 0, err
		}
		failed := client.wait()
		v, err := ParseIperf(client.out.Bytes())
		if errors.Is(err, ErrNoServer) && time.Now().Before(end) {
			continue
		}
		if err == nil {
			err = failed
		}
		return v, err
	}
}

// refer runs the reference programs of a floor, each in a namespace of its own:
// it may want the adapters' port.
func (r *run) refer(f Floor) (steps []func()) {
	for i, command := range references[f.Name] {
		steps = append(steps, func() {
			p, err := r.s.start(r.apart, "sh", "-c", command)
			if err == nil {
				err = p.wait()
			}
			var v float64
			if err == nil {
				v, err = ParseReference(p.out.Bytes(), f.Unit)
			}
			r.add(Row{Ref: f.Reference(i + 1), Unit: f.Unit}, v, err)
		})
	}
	return steps
}

// stress is one run of the perf command for bandwidth.
type stress struct {
	path    string
	op      string // WRITE, READ, SEND
	size    int
	mtu     int
	special string
	seconds string
	base    []Ref
	args    []string
}

// verb is the perf command's word for an operation.
var verb = map[string]string{"WRITE": "write", "READ": "read", "SEND": "send", "FETCH_AND_ADD": "atomic"}

// bandwidth measures in GB/s.
func (r *run) bandwidth(d *daemons, s stress) func() {
	return func() {
		p, err := d.stream(s)
		r.add(Row{Ref: Ref{s.path, Message(s.op, s.size, s.special)}, Unit: GBs, Size: s.size, Base: s.base}, p.GBs, err)
	}
}

// rate measures in millions of messages a second.
func (r *run) rate(d *daemons, s stress) func() {
	return func() {
		p, err := d.stream(s)
		r.add(Row{Ref: Ref{s.path, Message(s.op, s.size, s.special)}, Unit: Rate, Base: s.base}, p.Millions, err)
	}
}

// stream runs the perf command. What is in flight is bounded in bytes, too:
// the end of a run waits for it.
func (d *daemons) stream(s stress) (Perf, error) {
	args := append([]string{"--bw", "-D", s.seconds, "-m", fmt.Sprint(s.mtu)}, s.args...)
	if s.op != "FETCH_AND_ADD" {
		args = append(args, "-s", fmt.Sprint(s.size))
	}
	if s.size >= mib && len(s.args) == 0 {
		args = append(args, "-t", "16")
	}
	return d.perf(verb[s.op], args...)
}

// trips measures round trips. The perf command gives half of those of WRITE
// and SEND.
func (r *run) trips(d *daemons, path, op string, size int, special string, base []Ref, args ...string) func() {
	return func() {
		parts := 2.0
		if op != "WRITE" && op != "SEND" {
			parts = 1
		}
		args := append([]string{"--lat", "-D", sweepSecs}, args...)
		if op != "FETCH_AND_ADD" {
			args = append(args, "-s", fmt.Sprint(size))
		}
		p, err := d.perf(verb[op], args...)
		r.add(Row{Ref: Ref{path, Message(op, size, special)}, Unit: Micros, Size: size, Base: base}, parts*p.Median, err)
	}
}

// beside measures the slowest hundredth of round trips, alone and while other
// programs write in bulk between the same adapters.
func (r *run) beside(d *daemons) func() {
	return func() {
		ping := func(name string) {
			p, err := d.perf("write", "--lat", "-D", besideSecs, "-s", "8")
			r.add(Row{Ref: Ref{Beside, name}, Unit: P99, Base: []Ref{{Beside, BesideAlone}}}, 2*p.P99, err)
		}
		ping(BesideAlone)
		client, server, err := d.begin("write", "--bw", "-e", "-s", fmt.Sprint(kib64), "-D", "30")
		if err != nil {
			r.b.Errorf("bulk writer: %v", err)
			return
		}
		defer server.stop()
		defer client.stop()
		ping(BesideBulk)
		select {
		case <-client.done:
			r.b.Errorf("bulk writer: it ended too early: %v: %s", client.err, client.errs.Bytes())
		default:
		}
	}
}

// idle measures the CPU time of a daemon whose only program holds connected
// queue pairs and does nothing.
func (r *run) idle(h host) {
	d, err := startDaemons(r.s, r.bin, h, h)
	if err != nil {
		r.b.Errorf("daemon: %v", err)
		return
	}
	defer d.stop()
	v, err := d.cpuWith(idleQPs)
	r.add(Row{Ref: Ref{Idle, IdleName}, Unit: PerCent}, v, err)
}

func (d *daemons) cpuWith(n int) (float64, error) {
	dev, err := verbs.Open(&verbs.Options{Socket: d.sockets[0]})
	if err != nil {
		return 0, err
	}
	defer dev.Close()
	if err := connectQPs(dev, n); err != nil {
		return 0, err
	}
	pid := d.procs[0].cmd.Process.Pid
	<-time.After(time.Second) // it comes to rest
	before, err := ranFor(pid)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	<-time.After(idleTime)
	after, err := ranFor(pid)
	return 100 * float64(after-before) / float64(time.Since(start).Nanoseconds()), err
}

// connectQPs makes queue pairs, two and two connected to each other.
func connectQPs(dev *verbs.Device, n int) error {
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	cq, err := dev.CreateCQ(16, nil, 0)
	if err != nil {
		return err
	}
	gid, err := dev.QueryGID(0)
	if err != nil {
		return err
	}
	qps := make([]*verbs.QP, n)
	for i := range qps {
		qps[i], err = pd.CreateQP(&verbs.QPInitAttr{
			Type: verbs.RC, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
		})
		if err != nil {
			return fmt.Errorf("queue pair %d of %d: %w", i+1, n, err)
		}
	}
	for i, qp := range qps {
		if err := qp.ConnectRC(verbs.RCPeer{QPN: qps[i^1].Num(), GID: gid}, verbs.RCConfig{}); err != nil {
			return fmt.Errorf("connect queue pair %d of %d: %w", i+1, n, err)
		}
	}
	return nil
}

// ranFor is the CPU time of a process's threads in nanoseconds.
func ranFor(pid int) (sum int64, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("process %d is gone, or the kernel keeps no schedstat", pid)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return 0, err
		}
		ns, err := ParseSchedstat(text)
		if err != nil {
			return 0, err
		}
		sum += ns
	}
	return sum, err
}

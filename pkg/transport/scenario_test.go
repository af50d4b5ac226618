package transport_test

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/wq"
)

var update = flag.Bool("update", false, "write the scenarios' outputs anew; read the diff")

// TestScenarios runs testdata/*.txt. In a file, a line that begins at the margin
// is a comment (#) or a command; what it leads to stands below it, indented: what
// became of a packet, packets sent (>), completions (wc, recv wc), events, a
// changed state, and the time when it moved. The queue pair under test is 0x11,
// in RTS; its peer is the script.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			got := runScenario(t, string(text))
			if *update {
				if err := os.WriteFile(f, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(text) {
				t.Errorf("output differs (-update writes it anew):\n%s", diff(string(text), got))
			}
		})
	}
}

// diff shows the first lines that differ.
func diff(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := 0; i < max(len(w), len(g)); i++ {
		line := func(l []string) string {
			if i < len(l) {
				return l[i]
			}
			return "(end)"
		}
		if line(w) != line(g) {
			return fmt.Sprintf("line %d\nwant %s\n got %s\nall of it:\n%s", i+1, line(w), line(g), got)
		}
	}
	return ""
}

// scenario is a script being run.
type scenario struct {
	t     *testing.T
	out   bytes.Buffer
	e     *end
	peer  *end
	now   time.Time
	shown time.Time
	state qpstate.State
	opts  options
}

func runScenario(t *testing.T, text string) string {
	s := &scenario{t: t, now: start, shown: start}
	for i, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t") {
			continue
		}
		fmt.Fprintln(&s.out, line)
		if line == "" || line[0] == '#' {
			continue
		}
		if err := s.command(line); err != nil {
			t.Fatalf("line %d, %q: %v", i+1, line, err)
		}
	}
	return s.out.String()
}

func (s *scenario) say(format string, args ...any) {
	if !s.shown.Equal(s.now) {
		s.shown = s.now
		fmt.Fprintf(&s.out, "  at %v\n", s.now.Sub(start))
	}
	fmt.Fprintf(&s.out, "  "+format+"\n", args...)
}

func (s *scenario) command(line string) error {
	verb, rest, _ := strings.Cut(line, " ")
	if s.e == nil && verb != "connect" {
		s.connect("")
	}
	switch verb {
	case "connect":
		s.connect(rest)
	case "in":
		return s.in(rest)
	case "post":
		return s.post(rest)
	case "recv":
		return s.recv(rest)
	case "wait":
		d, err := time.ParseDuration(rest)
		if err != nil {
			return err
		}
		s.wait(d)
	case "modify":
		return s.modify(rest)
	case "mem":
		var off, n int
		if _, err := fmt.Sscanf(rest, "%v %v", &off, &n); err != nil {
			return err
		}
		s.say("%x", []byte(s.e.mem[off:off+n]))
	case "set":
		var off, v int
		if _, err := fmt.Sscanf(rest, "%v %v", &off, &v); err != nil {
			return err
		}
		s.e.mem[off] = byte(v)
	case "set64", "mem64":
		var off int
		var v uint64
		if _, err := fmt.Sscanf(rest+" 0", "%v %v", &off, &v); err != nil {
			return err
		}
		if verb == "mem64" {
			s.say("%#x", binary.NativeEndian.Uint64(s.e.mem[off:]))
			return nil
		}
		binary.NativeEndian.PutUint64(s.e.mem[off:], v)
	case "dereg":
		return s.e.keys.Mark(s.e.mr)
	case "poll":
		s.flush()
	case "fatal":
		s.e.qp.Fatal(s.now)
		s.flush()
	default:
		return fmt.Errorf("no such command")
	}
	return nil
}

// number reads key=value words.
func words(s string) (map[string]uint64, map[string]bool, error) {
	v, f := map[string]uint64{}, map[string]bool{}
	for _, w := range strings.Fields(s) {
		k, x, has := strings.Cut(w, "=")
		if !has {
			f[k] = true
			continue
		}
		n, err := strconv.ParseUint(x, 0, 64)
		if err != nil {
			return nil, nil, err
		}
		v[k] = n
	}
	return v, f, nil
}

func (s *scenario) connect(rest string) {
	v, f, err := words(rest)
	if err != nil {
		s.t.Fatal(err)
	}
	o := options{mtu: bth.MTU1024}
	if n, ok := v["mtu"]; ok {
		o.mtu, _ = bth.MTUFromBytes(int(n))
	}
	o.rd, o.destRD, o.timeout = uint8(v["rd"]), uint8(v["destrd"]), uint8(v["timeout"])
	o.retry, o.rnrRetry, o.rnrTimer = uint8(v["retry"]), uint8(v["rnrretry"]), uint8(v["rnrtimer"])
	o.psnA, o.psnB = bth.PSN(v["sqpsn"]), bth.PSN(v["rqpsn"])
	o.window = int(v["window"])
	o.access = uint32(v["access"])
	o.memAccess = mrtable.Access(v["mraccess"])
	o.sigAll = f["sigall"]
	o.noTimeout, o.noRD = f["notimeout"], f["nord"]
	o = o.withDefaults()
	if f["retry0"] {
		o.retry = 0
	}
	if f["rnrretry0"] {
		o.rnrRetry = 0
	}
	if f["rnrtimer0"] {
		o.rnrTimer = 0
	}
	s.opts = o
	s.e, s.peer = newEnd(s.t, 0x11, 1, o), newEnd(s.t, 0x22, 2, o)
	to := qpstate.RTS
	switch {
	case f["rtr"]:
		to = qpstate.RTR
	case f["init"]:
		to = qpstate.Init
	}
	s.e.to(to, s.peer, o)
	s.state = s.e.qp.State()
}

func (s *scenario) in(rest string) error {
	hold := strings.HasPrefix(rest, "hold ")
	rest = strings.TrimPrefix(rest, "hold ")
	b, err := craft(rest, uint32(s.e.mr.RKey()))
	if err != nil {
		return err
	}
	from := s.peer.gid
	s.say("%v", s.e.handle(s.now, b, from))
	if !hold {
		s.flush()
	}
	return nil
}

var scenarioOps = map[string]wq.Opcode{
	"send": wq.Send, "sendimm": wq.SendWithImm, "write": wq.RDMAWrite, "writeimm": wq.RDMAWriteWithImm,
	"read": wq.RDMARead, "fadd": wq.AtomicFetchAndAdd, "cas": wq.AtomicCmpAndSwp, "sendinv": wq.SendWithInv,
	"localinv": wq.LocalInv,
}

func (s *scenario) post(rest string) error {
	name, rest, _ := strings.Cut(rest, " ")
	hold := name == "hold"
	if hold {
		name, rest, _ = strings.Cut(rest, " ")
	}
	op, ok := scenarioOps[name]
	if !ok {
		return fmt.Errorf("no operation %q", name)
	}
	v, f, err := words(rest)
	if err != nil {
		return err
	}
	wr := wq.SendWR{
		WRID: v["id"], Opcode: op, ImmData: uint32(v["imm"]), RemoteAddr: v["va"], RKey: mrtable.RKey(v["key"]),
		CompareAdd: v["add"] + v["cmp"], Swap: v["swap"], Flags: wq.SendSignaled,
	}
	if f["unsignaled"] {
		wr.Flags = 0
	}
	if f["se"] {
		wr.Flags |= wq.SendSolicited
	}
	if f["fence"] {
		wr.Flags |= wq.SendFence
	}
	n := int(v["len"])
	if op == wq.AtomicCmpAndSwp || op == wq.AtomicFetchAndAdd {
		n = 8
	}
	sge := s.e.sge(int(v["off"]), n)
	if k, ok := v["lkey"]; ok {
		sge.LKey = mrtable.LKey(k)
	}
	wr.SGList = []wq.SGE{sge}
	if f["inline"] {
		wr.Flags |= wq.SendInline
		wr.Inline = append([]byte(nil), s.e.mem[v["off"]:int(v["off"])+n]...)
		wr.SGList = nil
	}
	if err := s.e.qp.PostSend(s.now, &wr); err != nil {
		s.say("%v", err)
	}
	if !hold {
		s.flush()
	}
	return nil
}

func (s *scenario) recv(rest string) error {
	v, _, err := words(rest)
	if err != nil {
		return err
	}
	sge := s.e.sge(int(v["off"]), int(v["len"]))
	if k, ok := v["lkey"]; ok {
		sge.LKey = mrtable.LKey(k)
	}
	s.e.postRecv(s.now, v["id"], sge)
	s.flush()
	return nil
}

func (s *scenario) modify(rest string) error {
	states := map[string]qpstate.State{"reset": qpstate.Reset, "err": qpstate.Err, "sqd": qpstate.SQD, "rts": qpstate.RTS, "init": qpstate.Init}
	name, rest, _ := strings.Cut(rest, " ")
	st, ok := states[name]
	if !ok {
		return fmt.Errorf("no state %q", name)
	}
	a, m := qpstate.Attr{State: st}, qpstate.MaskState
	if strings.Contains(rest, "notify") {
		a.EnSQDAsyncNotify = true
		m |= qpstate.MaskEnSQDAsyncNotify
	}
	if err := s.e.qp.Modify(s.now, &a, m, nil); err != nil {
		s.say("%v", err)
	}
	s.flush()
	return nil
}

// wait lets time pass, serving deadlines on the way.
func (s *scenario) wait(d time.Duration) {
	until := s.now.Add(d)
	for i := 0; i < 1000; i++ {
		t := s.e.qp.NextTimeout()
		if t.IsZero() || t.After(until) {
			break
		}
		s.now = t
		s.e.qp.HandleTimeout(s.now)
		s.flush()
	}
	s.now = until
	s.e.qp.HandleTimeout(s.now)
	s.flush()
}

// flush says everything that the queue pair has to say now.
func (s *scenario) flush() {
	e := s.e
	for _, b := range e.pollAll(s.now) {
		s.say("> %s", packetText(b))
	}
	for _, l := range e.sendCQ.take() {
		s.say("wc %s", l)
	}
	for i := range e.recvCQ.wcs {
		sol := ""
		if e.recvCQ.solicited[i] {
			sol = " solicited"
		}
		s.say("recv wc %s%s", wcText(&e.recvCQ.wcs[i]), sol)
	}
	e.recvCQ.take0()
	for ev, ok := e.qp.PollEvent(); ok; ev, ok = e.qp.PollEvent() {
		s.say("event: %s", ev.Text())
	}
	if st := e.qp.State(); st != s.state {
		s.state = st
		s.say("state %v", st)
	}
}

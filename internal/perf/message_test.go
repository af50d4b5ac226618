package perf

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/testdevices"
	"github.com/softroce/softroce/pkg/verbs"
)

func TestReadMessage(t *testing.T) {
	long := `{"softroce_perf":"hello","text":"` + strings.Repeat("x", maxMessage) + "\"}\n"
	for _, c := range []struct{ name, in, want string }{
		{"a message", "{\"softroce_perf\":\"bye\"}\n", ""},
		{"the end", "", "hung up"},
		{"the end in the middle", `{"softroce_perf":"by`, "hung up"},
		{"too long", long, "more than"},
		{"another language", "GET / HTTP/1.1\r\n\r\n", "not softroce perf"},
		{"JSON of somebody else", "{\"method\":\"GET\"}\n", "not softroce perf"},
		{"a number too large", "{\"softroce_perf\":\"hello\",\"version\":1e400}\n", "not softroce perf"},
		{"ibv_rc_pingpong", "0000:0000a4:aa7938:00000000000000000000ffff0a4d000c\x00\n", "not softroce perf"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := readMessage(bufio.NewReaderSize(strings.NewReader(c.in), maxMessage))
			if c.want == "" {
				if err != nil || m.Kind != kindBye {
					t.Errorf("got %+v, %v", m, err)
				}
			} else if !errors.Is(err, ErrPeer) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// The largest hello that this side would send must fit.
func TestLargestHelloFits(t *testing.T) {
	e := endpoint{GID: netip.MustParseAddr("fd77:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), Addr: 1<<64 - 1, RKey: 1<<32 - 1}
	for range maxQPs {
		e.QPs = append(e.QPs, qpEnd{0xFFFFFF, 0xFFFFFF})
	}
	p := Params{Op: Atomic, Sizes: make([]int, maxSizes)}
	for i := range p.Sizes {
		p.Sizes[i] = maxSize
	}
	counts := make([]int64, maxQPs)
	for i := range counts {
		counts[i] = maxIters
	}
	for _, m := range []message{{Kind: kindHello, Version: version, Params: &p, End: &e}, {Kind: kindDone, Counts: counts, Row: &Row{}}} {
		b, err := json.Marshal(m)
		if err != nil || len(b) >= maxMessage {
			t.Errorf("%s: %d bytes, limit %d, %v", m.Kind, len(b), maxMessage, err)
		}
	}
}

func FuzzMessage(f *testing.F) {
	b, err := json.Marshal(message{
		Kind: kindHello, Version: version, Params: &Params{Op: Write, Sizes: []int{2}, Iters: 1, TxDepth: 1, RxDepth: 1, QPs: 1, MTU: 5, CQMod: 1, RDAtomic: 1},
		End: &endpoint{GID: netip.MustParseAddr("127.0.0.1"), QPs: []qpEnd{{1, 2}}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(b, '\n'))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := readMessage(bufio.NewReaderSize(strings.NewReader(string(b)), 4096))
		if err != nil {
			return
		}
		if m.Params != nil && m.Params.validate() == nil {
			if total := m.Params.layout().total(); total <= 0 || total > maxMemory {
				t.Fatalf("parameters that are right need %d bytes: %+v", total, m.Params)
			}
			if m.End.check(m.Params.QPs) == nil {
				for i := range m.Params.QPs {
					_ = m.End.peer(i)
				}
			}
		}
		line, err := json.Marshal(m)
		if err != nil {
			t.Fatalf("%q is read as %+v, which is no message: %v", b, m, err)
		}
		again, err := readMessage(bufio.NewReaderSize(strings.NewReader(string(line)+"\n"), maxMessage))
		if err != nil {
			t.Fatalf("%q is read as %+v, written as %q: %v", b, m, line, err)
		}
		if line2, err := json.Marshal(again); err != nil || !reflect.DeepEqual(line, line2) {
			t.Fatalf("%q: then %q, %v", line, line2, err)
		}
	})
}

func goodParams() Params {
	p := Params{Op: Write}
	return p.withDefaults(&verbs.PortAttr{ActiveMTU: 5}, &verbs.DeviceAttr{MaxInline: 256})
}

// What a client may ask for.
func TestParamsRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(p *Params)
		want string
	}{
		{"the defaults", func(*Params) {}, ""},
		{"an unknown operation", func(p *Params) { p.Op = "bind" }, "none of"},
		{"no size", func(p *Params) { p.Sizes = nil }, "number of sizes"},
		{"many sizes", func(p *Params) { p.Sizes = make([]int, 65) }, "number of sizes"},
		{"size 0", func(p *Params) { p.Sizes = []int{0} }, "size 0"},
		{"a negative size", func(p *Params) { p.Sizes = []int{-1} }, "size -1"},
		{"a huge size", func(p *Params) { p.Sizes = []int{1 << 62} }, "size"},
		{"an atomic of 16 bytes", func(p *Params) { p.Op, p.Sizes = Atomic, []int{16} }, "atomics have 8"},
		{"iterations", func(p *Params) { p.Iters = -1 }, "iterations -1"},
		{"a duration of days", func(p *Params) { p.Duration = 48 * time.Hour }, "duration"},
		{"a negative duration", func(p *Params) { p.Duration = -1 }, "duration"},
		{"queue pairs", func(p *Params) { p.QPs = 1 << 20 }, "queue pairs"},
		{"latency on two queue pairs", func(p *Params) { p.Latency, p.QPs = true, 2 }, "1 queue pair"},
		{"immediate data for bandwidth", func(p *Params) { p.Imm = true }, "immediate data"},
		{"immediate data of READ", func(p *Params) { p.Op, p.Latency, p.Imm = Read, true, true }, "immediate data"},
		{"depth", func(p *Params) { p.TxDepth = 1 << 30 }, "tx-depth"},
		{"receive depth", func(p *Params) { p.RxDepth = 0 }, "rx-depth"},
		{"moderation above the depth", func(p *Params) { p.CQMod = p.TxDepth + 1 }, "cq-mod"},
		{"MTU", func(p *Params) { p.MTU = 6 }, "path MTU"},
		{"READs", func(p *Params) { p.RDAtomic = 256 }, "outstanding"},
		{"inline", func(p *Params) { p.Inline = -1 }, "inline"},
		{"memory", func(p *Params) { p.QPs, p.Sizes = 1024, []int{1 << 20} }, "bytes of memory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := goodParams()
			c.set(&p)
			err := p.validate()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%+v: got %v, want %q", p, err, c.want)
			}
		})
	}
}

// Strangers end the server with an error that says so.
func TestServerMeetsStranger(t *testing.T) {
	devs, _ := testdevices.Open(t, 1)
	dev := devs[0]
	hello := func(set func(*message)) string {
		p := goodParams()
		m := message{
			Kind: kindHello, Version: version, Params: &p,
			End: &endpoint{GID: netip.MustParseAddr("127.0.0.1"), QPs: []qpEnd{{1, 2}}},
		}
		set(&m)
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(b) + "\n"
	}
	for _, c := range []struct{ name, say, want string }{
		{"hangs up", "", "hung up"},
		{"speaks something else", "GET / HTTP/1.1\r\n", "not softroce perf"},
		{"begins in the middle", "{\"softroce_perf\":\"start\"}\n", `"start" instead of`},
		{"another version", hello(func(m *message) { m.Version = 99 }), "version 99"},
		{"no parameters", hello(func(m *message) { m.Params = nil }), "no parameters"},
		{"another test", hello(func(m *message) { m.Params.Op = Read }), "runs read_bw, this side write_bw"},
		{"memory", hello(func(m *message) { m.Params.Sizes = []int{maxSize} }), "bytes of memory"},
		{"no endpoint", hello(func(m *message) { m.End = nil }), "no endpoint"},
		{"no GID", hello(func(m *message) { m.End.GID = netip.Addr{} }), "no GID"},
		{"queue pairs that are not there", hello(func(m *message) { m.Params.QPs = 2 }), "has 1 queue pairs, not 2"},
		{"25 bits", hello(func(m *message) { m.End.QPs[0].QPN = 1 << 24 }), "24 bits"},
		{"a size that is not there", hello(func(*message) {}) + "{\"softroce_perf\":\"start\",\"index\":7}\n", "size number 7 of 1"},
		{"a size below", hello(func(*message) {}) + "{\"softroce_perf\":\"start\",\"index\":-1}\n", "size number -1"},
		{"no counts", hello(func(*message) {}) + "{\"softroce_perf\":\"start\"}\n{\"softroce_perf\":\"done\"}\n", "counted 0 queue pairs"},
		{"an error", hello(func(*message) {}) + "{\"softroce_perf\":\"error\",\"text\":\"no\\u001b[2Jmemory\"}\n", `says: "no\x1b[2Jmemory"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := listen(t)
			served := begin(t.Context(), dev, Config{Params: Params{Op: Write}, Listener: l})
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write([]byte(c.say)); err != nil {
				t.Fatal(err)
			}
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if o := <-served; !errors.Is(o.err, ErrPeer) || !strings.Contains(o.err.Error(), c.want) {
				t.Errorf("got %v, want %q", o.err, c.want)
			}
		})
	}
}

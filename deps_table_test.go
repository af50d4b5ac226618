package softroce_test

import "maps"

const (
	modulePath = "github.com/softroce/softroce"
	sysUnix    = "golang.org/x/sys/unix"
)

// rule is one row of the table in docs/architecture.md.
type rule struct {
	path  string // below the module's path; "x/..." covers x and what is below it; "." is the root
	is    string // what the package is
	never string // what must not be in it

	may      []string // packages and modules it may import beside the standard library
	testsMay []string // what its tests may import beyond that

	pure       bool              // no clock, no goroutine, no print
	noChannels bool              // no channel either
	noStd      map[string]string // standard packages it may not import, with the reason
	unix       bool              // may import golang.org/x/sys/unix
	unsafe     bool              // may import unsafe and make raw system calls
}

// Modules that any row may name. A further one needs a record in docs/adr/.
const (
	gopacket   = "github.com/google/gopacket"
	netns      = "github.com/vishvananda/netns"
	netlink    = "github.com/vishvananda/netlink"
	cobra      = "github.com/spf13/cobra"
	pflag      = "github.com/spf13/pflag"
	prometheus = "github.com/prometheus/client_golang"
	xnet       = "golang.org/x/net"
	yaml       = "go.yaml.in/yaml/v3"
)

var modules = []string{gopacket, netlink, netns, cobra, pflag, prometheus, xnet, yaml}

// impure are the calls that a pure package may not make.
var impure = map[string]string{
	"time.Now":       "time is an argument here, not read",
	"time.Since":     "time is an argument here, not read",
	"time.Until":     "time is an argument here, not read",
	"time.Sleep":     "nothing waits here: give back the next deadline",
	"time.After":     "nothing waits here: give back the next deadline",
	"time.AfterFunc": "nothing waits here: give back the next deadline",
	"time.Tick":      "nothing waits here: give back the next deadline",
	"time.NewTimer":  "nothing waits here: give back the next deadline",
	"time.NewTicker": "nothing waits here: give back the next deadline",
	"fmt.Print":      "output belongs to the edge",
	"fmt.Printf":     "output belongs to the edge",
	"fmt.Println":    "output belongs to the edge",
}

// rawCalls pass numbers and pointers straight to the kernel.
var rawCalls = map[string]bool{
	"syscall.Syscall": true, "syscall.Syscall6": true, "syscall.Syscall9": true,
	"syscall.RawSyscall": true, "syscall.RawSyscall6": true,
	sysUnix + ".Syscall": true, sysUnix + ".Syscall6": true, sysUnix + ".Syscall9": true,
	sysUnix + ".SyscallNoError": true, sysUnix + ".RawSyscall": true, sysUnix + ".RawSyscall6": true,
	sysUnix + ".RawSyscallNoError": true,
}

// noEdge bars the standard packages that reach outside. net/netip is not among them: an address is a value.
var noEdge = map[string]string{
	"net":          "sockets belong to pkg/udp4791 and internal/nic",
	"net/http":     "sockets belong to pkg/udp4791 and internal/nic",
	"os":           "files and the environment belong to the edge",
	"os/exec":      "processes belong to the edge",
	"os/signal":    "signals belong to cmd/softroce",
	"log":          "logs belong to the edge",
	"log/slog":     "logs belong to the edge",
	"math/rand":    "a random value is an argument here",
	"math/rand/v2": "a random value is an argument here",
	"crypto/rand":  "a random value is an argument here",
}

// core bars system calls beyond that.
var core = with(noEdge, "syscall", "system calls belong to internal/shm and pkg/udp4791")

// engine bars all that could make two runs differ.
var engine = with(core, "sync", "one caller at a time: the worker owns the QP",
	"sync/atomic", "one caller at a time: the worker owns the QP",
	"context", "nothing waits here: give back the next deadline",
	"runtime", "the engine knows nothing of threads")

func with(base map[string]string, pairs ...string) map[string]string {
	m := maps.Clone(base)
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return m
}

// leaves are the packages whose types the program's side and the adapter share.
var leaves = []string{"pkg/bth", "pkg/mrtable", "pkg/qpstate", "pkg/wq", "pkg/cq"}

func join(lists ...[]string) []string {
	var all []string
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

var (
	// coreTests is what the tests of pure packages may use: no socket, no clock.
	coreTests = []string{"internal/simnet", "internal/scenario", "internal/capture", gopacket}
	// edgeTests is what the tests of the other packages may use.
	edgeTests = []string{"internal/simnet", "internal/capture", "internal/testaddr", "internal/testnet", "internal/testmatrix", "internal/testdevices", "internal/featuretest", gopacket, netlink, netns}
	// public is what a program outside of this module could import.
	public = join(leaves, []string{"pkg/bth/bthlayer", "pkg/verbs", "pkg/rdmacm", "pkg/rdmanet", "pkg/adapter"})
)

var rules = []rule{
	{
		path: "pkg/bth", is: "bytes to header values and back", never: "state, sockets, what an opcode does",
		testsMay: coreTests, pure: true, noStd: core,
	},
	{
		path: "pkg/bth/bthlayer", is: "a gopacket layer over bth", never: "a second parser",
		may: []string{"pkg/bth", gopacket}, testsMay: coreTests, pure: true, noStd: core,
	},
	{
		path: "pkg/mrtable", is: "who may touch which memory", never: "NAK codes, mmap",
		testsMay: coreTests, pure: true, noStd: core,
	},
	{
		path: "pkg/qpstate", is: "the states of a QP and its legal changes, one table", never: "timers, packets",
		may: []string{"pkg/bth"}, testsMay: coreTests, pure: true, noStd: core,
	},
	{
		path: "pkg/wq", is: "work requests and the queues they wait in", never: "PSNs",
		may: []string{"pkg/bth", "pkg/mrtable"}, testsMay: coreTests, pure: true, noStd: core,
	},
	{
		path: "pkg/cq", is: "completions, arming, overflow", never: "transport rules",
		may: []string{"pkg/bth"}, testsMay: coreTests, pure: true, noStd: core,
	},
	{
		path: "pkg/transport", is: "one QP's protocol as a pure machine",
		never: "net, os, sync, goroutines, channels, clocks, dice, logs",
		may:   leaves, testsMay: coreTests, pure: true, noChannels: true, noStd: engine,
	},
	{
		path: "pkg/udp4791", is: "batches of datagrams and the IP facts around them", never: "a RoCE header beyond the steering filter",
		testsMay: edgeTests, unix: true, unsafe: true,
	},

	{
		path: "internal/shm", is: "memory two processes share, and the waits beside it", never: "what a slot means",
		testsMay: edgeTests, unix: true, unsafe: true,
	},
	{
		path: "internal/shm/foreign", is: "memory of another process: whether it may be reached, and reaching it", never: "a region, a key",
		may: []string{"internal/shm"}, testsMay: edgeTests, unix: true, unsafe: true,
	},
	{
		path: "internal/raceorder", is: "for the race detector: what a datagram between two ends of one process orders", never: "any other order",
	},
	{
		path: "internal/uapi", is: "the versioned language between program and adapter", never: "I/O, policy",
		may: leaves, testsMay: join(coreTests, []string{"internal/shm"}), pure: true, noStd: noEdge,
	},
	{
		path: "internal/cm", is: "the IB connection manager as a pure machine", never: "sockets, clocks",
		may: []string{"pkg/bth", "pkg/qpstate"}, testsMay: coreTests, pure: true, noStd: core,
	},
	{
		path: "internal/capture", is: "what an adapter sent and received, as pcapng, and back", never: "a parser, a socket, what to capture",
		may: []string{"pkg/bth", "pkg/bth/bthlayer", gopacket}, testsMay: coreTests,
	},
	{
		path: "internal/impair", is: "which packets are harmed on purpose, and how, as rules", never: "sockets, clocks, dice, a held packet's way on",
		may: []string{"pkg/bth"}, testsMay: coreTests, pure: true, noChannels: true, noStd: engine,
	},
	{
		path: "internal/trace", is: "packets of a capture as the stories of their connections, as text and as a page", never: "a socket, a file, a protocol rule of the adapter's",
		may: []string{"pkg/bth", "internal/capture"}, testsMay: join(coreTests, []string{"internal/testbrowser"}),
	},
	{
		path: "internal/tap", is: "the packets of a running adapter, for tools", never: "files, what is done with the packets",
		may: []string{"pkg/bth", "pkg/verbs", "internal/devctl", "internal/uapi"}, testsMay: join(edgeTests, []string{"pkg/adapter", "pkg/rdmanet"}),
	},
	{
		path: "internal/nic", is: "the adapter: workers, handles, limits, GIDs, timers, the control plane's server", never: "a header's byte, a protocol rule",
		may:      join(leaves, []string{"pkg/transport", "pkg/udp4791", "internal/shm", "internal/shm/foreign", "internal/uapi", "internal/cm", "internal/capture", "internal/impair", "internal/raceorder", netlink}),
		testsMay: join(edgeTests, []string{"pkg/verbs", "pkg/adapter"}), unix: true,
	},
	{
		path: "internal/metrics", is: "the adapter's counters under their Prometheus names", never: "counting",
		may: []string{"internal/nic", prometheus}, testsMay: join(edgeTests, []string{"internal/shm", "pkg/verbs"}),
	},

	{
		path: "internal/demo", is: "every verb once between two adapters that meet over UDP only", never: "a benchmark",
		may: join(leaves, []string{"pkg/adapter", "pkg/verbs"}), testsMay: edgeTests,
	},
	{
		path: "internal/e2e", is: "tests of whole processes: daemon, programs, and the death of each", never: "code but its tests",
		testsMay: join(edgeTests, public, []string{"internal/uapi", "internal/shm"}), unix: true,
	},

	{
		path: "pkg/verbs", is: "what a program holds, in the verbs manual's terms", never: "the engine",
		may: join(leaves, []string{"internal/uapi", "internal/devctl", "internal/shm", "internal/shm/foreign"}), testsMay: join(edgeTests, []string{"pkg/adapter"}), unix: true,
	},
	{
		path: "internal/devctl", is: "a device's control connection, for the packages beside pkg/verbs", never: "what a request means",
		may: []string{"internal/uapi"},
	},
	{
		path: "pkg/rdmacm", is: "addresses and connections for a program", never: "MAD layouts",
		may: join(leaves, []string{"pkg/verbs", "internal/devctl", "internal/uapi", "internal/cm"}), testsMay: join(edgeTests, []string{"pkg/adapter", "internal/shm"}), unix: true,
	},
	{
		path: "pkg/rdmanet", is: "net.Conn and net.Listener over RDMA", never: "what only an adapter knows",
		may: join(leaves, []string{"pkg/verbs", "pkg/rdmacm"}), testsMay: join(edgeTests, []string{"pkg/adapter", "pkg/rdmatest", xnet}), unix: true,
	},
	{
		path: "pkg/adapter", is: "an adapter inside the program's own process", never: "a second data path",
		may: []string{"internal/nic", "internal/shm", "internal/impair", "internal/capture", "pkg/verbs"}, unix: true,
		testsMay: join(edgeTests, leaves, []string{"pkg/transport", "pkg/udp4791", "internal/uapi", "internal/metrics", "internal/demo", "internal/inspect", prometheus}),
	},

	{
		path: "pkg/rdmatest", is: "adapters and network faults for a program's tests", never: "a second data path",
		may: []string{"pkg/adapter", "pkg/verbs", "internal/impair", "internal/testaddr"}, testsMay: join(edgeTests, public),
	},

	{
		path: "internal/simnet", is: "a bad network on virtual time, from a seed, for tests", never: "a real clock, a real socket",
		may: []string{"pkg/udp4791"}, testsMay: join(coreTests, leaves, []string{"pkg/transport"}), pure: true, noStd: noEdge,
	},
	{
		path: "internal/scenario", is: "a queue pair run from a text, for tests", never: "files, a clock",
		may: join(leaves, []string{"pkg/transport"}), testsMay: coreTests, pure: true, noStd: core,
	},
	{
		path: "internal/soak", is: "random worlds of the engine and the oracle over them, for tests", never: "sockets, a clock",
		may: join(leaves, []string{"pkg/transport", "internal/simnet", "internal/scenario"}), testsMay: coreTests, pure: true, noStd: core,
	},
	{
		path: "internal/tools/soak", is: "the soak as a program that the Makefile runs", never: "a world's rule",
		may: []string{"internal/soak"},
	},
	{
		path: "internal/testbrowser", is: "pages in a headless Chromium, for tests", never: "anything a test is about",
	},
	{
		path: "internal/testaddr", is: "loopback addresses that no other test uses, for tests", never: "anything a test is about",
		testsMay: edgeTests, unix: true,
	},
	{
		path: "internal/featuretest", is: "what softroce offers, as tests for any two devices", never: "an adapter",
		may: []string{"pkg/verbs"}, unix: true,
	},
	{
		path: "internal/testmatrix", is: "the cell of the matrix that a run of the tests is in, for tests", never: "anything a test is about",
		may: []string{"pkg/udp4791", "internal/testnet"},
	},
	{
		path: "internal/testdevices", is: "adapters inside a test's process, for tests", never: "anything a test is about",
		may: []string{"pkg/adapter", "pkg/verbs", "internal/testaddr", "internal/testmatrix"},
	},
	{
		path: "internal/testnet", is: "network namespaces and links that clean up after themselves, for tests", never: "anything a test is about",
		may: []string{netlink, netns}, testsMay: edgeTests, unix: true,
	},
	{path: "internal/tools/...", is: "small programs that the Makefile runs", never: "a part of softroce"},

	{
		path: "internal/pingpong", is: "rdma-core's ping-pong exchange and loop", never: "flags, sockets of the adapter",
		may: public, testsMay: edgeTests, unix: true,
	},
	{
		path: "internal/rping", is: "rdma-core's rping: pings by the connection manager", never: "flags, sockets of the adapter",
		may: public, testsMay: edgeTests, unix: true,
	},
	{
		path: "internal/nc", is: "a pipe between two hosts by pkg/rdmanet", never: "flags, files, how a connection is made",
		may: public, testsMay: edgeTests, unix: true,
	},
	{
		path: "internal/cmtime", is: "how long the steps of connecting take", never: "flags, sockets of the adapter",
		may: public, testsMay: edgeTests, unix: true,
	},
	{
		path: "internal/perf", is: "bandwidth and latency of the verbs, measured", never: "flags, sockets of the adapter",
		may: public, testsMay: edgeTests, unix: true,
	},
	{
		path: "internal/inspect", is: "what the adapter's listings and counters say, as tables, JSON and rates; what went wrong, in words", never: "flags, an adapter but through its listings",
		may: public, testsMay: []string{"pkg/transport"},
	},
	{
		path: "internal/rawudp", is: "what the kernel's UDP path carries with nothing else to do", never: "a packet's content, the adapter's sockets",
		testsMay: edgeTests, unix: true, unsafe: true,
	},
	{
		path: "internal/bench", is: "softroce beside what limits it, in one interleaved run", never: "a figure of its own making",
		may: join(public, []string{"internal/perf", "internal/testnet", "internal/rawudp", netlink, netns}), testsMay: edgeTests, unix: true,
	},
	{
		path: "cmd/softroce/...", is: "flags, signals, output", never: "logic worth a test of its own",
		may:      join(public, []string{"internal/nic", "internal/shm", "internal/impair", "internal/capture", "internal/tap", "internal/trace", "internal/metrics", "internal/demo", "internal/pingpong", "internal/rping", "internal/cmtime", "internal/nc", "internal/perf", "internal/inspect", "conformance/wire", "conformance/agent", "conformance/agent/verbsagent", "conformance/suite", "conformance/cases", "conformance/report", cobra, pflag, prometheus}),
		testsMay: edgeTests, unix: true,
	},
	{
		path: "conformance/...", is: "the wire-level suite: the second opinion", never: "transport, nic",
		may: []string{"pkg/bth"}, testsMay: []string{"internal/testaddr", "internal/testnet", netlink, netns}, unix: true,
	},
	{
		path: "conformance/wire", is: "the tester's end of the link: any packet sent, every byte seen", never: "transport, nic, what a packet means",
		may: []string{"pkg/bth", "internal/raceorder", netlink}, testsMay: []string{"internal/testaddr", "internal/testnet", netns}, unix: true,
	},
	{
		path: "conformance/agent", is: "the word between tester and target: messages, client, server", never: "transport, nic, what a request does on a target",
		may: nil,
	},
	{
		path: "conformance/agent/verbsagent", is: "the agent on pkg/verbs", never: "transport, nic, a case",
		may: join(public, []string{"conformance/agent"}), testsMay: []string{"internal/testaddr", "internal/testnet"}, unix: true,
	},
	{
		path: "conformance/suite", is: "statements, cases, the tester's end of a queue pair, the run", never: "transport, nic, a socket",
		may: []string{"pkg/bth", "conformance/wire", "conformance/agent"},
	},
	{
		path: "conformance/cases", is: "the cases, one file a section", never: "transport, nic, a socket",
		may:      []string{"pkg/bth", "conformance/wire", "conformance/agent", "conformance/suite"},
		testsMay: []string{"conformance/tiny", "conformance/agent/verbsagent", "conformance/report", "internal/rping", "pkg/adapter", "pkg/verbs", "pkg/udp4791", "internal/testaddr", "internal/testnet", netns, netlink}, unix: true,
	},
	{
		path: "conformance/tiny", is: "for tests: a small target in memory that can be broken on purpose", never: "transport, nic, a socket",
		may: []string{"pkg/bth", "conformance/wire", "conformance/agent"}, testsMay: []string{"conformance/suite"},
	},
	{
		path: "conformance/report", is: "results as a tree, JSON, JUnit and one HTML page", never: "transport, nic, a case",
		may: []string{"pkg/bth", "conformance/wire", "conformance/suite", "internal/capture", gopacket}, testsMay: []string{"internal/testbrowser"},
	},
	{
		path: "conformance/interop/...", is: "the lab against kernel rdma_rxe", never: "transport, nic",
		may:      []string{"pkg/bth", "pkg/verbs", "pkg/rdmacm", "internal/testnet", netlink, netns},
		testsMay: []string{"internal/testaddr"}, unix: true,
	},
	{
		path: "examples/...", is: "programs that show how a program is written", never: "anything that a program outside could not import",
		may: public, testsMay: edgeTests,
	},
	{
		path: "packaging", is: "tests of units, image, action, manifests, dashboard and alerts", never: "code but its tests",
		testsMay: join(edgeTests, []string{"internal/metrics", prometheus, yaml}),
	},
	{path: ".", is: "the rules of the whole repository", never: "code"},
}

// planted are files that break one rule each, and files that break none.
var planted = []struct{ name, file, src, want string }{
	{"core imports a socket", "pkg/transport/x.go", `package transport; import "net"`, "imports net: sockets belong to"},
	{"an address is a value", "pkg/bth/x.go", `package bth; import "net/netip"`, ""},
	{"engine locks", "pkg/transport/x.go", `package transport; import "sync"`, "one caller at a time"},
	{"table may use atomics", "pkg/mrtable/x.go", `package mrtable; import "sync/atomic"`, ""},
	{"engine reads the clock", "pkg/transport/x.go", `package transport; import "time"; var t = time.Now()`, "time.Now: time is an argument"},
	{"clock under another name", "pkg/cq/x.go", `package cq; import clock "time"; var t = clock.Now()`, "time.Now: time is an argument"},
	{"time as a value", "pkg/transport/x.go", `package transport; import "time"; var t time.Time`, ""},
	{"a test may read the clock", "pkg/transport/x_test.go", `package transport; import "time"; var t = time.Now()`, ""},
	{"engine rolls dice", "pkg/transport/x.go", `package transport; import "math/rand/v2"`, "a random value is an argument"},
	{"core logs", "pkg/qpstate/x.go", `package qpstate; import "log/slog"`, "logs belong to the edge"},
	{"core prints", "pkg/cq/x.go", `package cq; import "fmt"; func f() { fmt.Println() }`, "output belongs to the edge"},
	{"core starts a goroutine", "pkg/mrtable/x.go", `package mrtable; func f() { go f() }`, "starts a goroutine"},
	{"engine uses a channel", "pkg/transport/x.go", `package transport; var c chan int`, "uses a channel"},
	{"bth imports a module", "pkg/bth/x.go", `package bth; import "github.com/google/gopacket"`, "not among the modules"},
	{"the layer may", "pkg/bth/bthlayer/x.go", `package bthlayer; import "github.com/google/gopacket/layers"`, ""},
	{"unknown module", "pkg/verbs/x.go", `package verbs; import "example.com/x"`, "not among the modules"},
	{"upwards", "pkg/transport/x.go", `package transport; import "github.com/softroce/softroce/internal/nic"`, "not among what it may import"},
	{"downwards", "pkg/transport/x.go", `package transport; import "github.com/softroce/softroce/pkg/wq"`, ""},
	{"sideways, below an allowed one", "pkg/wq/x.go", `package wq; import "github.com/softroce/softroce/pkg/bth/bthlayer"`, "not among what it may import"},
	{"sockets know no headers", "pkg/udp4791/x.go", `package udp4791; import "github.com/softroce/softroce/pkg/bth"`, "a RoCE header beyond the steering filter"},
	{"unsafe", "internal/nic/x.go", `package nic; import "unsafe"`, "unsafe is kept to"},
	{"unsafe in a test", "pkg/wq/x_test.go", `package wq; import "unsafe"`, "unsafe is kept to"},
	{"unsafe where it belongs", "internal/shm/x.go", `package shm; import "unsafe"`, ""},
	{"cgo", "internal/shm/x.go", `package shm; import "C"`, "no cgo"},
	{"x/sys/unix in the core", "pkg/cq/x.go", `package cq; import "golang.org/x/sys/unix"`, "meet the kernel"},
	{"x/sys/unix in a test of the core", "pkg/cq/x_test.go", `package cq; import "golang.org/x/sys/unix"`, "meet the kernel"},
	{"x/sys/unix at the edge", "internal/nic/x.go", `package nic; import "golang.org/x/sys/unix"; var e = unix.EAGAIN`, ""},
	{"raw system call", "internal/nic/x.go", `package nic; import "golang.org/x/sys/unix"; func f() { unix.Syscall(0, 0, 0, 0) }`, "raw system calls are kept to"},
	{"raw system call of package syscall", "pkg/verbs/x.go", `package verbs; import "syscall"; func f() { syscall.RawSyscall6(0, 0, 0, 0, 0, 0, 0) }`, "raw system calls are kept to"},
	{"the suite sees the engine", "conformance/x_test.go", `package conformance; import "github.com/softroce/softroce/pkg/transport"`, "the second opinion"},
	{"the suite in a folder", "conformance/rc/x.go", `package rc; import "github.com/softroce/softroce/pkg/verbs"`, "the second opinion"},
	{"the lab's peer", "conformance/interop/peer/x.go", `package main; import "github.com/softroce/softroce/pkg/verbs"`, ""},
	{"the lab's peer and nic", "conformance/interop/peer/x.go", `package main; import "github.com/softroce/softroce/internal/nic"`, "never in it: transport, nic"},
	{"unknown package", "pkg/util/x.go", `package util`, `package "pkg/util" is not in the table`},
	{"an example reaches inside", "examples/x/x.go", `package main; import "github.com/softroce/softroce/internal/nic"`, "a program outside could not import"},
	{"a test helper outside tests", "internal/nic/x.go", `package nic; import "github.com/softroce/softroce/internal/testnet"`, "not among what it may import"},
	{"a test helper in a test", "internal/nic/x_test.go", `package nic; import "github.com/softroce/softroce/internal/testnet"`, ""},
	{"a test of its own package", "pkg/bth/x_test.go", `package bth_test; import "github.com/softroce/softroce/pkg/bth"`, ""},
}

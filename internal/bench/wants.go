package bench

import "fmt"

// The paths.
const (
	Loop     = "loopback, MTU 4096"
	Loop1024 = "loopback, MTU 1024"
	Trips    = "loopback, one at a time"
	Veth1500 = "veth, MTU 1500 (path MTU 1024)"
	Veth9000 = "veth, MTU 9000 (path MTU 4096)"
	Inside   = "inside one adapter"
	Memory   = "memory"
	Beside   = "side by side"
	Idle     = "idle"
	Outside  = "reference program"
)

// Names of floors.
const (
	RawRecvmsg  = "raw UDP GSO+GRO, recvmsg"
	RawRecvmmsg = "raw UDP GSO+GRO, recvmmsg"
	RawBatches  = "raw UDP sendmmsg, recvmmsg"
	RawSpinning = "raw UDP, spinning, " // and the size
	RawPackets  = "raw UDP GSO+GRO, recvmsg, packets of "
	RawBlocking = "raw UDP, blocking, a core each"
	RawPlaced   = "raw UDP, blocking, cores as the kernel chooses"
	TCPName     = "kernel TCP (iperf3), writes of "
	MemcpyName  = "memcpy over 64 MiB, one core"
	IdleName    = "idle adapter with 10,000 QPs"
	BesideAlone = "WRITE 8 B, alone"
	BesideBulk  = "WRITE 8 B, beside WRITE 64 KiB of other programs"
)

// Bytes that WRITE packets have around their payload: BTH and ICRC in the
// middle of a message, and a RETH where one packet is the whole message.
const (
	middleBytes = 12 + 4
	onlyBytes   = middleBytes + 16
)

// Message names an operation with its size, and what is special about it.
func Message(op string, size int, special string) string {
	return fmt.Sprintf("%s %s%s", op, SizeName(size), special)
}

// Specials of a message's name.
const (
	blocking = ", everyone blocking"
	qps16    = ", 16 QPs"
	qps1000  = ", 1000 QPs"
)

// Raw names both receivers of a path's floor.
func Raw(path string) []Ref { return []Ref{{path, RawRecvmsg}, {path, RawRecvmmsg}} }

const (
	kib64 = 64 << 10
	mib   = 1 << 20
)

// Wants are the targets, in the words of their table.
var Wants = []Want{
	want("WRITE 1 MiB, MTU 4096, loopback / raw UDP GSO+GRO of the same packets", 0.6, 0.75, Ref{Loop, Message("WRITE", mib, "")}, Raw(Loop)...),
	want("READ 1 MiB, same", 0.55, 0.65, Ref{Loop, Message("READ", mib, "")}, Raw(Loop)...),
	want("WRITE 1 MiB, MTU 1024 / raw UDP GSO+GRO at 1024", 0.65, 0.8, Ref{Loop1024, Message("WRITE", mib, "")}, Raw(Loop1024)...),
	want("WRITE 64 KiB, MTU 4096 / raw UDP GSO+GRO", 0.5, 0.6, Ref{Loop, Message("WRITE", kib64, "")}, Raw(Loop)...),
	want("WRITE 1 MiB, MTU 4096 / iperf3 TCP with 1 MiB writes", 0.8, 1.0, Ref{Loop, Message("WRITE", mib, "")}, Ref{Loop, TCPName + SizeName(mib)}),
	want("WRITE 1 MiB inside one adapter, no tap / one-core memcpy over 64 MiB", 0.4, 0.5, Ref{Inside, Message("WRITE", mib, "")}, Ref{Memory, MemcpyName}),
	want("64-byte WRITE messages per second, 16 QPs to one peer / raw `sendmmsg` packets per second", 3, 6,
		Ref{Loop, Message("WRITE", 64, qps16)}, Ref{Loop, RawBatches}),
	atMost("8-byte WRITE ping-pong, all polling, program to program / raw UDP spinning", 4, 3, Ref{Trips, Message("WRITE", 8, "")}, Ref{Trips, RawSpinning + SizeName(8)}),
	atMost("the same, everyone blocking / raw UDP blocking", 2, 1.6, Ref{Trips, Message("WRITE", 8, blocking)}, Ref{Trips, RawBlocking}),
	want("softroce / kernel rxe in the same guest: WRITE, READ, SEND at 64 KiB and 1 MiB, MTU 1024 and 4096, the lowest of the ratios", 2, 3, Ref{}),
	atMost("softroce / kernel rxe in the same guest: 2-byte WRITE latency", 6, 3, Ref{}),
	want("bandwidth with 1,000 QPs / with 1, 64 KiB messages", 0.8, 0.9, Ref{Loop, Message("WRITE", kib64, qps1000)}, Ref{Loop, Message("WRITE", kib64, "")}),
	atMost("a ping-pong's p99 beside a bulk writer on the same adapter / alone", 5, 3, Ref{Beside, BesideBulk}, Ref{Beside, BesideAlone}),
	atMost("CPU of an idle adapter with 10,000 QPs, per cent of a core", 0.1, 0.01, Ref{Idle, IdleName}),
}

func want(name string, must, goal float64, of Ref, base ...Ref) Want {
	return Want{Target: Target{Name: name, Must: must, Goal: goal}, Of: of, Base: base}
}

func atMost(name string, must, goal float64, of Ref, base ...Ref) Want {
	w := want(name, must, goal, of, base...)
	w.AtMost = true
	return w
}

// Floors are what an outside program can be held against.
var Floors = []Floor{
	{Name: "4096", Unit: GBs, Rows: Raw(Loop), Top: true},
	{Name: "1024", Unit: GBs, Rows: Raw(Loop1024), Top: true},
	{Name: "sendmmsg", Unit: Rate, Rows: []Ref{{Loop, RawBatches}}},
}

// Charts are the pictures of a run, by the name of their file.
func (t *Table) Charts() map[string]*Chart {
	bandwidth := &Chart{Title: "Bandwidth by size, loopback, MTU 4096", Unit: GBs}
	latency := &Chart{Title: "Round trip by size, loopback, everyone polling", Unit: "us", Log: true}
	for _, op := range []string{"WRITE", "READ", "SEND"} {
		bandwidth.Lines = append(bandwidth.Lines, t.LineOf(op, Loop, op+" ", GBs))
		latency.Lines = append(latency.Lines, t.LineOf(op, Trips, op+" ", Micros))
	}
	bandwidth.Lines = append(bandwidth.Lines,
		t.LineOf("raw GSO+GRO", Loop, RawPackets, GBs).Floor(t.Best(Raw(Loop)...), 4<<10, 8<<20),
		t.LineOf("TCP (iperf3)", Loop, TCPName, GBs))
	latency.Lines = append(latency.Lines, t.LineOf("raw, spinning", Trips, RawSpinning, Micros))
	return map[string]*Chart{"bandwidth.svg": bandwidth, "latency.svg": latency}
}

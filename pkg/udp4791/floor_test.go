package udp4791

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFloorCountsWhatCame(t *testing.T) {
	a, b := pair(t, "ipv4")
	r, err := Floor(a, b, FloorConfig{Packets: 5000})
	if err != nil {
		t.Fatal(err)
	}
	if r.Packets+r.Lost != 5000 || r.Packets == 0 || r.Bytes != int64(r.Packets)*4112 || r.Elapsed <= 0 {
		t.Errorf("got %+v", r)
	}
	expectNone(t, b.Endpoint(0))
	r, err = FloorPingPong(a, b, FloorConfig{Packets: 500, Size: 64})
	if err != nil {
		t.Fatal(err)
	}
	if r.Packets+r.Lost != 500 || r.Packets == 0 || r.Median <= 0 || r.P99 < r.Median {
		t.Errorf("got %+v", r)
	}
}

// The measurement ends and tells the loss, of some datagrams or all.
func TestFloorSurvivesLoss(t *testing.T) {
	const random = 1<<32 - 0x1000 + 56 // SKF_AD_OFF + SKF_AD_RANDOM
	half := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: random},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, Jf: 1, K: 1},
		{Code: bpfRetK, K: 0},
		{Code: bpfRetK, K: 1 << 20},
	}
	for name, prog := range map[string][]unix.SockFilter{"some": half, "all": dropProgram()} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, "ipv4")
			if err := attachFilter(b.Endpoint(0).FDs()[0], unix.SO_ATTACH_FILTER, prog); err != nil {
				t.Fatal(err)
			}
			r, err := Floor(a, b, FloorConfig{Packets: 200})
			if err != nil {
				t.Fatal(err)
			}
			if r.Packets+r.Lost != 200 || r.Lost == 0 || (r.Packets == 0) != (name == "all") {
				t.Errorf("got %+v", r)
			}
			r, err = FloorPingPong(a, b, FloorConfig{Packets: 20})
			if err != nil {
				t.Fatal(err)
			}
			if r.Packets+r.Lost != 20 || r.Lost == 0 {
				t.Errorf("ping-pong: got %+v", r)
			}
		})
	}
}

func TestFloorRefusesNonsense(t *testing.T) {
	a, b := pair(t, "ipv4")
	for _, c := range []FloorConfig{{Size: 7}, {Size: BufferSize + 1}, {Packets: -1}, {Window: 100}} {
		if _, err := Floor(a, b, c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
	b.Close()
	if _, err := Floor(a, b, FloorConfig{}); err == nil {
		t.Error("a closed group was taken")
	}
}

func BenchmarkFloor(b *testing.B) {
	for _, size := range []int{64 + 16, 1024 + 16, 4096 + 16} {
		b.Run(sizeName(size), func(b *testing.B) {
			x, y := pair(b, "ipv4")
			b.SetBytes(int64(size - 16))
			b.ReportAllocs()
			b.ResetTimer()
			r, err := Floor(x, y, FloorConfig{Packets: b.N, Size: size})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(r.Lost)/float64(b.N), "lost/op")
		})
	}
}

func BenchmarkFloorPingPong(b *testing.B) {
	x, y := pair(b, "ipv4")
	b.ResetTimer()
	r, err := FloorPingPong(x, y, FloorConfig{Packets: b.N, Size: 64})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(r.Median/time.Nanosecond), "median-ns")
	b.ReportMetric(float64(r.P99/time.Nanosecond), "p99-ns")
}

// BenchmarkBatches is the same stream as BenchmarkFloor through WriteBatch and
// ReadBatch on one goroutine: what this package adds is the difference to
// BenchmarkRawBatches.
func BenchmarkBatches(b *testing.B) {
	x, y := pair(b, "ipv4")
	ex, ey := x.Endpoint(0), y.Endpoint(0)
	f, _ := mustFlow(b, ex, x.Addrs()[0], 0, 0)
	slots := make([]SendSlot, 32)
	for i := range slots {
		slots[i] = SendSlot{Flow: f, Dst: y.Addrs()[0], Buf: make([]byte, 4112)}
	}
	b.SetBytes(int64(len(slots)) * 4096)
	b.ReportAllocs()
	for b.Loop() {
		mustSend(b, ex, slots...)
		for got := 0; got < len(slots); {
			in, err := ey.ReadBatch()
			if err != nil || len(in) == 0 {
				b.Fatalf("%d of %d came, %v", got, len(slots), err)
			}
			got += len(in)
		}
	}
}

// BenchmarkRawBatches does the same with the system calls alone.
func BenchmarkRawBatches(b *testing.B) {
	x, y := pair(b, "ipv4")
	_, f, err := newFloor(x, y, FloorConfig{})
	if err != nil {
		b.Fatal(err)
	}
	defer f.close()
	b.SetBytes(32 * 4096)
	b.ReportAllocs()
	for b.Loop() {
		for sent, got := 0, 0; got < 32; {
			k, err := f.send(32 - sent)
			if err != nil {
				b.Fatal(err)
			}
			sent += k
			n, err := f.receive()
			if err != nil {
				b.Fatal(err)
			}
			got += n
		}
	}
}

func sizeName(n int) string {
	switch n {
	case 64 + 16:
		return "64B"
	case 1024 + 16:
		return "1KiB"
	}
	return "4KiB"
}

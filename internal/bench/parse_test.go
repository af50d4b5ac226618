package bench

import (
	"errors"
	"testing"
)

func TestParseIperf(t *testing.T) {
	const good = `{"start":{"version":"iperf 3.12"},"end":{"sum_sent":{"bits_per_second":1},"sum_received":{"seconds":1,"bits_per_second":31096953047.7}},"x":[]}`
	if v, err := ParseIperf([]byte(good)); err != nil || v < 3.88 || v > 3.89 {
		t.Errorf("got %v %v, want 3.887 GB/s", v, err)
	}
	_, err := ParseIperf([]byte(`{"start":{},"end":{},"error":"unable to connect to server: Connection refused"}`))
	if !errors.Is(err, ErrNoServer) {
		t.Errorf("refused: got %v, want ErrNoServer", err)
	}
	for _, bad := range []string{"", "iperf3: error", "{}", `{"error":"unable to do that"}`} {
		if v, err := ParseIperf([]byte(bad)); err == nil || errors.Is(err, ErrNoServer) {
			t.Errorf("%q: got %v %v, want another error", bad, v, err)
		}
	}
}

func TestParsePerf(t *testing.T) {
	p, err := ParsePerf([]byte(`{"test":"write_bw","rows":[{"bytes":64,"bandwidth":{"peak_mib_per_sec":2,"average_mib_per_sec":1000,"mpps":1.5}}]}`))
	if err != nil || p.GBs != 1.048576 || p.Millions != 1.5 {
		t.Errorf("bandwidth: got %+v %v", p, err)
	}
	p, err = ParsePerf([]byte(`{"test":"write_lat","rows":[{"bytes":8,"latency":{"t_typical_usec":20.5,"t_99_usec":70}}]}`))
	if err != nil || p.Median != 20.5 || p.P99 != 70 {
		t.Errorf("latency: got %+v %v", p, err)
	}
	for _, bad := range []string{"", "x", "{}", `{"rows":[]}`, `{"rows":[{},{}]}`, `{"rows":[{"bytes":8}]}`} {
		if p, err := ParsePerf([]byte(bad)); err == nil {
			t.Errorf("%q: got %+v without an error", bad, p)
		}
	}
}

func TestParseReference(t *testing.T) {
	text := []byte("tx=gso rx=gro size=4096  4.425 GB/s  1080 kpps 1 GB/s\n")
	for unit, want := range map[string]float64{GBs: 4.425, Rate: 1.08} {
		if v, err := ParseReference(text, unit); err != nil || v != want {
			t.Errorf("%s: got %v %v, want %v", unit, v, err, want)
		}
		if v, err := ParseReference([]byte("4.425 MB/s"), unit); err == nil {
			t.Errorf("%s: no figure: got %v", unit, v)
		}
	}
}

func TestParseSchedstat(t *testing.T) {
	if v, err := ParseSchedstat([]byte("1796037025 12 3\n")); err != nil || v != 1796037025 {
		t.Errorf("got %v %v", v, err)
	}
	for _, bad := range []string{"", "1 2", "x 2 3"} {
		if v, err := ParseSchedstat([]byte(bad)); err == nil {
			t.Errorf("%q: got %v", bad, v)
		}
	}
}

package main

import (
	"math"
	"testing"
	"time"
)

// The tables of rdma-core's program and of softroce's.
const (
	cmtimeText = `connecting
disconnecting
step              total ms     max ms     min us  us / conn
create qp    :       50.93       5.26     121.00     254.65
connect      :      250.00     182.31   50470.00    2500.00
disconnect   :      323.98     180.82    6215.00    1619.90
`
	softroceText = `step             total ms     max ms     min us  us / conn
create qp          141.36      11.54     349.33     706.79
connect            400.00     392.41   65620.43    2229.27
disconnect         173.59     117.70   56132.02     867.95
`
)

func TestReadCmtime(t *testing.T) {
	c := config{Op: opConnect, Iters: 100}
	for text, want := range map[string]figure{
		cmtimeText:   {value: 400, claims: 250 * time.Millisecond},
		softroceText: {value: 250, claims: 400 * time.Millisecond},
	} {
		if f, err := readCmtime(text, c); err != nil || math.Abs(f.value-want.value) > 1e-6 || f.claims != want.claims {
			t.Errorf("got %+v, %v, want %+v", f, err, want)
		}
	}
	for _, text := range []string{"", "connecting\n", "connect : 0.00 1 1 1\n", "connect : x 1 1 1\n", "connect : 1\n"} {
		if f, err := readCmtime(text, c); err == nil {
			t.Errorf("%q: got %+v, want an error", text, f)
		}
	}
}

// A server that listens is waited for, one that ends before is an error.
func TestListed(t *testing.T) {
	lives, err := start(t.Context(), []string{"sleep", "100"})
	if err != nil {
		t.Fatal(err)
	}
	if err := lives.listed(t.Context(), []string{"echo", "state LISTEN"}); err != nil {
		t.Error(err)
	}
	ends, err := start(t.Context(), []string{"true"})
	if err != nil {
		t.Fatal(err)
	}
	if err := ends.listed(t.Context(), []string{"echo", "nothing"}); err == nil {
		t.Error("a server that ended: no error")
	}
}

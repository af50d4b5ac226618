package main

import (
	"encoding/json"
	"strings"
	"testing"
)

var (
	write = config{Name: "WRITE 64 KiB, MTU 1024", Op: "write", Size: 65536, MTU: 1024}
	read  = config{Name: "READ 64 KiB, MTU 1024", Op: "read", Size: 65536, MTU: 1024}
	pong  = config{Name: latencyName, Op: "write", Latency: true, Size: 2, MTU: 4096}
)

func sample() *result {
	r := &result{Date: "2026-01-02", Kernel: "6.1", CPUs: 2, Rounds: 3, CRC: []crcTime{{"hash/crc32", 3000, 3500}}}
	for _, v := range []float64{1, 9, 2} {
		r.add(write, figure{value: 3 * v}, figure{value: v})
		r.add(read, figure{value: 5 * v}, figure{value: 2 * v})
		r.add(pong, figure{value: 8 * v, mean: 20 * v}, figure{value: 2 * v, mean: 2 * v})
	}
	return r
}

// A ratio is that of the medians, and the target is about the lowest of the bandwidths.
func TestTargets(t *testing.T) {
	r := sample()
	r.judge()
	if len(r.Targets) != 2 {
		t.Fatalf("got %d targets, want 2: %+v", len(r.Targets), r.Targets)
	}
	for i, want := range []target{
		{Ratio: 2.5, Must: 2, Goal: 3, Met: true},
		{Ratio: 4, Must: 6, Goal: 3, Met: true, AtMost: true},
	} {
		got := r.Targets[i]
		got.Name = ""
		if got != want {
			t.Errorf("target %d: got %+v, want %+v", i, got, want)
		}
	}
	if r := (&result{}); strings.Contains(r.markdown(), "must") {
		t.Error("a run without rows has a target")
	}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		name  string
		t     target
		want  string
		atGet bool
	}{
		{"below the must", target{Ratio: 1.9, Must: 2, Goal: 3}, "not met", false},
		{"at the must", target{Ratio: 2, Must: 2, Goal: 3}, "must met", true},
		{"at the goal", target{Ratio: 3, Must: 2, Goal: 3}, "goal reached", true},
		{"at most, above", target{Ratio: 6.1, Must: 6, Goal: 3, AtMost: true}, "not met", false},
		{"at most, between", target{Ratio: 5, Must: 6, Goal: 3, AtMost: true}, "must met", true},
		{"at most, at the goal", target{Ratio: 3, Must: 6, Goal: 3, AtMost: true}, "goal reached", true},
	} {
		c.t.Met = c.t.reaches(c.t.Must)
		if c.t.Met != c.atGet || !strings.HasSuffix(c.t.verdict(), c.want) {
			t.Errorf("%s: got %v, %q, want %v, %q", c.name, c.t.Met, c.t.verdict(), c.atGet, c.want)
		}
	}
}

func TestMarkdown(t *testing.T) {
	r := sample()
	r.Clock, r.Retransmissions, r.RXECounters = 1, 7, map[string]int64{"sent_pkts": 5, "duplicate_request": 1}
	got := r.markdown()
	for _, want := range []string{
		"| WRITE 64 KiB, MTU 1024 | GB/s | 6 | 3..27 | 2 | 1..9 | 3.00 |\n",
		"| WRITE 2 bytes, latency | us | 16 | 8..72 | 4 | 2..18 | 4.00 |\n",
		"| WRITE 2 bytes, latency, mean | us | 40 | 20..180 | 4 | 2..18 | 10.00 |\n",
		"softroce sent 7 packets again; rxe counted: duplicate_request 1, sent_pkts 5.",
		"hash/crc32 3.00 and 3.50; the daemon's own choice",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%swant in it %q", got, want)
		}
	}
}

func TestJSON(t *testing.T) {
	data, err := sample().json()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Date    string
		Kernel  string
		Rows    []json.RawMessage
		Targets []map[string]any
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Date != "2026-01-02" || doc.Kernel != "6.1" || len(doc.Rows) != 4 || len(doc.Targets) != 2 {
		t.Errorf("got %s", data)
	}
	if _, there := doc.Targets[0]["at_most"]; there || doc.Targets[1]["at_most"] != true || doc.Targets[0]["met"] != true {
		t.Errorf("targets: got %v", doc.Targets)
	}
}

func TestReplace(t *testing.T) {
	got, err := replace("a\n"+beginMark+"old\n"+endMark+"b\n", "new\n")
	if want := "a\n" + beginMark + "new\n" + endMark + "b\n"; got != want || err != nil {
		t.Errorf("got %q %v, want %q", got, err, want)
	}
	if _, err := replace("no marks", "x"); err == nil {
		t.Error("a document without marks was accepted")
	}
}

func TestMedian(t *testing.T) {
	for want, v := range map[float64][]float64{0: nil, 3: {9, 3, 1}, 2.5: {4, 1, 2, 3}} {
		if got := median(v); got != want {
			t.Errorf("median of %v: got %v, want %v", v, got, want)
		}
	}
}

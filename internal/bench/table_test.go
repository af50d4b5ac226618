package bench

import (
	"encoding/json"
	"strings"
	"testing"
)

// sample is a run of three rounds.
func sample() *Table {
	var t Table
	for i := range 3 {
		t.Add(Row{Ref: Ref{Loop, RawRecvmsg}, Unit: GBs}, float64(2+2*i))
		t.Add(Row{Ref: Ref{Loop, RawRecvmmsg}, Unit: GBs}, float64(1+i))
		t.Add(Row{Ref: Ref{Loop, "WRITE 1 MiB"}, Unit: GBs, Size: mib, Base: Raw(Loop)}, float64(1+i))
	}
	t.Add(Row{Ref: Ref{Veth9000, "WRITE 1 MiB"}, Unit: GBs, Size: mib, Base: Raw(Veth9000)}, 9)
	return &t
}

func TestTable(t *testing.T) {
	tab := sample()
	r := tab.Find(Ref{Loop, "WRITE 1 MiB"})
	if got, ok := tab.Ratio(r, Raw(Loop)...); !ok || got != 0.5 {
		t.Errorf("ratio of medians 2 and the better of 4 and 2: got %v %v, want 0.5", got, ok)
	}
	if _, ok := tab.Ratio(r, Raw(Veth9000)...); ok {
		t.Error("a base that is not there gave a ratio")
	}
	if _, ok := tab.Ratio(nil, Raw(Loop)...); ok {
		t.Error("a row that is not there gave a ratio")
	}
	var b strings.Builder
	if _, err := tab.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"### loopback, MTU 4096\n", "| WRITE 1 MiB | GB/s | 2.00 | 1.00..3.00 | 0.50 of raw UDP GSO+GRO, recvmsg |\n",
		"### veth, MTU 9000 (path MTU 4096)\n", "| WRITE 1 MiB | GB/s | 9.00 | 9.00..9.00 |  |\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("table: got\n%swant a line %q", b.String(), want)
		}
	}
}

// Rows of one operation stand together, by size, however they were measured.
func TestTableOrder(t *testing.T) {
	var tab Table
	for _, r := range []Row{
		{Ref: Ref{Loop, "WRITE 64 KiB"}, Size: kib64}, {Ref: Ref{Loop, "READ 8 B"}, Size: 8}, {Ref: Ref{Loop, "WRITE 8 B"}, Size: 8},
	} {
		tab.Add(r, 1)
	}
	var names []string
	for _, r := range tab.of(Loop) {
		names = append(names, r.Name)
	}
	if got, want := strings.Join(names, "; "), "READ 8 B; WRITE 8 B; WRITE 64 KiB"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestRowJSON(t *testing.T) {
	b, err := json.Marshal(sample().Rows[2])
	if want := `{"path":"loopback, MTU 4096","name":"WRITE 1 MiB","unit":"GB/s","size":1048576,"median":2,"values":[1,2,3]}`; err != nil || string(b) != want {
		t.Errorf("got %s %v, want %s", b, err, want)
	}
}

func TestMedian(t *testing.T) {
	for want, v := range map[float64][]float64{0: nil, 3: {9, 3, 1}, 2.5: {4, 1, 2, 3}} {
		r := Row{Values: v}
		if got := r.Median(); got != want {
			t.Errorf("median of %v: got %v, want %v", v, got, want)
		}
	}
}

func TestFigure(t *testing.T) {
	for want, v := range map[string]float64{"1234": 1234.4, "12.3": 12.34, "1.23": 1.234, "0.123": 0.1234, "0.00012": 0.00012, "0": 0} {
		if got := figure(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
	for want, n := range map[string]int{"8 B": 8, "1000 B": 1000, "4 KiB": 4096, "1 MiB": 1 << 20, "1025 B": 1025, "1536 KiB": 1536 << 10} {
		if got := SizeName(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}

func TestReplace(t *testing.T) {
	got, err := Replace("a\n"+beginMark+"old\n"+endMark+"b\n", "new\n")
	if want := "a\n" + beginMark + "new\n" + endMark + "b\n"; got != want || err != nil {
		t.Errorf("got %q %v, want %q", got, err, want)
	}
	if _, err := Replace("no marks", "x"); err == nil {
		t.Error("a document without marks was accepted")
	}
}

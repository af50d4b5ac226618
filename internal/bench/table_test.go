package bench

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	var tab Table
	for i := range 3 {
		tab.Add(Row{Name: "floor", Path: "loopback", Unit: "GB/s"}, float64(2+2*i))
		tab.Add(Row{Name: "write", Path: "loopback", Unit: "GB/s", Base: "floor", Must: 0.5}, float64(1+i))
	}
	tab.Add(Row{Name: "write", Path: "veth", Unit: "GB/s", Base: "floor"}, 9)
	if r, ok := tab.Ratio(tab.Rows[1]); !ok || r != 0.5 {
		t.Errorf("ratio of medians 2 and 4: got %v %v, want 0.5", r, ok)
	}
	if _, ok := tab.Ratio(tab.Rows[2]); ok {
		t.Error("a row without a base on its path has a ratio")
	}
	var b strings.Builder
	if _, err := tab.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if want := "| loopback | write | GB/s | 2 | 1..3 | 0.50 of floor | 0.50 |\n"; !strings.Contains(b.String(), want) {
		t.Errorf("table: got\n%swant a line %q", b.String(), want)
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

func TestReplace(t *testing.T) {
	got, err := Replace("a\n"+beginMark+"old\n"+endMark+"b\n", "new\n")
	if want := "a\n" + beginMark + "new\n" + endMark + "b\n"; got != want || err != nil {
		t.Errorf("got %q %v, want %q", got, err, want)
	}
	if _, err := Replace("no marks", "x"); err == nil {
		t.Error("a document without marks was accepted")
	}
}

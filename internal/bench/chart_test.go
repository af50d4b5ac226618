package bench

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

// elements reads a whole document and counts its elements.
func elements(t *testing.T, svg string) map[string]int {
	t.Helper()
	n := map[string]int{}
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			t.Fatalf("not well-formed: %v\n%s", err, svg)
		}
		if e, ok := tok.(xml.StartElement); ok {
			n[e.Name.Local]++
		}
	}
}

func TestSVG(t *testing.T) {
	c := Chart{Title: "a < b & c", Unit: GBs, Lines: []Line{
		{Name: `"x"`, Points: []Point{{8, 0.001}, {64, 0.5}, {8 << 20, 5}}}, {Name: "y", Points: []Point{{64, 2}}}, {Name: "empty"},
	}}
	for _, c.Log = range []bool{false, true} {
		n := elements(t, c.SVG())
		if n["svg"] != 1 || n["polyline"] != 3 || n["circle"] != 4 || n["style"] != 1 {
			t.Errorf("log %v: got %v, want a line each and a circle for each of 4 points", c.Log, n)
		}
		if got := n["line"]; got < 11 || got > 24 {
			t.Errorf("log %v: got %d grid lines", c.Log, got)
		}
	}
	if n := elements(t, (&Chart{}).SVG()); n["polyline"] != 0 {
		t.Errorf("nothing measured: got %v", n)
	}
}

// Figures lie where the axes say.
func TestAxis(t *testing.T) {
	x := axis{lo: 8, hi: 512, log: true, a: 100, b: 700}
	y := axis{lo: 0, hi: 4, a: 300, b: 100}
	for _, c := range []struct {
		axis    axis
		v, want float64
	}{{x, 8, 100}, {x, 64, 400}, {x, 512, 700}, {y, 0, 300}, {y, 1, 250}, {y, 4, 100}, {axis{lo: 8, hi: 8, log: true, a: 5, b: 9}, 8, 5}} {
		if got := c.axis.at(c.v); got != c.want {
			t.Errorf("%v on %+v: got %v, want %v", c.v, c.axis, got, c.want)
		}
	}
}

// A line takes the plain rows of its operation, and no others.
func TestCharts(t *testing.T) {
	var tab Table
	for _, r := range []Row{
		{Ref: Ref{Loop, Message("WRITE", kib64, qps16)}, Unit: GBs, Size: kib64},
		{Ref: Ref{Loop, Message("WRITE", kib64, "")}, Unit: GBs, Size: kib64},
		{Ref: Ref{Loop, Message("WRITE", 8, "")}, Unit: GBs, Size: 8},
		{Ref: Ref{Veth9000, Message("WRITE", 64, "")}, Unit: GBs, Size: 64},
		{Ref: Ref{Loop, RawPackets + SizeName(512)}, Unit: GBs, Size: 512},
		{Ref: Ref{Loop, RawRecvmmsg}, Unit: GBs},
		{Ref: Ref{Trips, RawSpinning + SizeName(8)}, Unit: Micros, Size: 8},
	} {
		tab.Add(r, 3)
	}
	c := tab.Charts()
	b, l := c["bandwidth.svg"], c["latency.svg"]
	if b == nil || l == nil {
		t.Fatalf("got %v", c)
	}
	for i, want := range []int{2, 0, 0, 3, 0} {
		if got := len(b.Lines[i].Points); got != want {
			t.Errorf("bandwidth, %s: got %d points, want %d", b.Lines[i].Name, got, want)
		}
	}
	if p := b.Lines[0].Points; p[0].Size != 8 || p[1].Size != kib64 {
		t.Errorf("points are not in the order of size: %v", p)
	}
	if got := len(l.Lines[3].Points); got != 1 {
		t.Errorf("latency, %s: got %d points, want 1", l.Lines[3].Name, got)
	}
}

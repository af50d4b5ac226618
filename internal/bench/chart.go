package bench

import (
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strings"
)

// A Chart is lines over message sizes.
type Chart struct {
	Title string
	Unit  string // of the vertical axis
	Log   bool   // vertical axis logarithmic
	Lines []Line
}

// A Line is one thing at several sizes.
type Line struct {
	Name   string
	Points []Point
}

// A Point is a figure at a size in bytes.
type Point struct {
	Size  int
	Value float64
}

// LineOf makes a line of the rows of a path and unit whose names are the given
// text and their size.
func (t *Table) LineOf(name, path, begin, unit string) Line {
	l := Line{Name: name}
	for _, r := range t.Rows {
		if r.Path == path && r.Unit == unit && r.Name == begin+SizeName(r.Size) && r.Median() > 0 {
			l.Points = append(l.Points, Point{r.Size, r.Median()})
		}
	}
	slices.SortFunc(l.Points, func(a, b Point) int { return a.Size - b.Size })
	return l
}

// Floor adds a row's figure from a size on: what holds for a packet holds for a
// train of them.
func (l Line) Floor(r *Row, from, to int) Line {
	if r != nil {
		l.Points = append(slices.Clip(l.Points), Point{from, r.Median()}, Point{to, r.Median()})
	}
	return l
}

// The picture's measures, in pixels.
const (
	chartWidth, chartHeight = 760, 420
	plotLeft, plotRight     = 64, 600
	plotTop, plotBottom     = 44, 364
)

// colours are of the lines, in turn; they are told apart in light and dark.
var colours = []string{"#2f7ed8", "#d9662a", "#2e9e5b", "#a35bc7", "#c9a227", "#6b7a8f", "#d1447c"}

// chartStyle has a background of its own, so that the picture is readable on
// any page.
const chartStyle = `<style>
.bg{fill:#ffffff;stroke:#d0d7de}.ink{fill:#24292f}.grid{stroke:#d8dee4}
text{font:12px sans-serif}.title{font:bold 14px sans-serif}
@media (prefers-color-scheme:dark){.bg{fill:#0d1117;stroke:#30363d}.ink{fill:#e6edf3}.grid{stroke:#30363d}}
</style>
`

// axis maps figures to pixels.
type axis struct {
	lo, hi float64
	log    bool
	a, b   float64 // pixels of lo and hi
}

func (x axis) at(v float64) float64 {
	lo, hi := x.lo, x.hi
	if x.log {
		v, lo, hi = math.Log2(v), math.Log2(lo), math.Log2(hi)
	}
	if hi == lo {
		return x.a
	}
	return x.a + (v-lo)/(hi-lo)*(x.b-x.a)
}

// SVG draws the chart.
func (c *Chart) SVG() string {
	x, y := c.axes()
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">`+"\n",
		chartWidth, chartHeight, chartWidth, chartHeight)
	fmt.Fprintf(&b, "<title>%s</title>\n%s", escape(c.Title), chartStyle)
	fmt.Fprintf(&b, `<rect class="bg" x="0.5" y="0.5" width="%d" height="%d" rx="6"/>`+"\n", chartWidth-1, chartHeight-1)
	label(&b, "title", "start", plotLeft, 26, c.Title)
	for v := x.lo; v <= x.hi; v *= 8 {
		p := x.at(v)
		grid(&b, p, plotTop, p, plotBottom)
		label(&b, "", "middle", p, plotBottom+18, SizeName(int(v)))
	}
	for _, v := range y.ticks() {
		p := y.at(v)
		grid(&b, plotLeft, p, plotRight, p)
		label(&b, "", "end", plotLeft-6, p+4, fmt.Sprintf("%.4g", v))
	}
	label(&b, "", "middle", (plotLeft+plotRight)/2, plotBottom+40, "bytes of a message")
	label(&b, "", "start", 8, 40, c.Unit)
	for i, l := range c.Lines {
		l.draw(&b, colours[i%len(colours)], plotTop+14+20*float64(i), x, y)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// axes span what the lines have.
func (c *Chart) axes() (x, y axis) {
	x = axis{lo: math.Inf(1), log: true, a: plotLeft, b: plotRight}
	y = axis{lo: math.Inf(1), log: c.Log, a: plotBottom, b: plotTop}
	for _, l := range c.Lines {
		for _, p := range l.Points {
			x.lo, x.hi = min(x.lo, float64(p.Size)), max(x.hi, float64(p.Size))
			y.lo, y.hi = min(y.lo, p.Value), max(y.hi, p.Value)
		}
	}
	if x.hi == 0 {
		x.lo, x.hi, y.lo, y.hi = 8, 8<<20, 1, 2
	}
	if c.Log {
		y.lo, y.hi = math.Exp2(math.Floor(math.Log2(y.lo))), math.Exp2(math.Ceil(math.Log2(y.hi)))
	} else {
		y.lo, y.hi = 0, y.hi*1.05
	}
	return x, y
}

// ticks are round figures along the axis.
func (x axis) ticks() (v []float64) {
	if x.log {
		step := 2.0
		for math.Log2(x.hi/x.lo)/math.Log2(step) > 10 {
			step *= 2
		}
		for t := x.lo; t <= x.hi; t *= step {
			v = append(v, t)
		}
		return v
	}
	step := math.Pow(10, math.Floor(math.Log10(x.hi)))
	for x.hi/step < 5 {
		step /= 2
	}
	for i := 0; float64(i)*step <= x.hi; i++ {
		v = append(v, float64(i)*step)
	}
	return v
}

// draw draws a line and its entry in the key at height ky.
func (l Line) draw(b *strings.Builder, colour string, ky float64, x, y axis) {
	var points []string
	for _, p := range l.Points {
		points = append(points, fmt.Sprintf("%.1f,%.1f", x.at(float64(p.Size)), y.at(p.Value)))
	}
	fmt.Fprintf(b, `<polyline fill="none" stroke="%s" stroke-width="2" points="%s"/>`+"\n", colour, strings.Join(points, " "))
	for _, p := range l.Points {
		fmt.Fprintf(b, `<circle fill="%s" cx="%.1f" cy="%.1f" r="3"><title>%s, %s: %s</title></circle>`+"\n",
			colour, x.at(float64(p.Size)), y.at(p.Value), escape(l.Name), SizeName(p.Size), figure(p.Value))
	}
	fmt.Fprintf(b, `<rect fill="%s" x="%d" y="%.1f" width="12" height="12"/>`+"\n", colour, plotRight+14, ky-10)
	label(b, "", "start", plotRight+32, ky, l.Name)
}

func grid(b *strings.Builder, x1, y1, x2, y2 float64) {
	fmt.Fprintf(b, `<line class="grid" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", x1, y1, x2, y2)
}

func label(b *strings.Builder, class, anchor string, x, y float64, text string) {
	class = strings.TrimSpace("ink " + class)
	fmt.Fprintf(b, `<text class="%s" text-anchor="%s" x="%.1f" y="%.1f">%s</text>`+"\n", class, anchor, x, y, escape(text))
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a strings.Builder takes everything
	return b.String()
}

package report

import (
	"bytes"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/softroce/softroce/conformance/suite"
)

// pageRuns are three targets; the last was run with a part of the suite only.
func pageRuns(t *testing.T) []*Run {
	t.Helper()
	part := fakeRun("kernel rdma_rxe 6.1", nil)
	cases := part.Cases
	part.Cases, part.Counts = nil, Counts{}
	for _, c := range cases {
		if !strings.HasPrefix(c.ID, "ROB-") {
			part.Add(c)
		}
	}
	return []*Run{
		fakeRun("softroce", nil),
		fakeRun("softroce daemon over UDP", exceptions(t, "FRM-13 fragments are the kernel's to put together\nPSN-02 x\nSND-20 the socket hides it\nUD-07 y\n")),
		part,
	}
}

func pageText(t *testing.T, runs []*Run) string {
	t.Helper()
	var b bytes.Buffer
	if err := WritePage(&b, runs); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The page is whole by itself, and shows what a target says as text.
func TestPage(t *testing.T) {
	runs := pageRuns(t)
	runs[0].Target.Agent = `<script>alert("x")</script>`
	text := pageText(t, runs)
	if strings.Contains(text, "<script>alert") {
		t.Error("a target's word is markup")
	}
	if found := regexp.MustCompile(`https?://|(?:src|href)="[^#d]|url\(|@import`).FindString(text); found != "" {
		t.Errorf("the page reaches out: %q", found)
	}
	if n, want := strings.Count(text, `<td role="cell" class="cell">`), 3*309; n != want {
		t.Errorf("cells: got %d, want %d", n, want)
	}
	if n, want := strings.Count(text, "<article "), 3*309-14; n != want {
		t.Errorf("ladders: got %d, want %d", n, want)
	}
	links := regexp.MustCompile(`href="#([^"]+)" title`).FindAllStringSubmatch(text, -1)
	if len(links) != 3*309-14 {
		t.Errorf("links: got %d", len(links))
	}
	for _, l := range links {
		if !strings.Contains(text, `<article id="`+l[1]+`"`) {
			t.Fatalf("%s leads nowhere", l[1])
		}
	}
	if one := pageText(t, runs[:1]); strings.Contains(one, "targets differ") {
		t.Error("one target cannot differ")
	}
}

// counted is a question that the test asks the page.
type counted struct {
	Cells, Links, Rows, Shown int
	Text                      string
	Open                      []string
	Focus, Hash               string
	Overflow                  bool
}

const count = `(() => {
	const all = (s) => [...document.querySelectorAll(s)];
	const seen = (e) => e.checkVisibility();
	return {
		cells: all("#matrix td.cell").length, links: all("#matrix td.cell a").length,
		rows: all("#matrix tr.case").length, shown: all("#matrix tr.case").filter(seen).length,
		text: document.getElementById("shown").value,
		open: all("article").filter(seen).map((e) => e.innerText),
		focus: document.activeElement.id || document.activeElement.getAttribute("href") || "", hash: location.hash,
		overflow: document.documentElement.scrollWidth > innerWidth,
	};
})()`

func (b *browser) count() (c counted) {
	b.t.Helper()
	b.eval(count, &c)
	return c
}

// fill puts a value into an element of the filter as a person does.
func (b *browser) fill(id, value string) {
	b.t.Helper()
	b.eval(fmt.Sprintf(`(() => { const e = document.getElementById(%q); e.value = %q; e.dispatchEvent(new Event("input", {bubbles: true})); })()`, id, value), nil)
}

func TestPageInBrowser(t *testing.T) {
	b := startBrowser(t)
	file := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(file, []byte(pageText(t, pageRuns(t))), 0o600); err != nil {
		t.Fatal(err)
	}
	var brightness [2]float64
	for i, scheme := range []string{"light", "dark"} {
		for _, width := range []int{1280, 400} {
			b.open("file://"+file, scheme, width, 900)
			name := fmt.Sprintf("%s-%d", scheme, width)
			brightness[i] = looksAlive(t, name, b.screenshot())
			c := b.count()
			if c.Cells != 3*309 || c.Links != 3*309-14 || c.Rows != 309 || c.Shown != 309 || c.Text != "309 statements" || len(c.Open) != 0 {
				t.Errorf("%s: %+v", name, c)
			}
			if c.Overflow {
				t.Errorf("%s: the page is wider than the screen", name)
			}
			clickThrough(t, b, name)
			if len(b.complaints) > 0 {
				t.Errorf("%s: console: %q", name, b.complaints)
			}
			if len(b.requests) != 1 || b.requests[0] != "file://"+file {
				t.Errorf("%s: requests: %q", name, b.requests)
			}
		}
	}
	if brightness[0] < 0.6 || brightness[1] > 0.4 {
		t.Errorf("brightness: light %.2f, dark %.2f", brightness[0], brightness[1])
	}
}

// clickThrough uses the page with mouse and keyboard.
func clickThrough(t *testing.T, b *browser, name string) {
	t.Helper()
	const cell = "RDR-05.2"
	ladderShown := func(when, id string) {
		t.Helper()
		c := b.count()
		title, _, _ := strings.Cut(id, ".")
		if len(c.Open) != 1 || !strings.Contains(c.Open[0], title) || !strings.Contains(c.Open[0], "READ Response Last PSN") || c.Hash != "#"+id {
			t.Errorf("%s, %s: %+v", name, when, c)
		}
	}
	b.click(`a[href="#` + cell + `"]`)
	ladderShown("after a click", cell)
	looksAlive(t, name+"-ladder", b.screenshot())
	b.key("ArrowDown")
	ladderShown("after an arrow", "RDR-06.2")
	b.key("ArrowLeft")
	ladderShown("after another arrow", "RDR-06.1")
	b.key("Escape")
	if c := b.count(); len(c.Open) != 0 || c.Hash != "" || c.Focus != "#RDR-06.1" {
		t.Errorf("%s, after Escape: %+v", name, c)
	}
	b.key("Enter")
	ladderShown("after Enter", "RDR-06.1")
	b.click("article.open .close")
	if c := b.count(); len(c.Open) != 0 {
		t.Errorf("%s, after close: %+v", name, c)
	}
	looksAlive(t, name+"-rows", b.screenshot())
	for _, f := range []struct {
		id, value, want string
		shown           int
	}{
		{"section", "PSN", "21 of 309 statements", 21},
		{"text", "psn-0", "9 of 309 statements", 9},
		{"text", "no such thing", "0 of 309 statements", 0},
		{"text", "", "21 of 309 statements", 21},
		{"section", "", "309 statements", 309},
	} {
		b.fill(f.id, f.value)
		if c := b.count(); c.Text != f.want || c.Shown != f.shown {
			t.Errorf("%s, %s %q: %q, %d rows", name, f.id, f.value, c.Text, c.Shown)
		}
	}
	b.click(`[name=level][value=must]`)
	musts := 0
	for _, s := range suite.Statements() {
		if s.Level == suite.Must {
			musts++
		}
	}
	if c := b.count(); c.Shown != 309-musts {
		t.Errorf("%s, without musts: %d rows, want %d", name, c.Shown, 309-musts)
	}
	b.fill("result", "differ")
	if c := b.count(); c.Shown == 0 || c.Shown >= 309-musts {
		t.Errorf("%s, those that differ: %d rows", name, c.Shown)
	}
}

// looksAlive fails on a picture of one colour, and gives its mean brightness, 0 to 1. With SOFTROCE_SCREENSHOTS set to a
// directory the picture is kept there.
func looksAlive(t *testing.T, name string, data []byte) float64 {
	t.Helper()
	if dir := os.Getenv("SOFTROCE_SCREENSHOTS"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name+".png"), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	colours, sum := map[[3]uint32]int{}, 0.0
	const step = 3 // of the pixels in a row or column every third
	box, area := img.Bounds(), 0
	for y := box.Min.Y; y < box.Max.Y; y += step {
		for x := box.Min.X; x < box.Max.X; x += step {
			area++
			r, g, b, _ := img.At(x, y).RGBA()
			colours[[3]uint32{r >> 8, g >> 8, b >> 8}]++
			sum += float64(r+g+b) / (3 * 0xffff)
		}
	}
	most := 0
	for _, n := range colours {
		most = max(most, n)
	}
	if area == 0 || len(colours) < 40 || most > area*97/100 {
		t.Errorf("%s: the screen is blank: %d colours, the commonest on %d of %d pixels", name, len(colours), most, area)
	}
	return sum / float64(area)
}

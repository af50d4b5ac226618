package report

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/internal/testbrowser"
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

// browser is a browser that shows the page.
type browser struct{ *testbrowser.Browser }

func (b browser) count() (c counted) {
	b.Eval(count, &c)
	return c
}

// fill puts a value into an element of the filter as a person does.
func (b browser) fill(id, value string) {
	b.Eval(fmt.Sprintf(`(() => { const e = document.getElementById(%q); e.value = %q; e.dispatchEvent(new Event("input", {bubbles: true})); })()`, id, value), nil)
}

func TestPageInBrowser(t *testing.T) {
	b := browser{testbrowser.Start(t)}
	file := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(file, []byte(pageText(t, pageRuns(t))), 0o600); err != nil {
		t.Fatal(err)
	}
	var brightness [2]float64
	for i, scheme := range []string{"light", "dark"} {
		for _, width := range []int{1280, 400} {
			b.Open("file://"+file, scheme, width, 900)
			name := fmt.Sprintf("%s-%d", scheme, width)
			brightness[i] = testbrowser.LooksAlive(t, name, b.Screenshot())
			c := b.count()
			if c.Cells != 3*309 || c.Links != 3*309-14 || c.Rows != 309 || c.Shown != 309 || c.Text != "309 statements" || len(c.Open) != 0 {
				t.Errorf("%s: %+v", name, c)
			}
			if c.Overflow {
				t.Errorf("%s: the page is wider than the screen", name)
			}
			clickThrough(t, b, name)
			if len(b.Complaints) > 0 {
				t.Errorf("%s: console: %q", name, b.Complaints)
			}
			if len(b.Requests) != 1 || b.Requests[0] != "file://"+file {
				t.Errorf("%s: requests: %q", name, b.Requests)
			}
		}
	}
	if brightness[0] < 0.6 || brightness[1] > 0.4 {
		t.Errorf("brightness: light %.2f, dark %.2f", brightness[0], brightness[1])
	}
}

// clickThrough uses the page with mouse and keyboard.
func clickThrough(t *testing.T, b browser, name string) {
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
	b.Click(`a[href="#` + cell + `"]`)
	ladderShown("after a click", cell)
	testbrowser.LooksAlive(t, name+"-ladder", b.Screenshot())
	b.Key("ArrowDown")
	ladderShown("after an arrow", "RDR-06.2")
	b.Key("ArrowLeft")
	ladderShown("after another arrow", "RDR-06.1")
	b.Key("Escape")
	if c := b.count(); len(c.Open) != 0 || c.Hash != "" || c.Focus != "#RDR-06.1" {
		t.Errorf("%s, after Escape: %+v", name, c)
	}
	b.Key("Enter")
	ladderShown("after Enter", "RDR-06.1")
	b.Click("article.open .close")
	if c := b.count(); len(c.Open) != 0 {
		t.Errorf("%s, after close: %+v", name, c)
	}
	testbrowser.LooksAlive(t, name+"-rows", b.Screenshot())
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
	b.Click(`[name=level][value=must]`)
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

package trace

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softroce/softroce/internal/testbrowser"
	"github.com/softroce/softroce/pkg/bth"
)

// seenPage is what the page shows.
type seenPage struct {
	Ready    string
	Cards    int
	Marks    map[string]int // shapes in the plot, by kind
	Rows     int
	Current  string // label of the chosen packet
	Fields   []string
	Events   int
	Where    string
	Overflow bool
	Focus    string
}

const seePage = `(() => {
	const all = (s) => [...document.querySelectorAll(s)];
	const marks = {};
	for (const p of all("#plot path[class^=p-]")) marks[p.getAttribute("class")] = p.getAttribute("d").split(/[MH]/).length - 1;
	for (const p of all("#plot rect.p-stall")) marks["p-stall"] = (marks["p-stall"] || 0) + 1;
	const row = document.querySelector("#ladder .row[aria-current=true] .label");
	return {
		Ready: document.body.dataset.ready || "", Cards: all(".card").length, Marks: marks, Rows: all("#ladder .row").length,
		Current: row ? row.textContent : "", Fields: all("#fields dt").map((e) => e.textContent + "=" + e.nextSibling.textContent),
		Events: all(".event").length, Where: document.getElementById("where").textContent,
		Overflow: document.documentElement.scrollWidth > innerWidth, Focus: document.activeElement.className + document.activeElement.id,
	};
})()`

func look(b *testbrowser.Browser) (s seenPage) {
	b.Eval(seePage, &s)
	return s
}

// pageFile writes the page of a trace, and waits until the browser shows it.
func pageFile(t *testing.T, tr *Trace) string {
	t.Helper()
	var page bytes.Buffer
	if err := tr.HTML(&page); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "trace.html")
	if err := os.WriteFile(file, page.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func show(b *testbrowser.Browser, file, scheme string, width int) {
	b.Open("file://"+file, scheme, width, 900)
	// A script that fails says so on the console, and is never ready.
	b.Eval(`new Promise((ok, no) => { let n = 0; const w = () => document.body.dataset.ready ? ok(1) : n++ > 4000 ? no(Error("the page is not ready")) : setTimeout(w, 5); w(); })`, nil)
}

// The page of a transfer of softroce that lost packets, and that of kernel rxe's.
func TestPageInBrowser(t *testing.T) {
	b := testbrowser.Start(t)
	for _, c := range []struct {
		name, file string
		cards      int
		marks      []string
	}{
		{"softroce", "testdata/softroce_lossy.pcapng", 2, []string{"p-sent", "p-again", "p-ack", "p-lost", "p-nak", "p-stall"}},
		{"rxe", "../../pkg/bth/testdata/captures/rc_loss_write.pcap", 1, []string{"p-sent", "p-again", "p-ack", "p-lost", "p-nak", "p-stall"}},
		{"rxe-rnr", "../../pkg/bth/testdata/captures/rc_rnr.pcap", 1, []string{"p-sent", "p-again", "p-ack", "p-rnr", "p-stall"}},
		{"rxe-read", "../../pkg/bth/testdata/captures/rc_loss_read.pcap", 1, []string{"p-sent", "p-again", "p-data", "p-gap"}},
	} {
		file := pageFile(t, readFile(t, c.file))
		var bright [2]float64
		for i, scheme := range []string{"light", "dark"} {
			for _, width := range []int{1280, 400} {
				name := fmt.Sprintf("%s-%s-%d", c.name, scheme, width)
				show(b, file, scheme, width)
				bright[i] = testbrowser.LooksAlive(t, name+"-top", b.Screenshot())
				s := look(b)
				if s.Cards != c.cards || s.Rows == 0 || s.Events == 0 || s.Overflow || s.Current != "" {
					t.Errorf("%s: %+v", name, s)
				}
				for _, m := range c.marks {
					if s.Marks[m] == 0 {
						t.Errorf("%s: no %s in the plot: %v", name, m, s.Marks)
					}
				}
				usePage(t, b, name)
				if len(b.Complaints) > 0 {
					t.Errorf("%s: console: %q", name, b.Complaints)
				}
				for _, r := range b.Requests {
					if r != "file://"+file && !strings.HasPrefix(r, "blob:") {
						t.Errorf("%s: the page asked for %s", name, r)
					}
				}
			}
		}
		if bright[0] < 0.6 || bright[1] > 0.4 {
			t.Errorf("%s: brightness: light %.2f, dark %.2f", c.name, bright[0], bright[1])
		}
	}
}

// usePage uses the page with mouse and keyboard.
func usePage(t *testing.T, b *testbrowser.Browser, name string) {
	t.Helper()
	b.Click("#ladder .row")
	s := look(b)
	has := func(what string) bool {
		for _, f := range s.Fields {
			if strings.HasPrefix(f, what) {
				return true
			}
		}
		return false
	}
	for _, f := range []string{"src=1", "ttl=", "srcport=", "destqp=0x", "psn=0x", "pkey=0xffff", "icrc="} {
		if !has(f) {
			t.Errorf("%s: a click on %q shows no %s: %q", name, s.Current, f, s.Fields)
		}
	}
	var seen bool
	b.Eval(`(() => { const r = document.querySelector("#fields dl").getBoundingClientRect(); return r.height > 0 && r.top < innerHeight && r.bottom > 0; })()`, &seen)
	if !seen {
		t.Errorf("%s: the headers are not on the screen", name)
	}
	first := s.Current
	b.Key("ArrowDown")
	if s = look(b); s.Current == first || !strings.HasPrefix(s.Focus, "row") {
		t.Errorf("%s: down from %q leads to %q, focus on %q", name, first, s.Current, s.Focus)
	}
	testbrowser.LooksAlive(t, name+"-row", b.Screenshot())
	b.Click("#trouble-next")
	if s = look(b); s.Current == "" {
		t.Errorf("%s: no next trouble", name)
	}
	b.Eval(`document.getElementById("plot").focus()`, nil)
	whole := look(b).Marks
	b.Key("+")
	b.Key("+")
	if s = look(b); fmt.Sprint(s.Marks) == fmt.Sprint(whole) {
		t.Errorf("%s: + does not zoom: %v", name, s.Marks)
	}
	b.Key("0")
	if s = look(b); fmt.Sprint(s.Marks) != fmt.Sprint(whole) {
		t.Errorf("%s: 0 does not show all: %v, want %v", name, s.Marks, whole)
	}
	b.Eval(`document.getElementById("plot").scrollIntoView({block: "start"})`, nil)
	testbrowser.LooksAlive(t, name+"-plot", b.Screenshot())
}

// A hundred thousand packets: the page stays small in the browser.
func TestBigPageInBrowser(t *testing.T) {
	b := testbrowser.Start(t)
	const n = 100_000
	tr, err := Read(bytes.NewReader(longTape(t, n)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.Packets) != n {
		t.Fatalf("%d packets, want %d", len(tr.Packets), n)
	}
	show(b, pageFile(t, tr), "light", 1280)
	testbrowser.LooksAlive(t, "big-top", b.Screenshot())
	var nodes int
	b.Eval(`document.querySelectorAll("*").length`, &nodes)
	if s := look(b); nodes > 6000 || s.Rows != 80 || s.Marks["p-sent"] == 0 || s.Marks["p-sent"] > 20_000 {
		t.Errorf("%d elements; %+v", nodes, s)
	}
	b.Click("#trouble-next")
	b.Click("#later")
	if s := look(b); s.Rows != 80 || len(b.Complaints) > 0 {
		t.Errorf("%+v, console %q", s, b.Complaints)
	}
	b.Eval(`document.getElementById("plot").scrollIntoView({block: "start"})`, nil)
	testbrowser.LooksAlive(t, "big-plot", b.Screenshot())
}

// What a file's comments say is text on the page, however it is written.
func TestPageRunsNothingOfTheFile(t *testing.T) {
	b := testbrowser.Start(t)
	x := newTape(t)
	for i, evil := range []string{
		`<img src=x onerror="document.title='got in'">`, `</script><script>document.title="got in"</script>`,
		`"'><svg onload="document.title='got in'">`, `</style></div></option><iframe srcdoc="<script>parent.document.title='got in'</script>">`,
	} {
		x.put(0, bth.RCSendOnly, 0x11, bth.PSN(i), "dropped: "+evil+", qp 0x000022, wr 7 "+evil, make([]byte, 64)...)
	}
	show(b, pageFile(t, x.read()), "light", 1280)
	b.Click("#trouble-next")
	var seen struct {
		Title    string
		Foreign  int
		Scripts  int
		Comments bool
	}
	b.Eval(`({
		Title: document.title, Foreign: document.querySelectorAll("img, iframe, svg[onload]").length, Scripts: document.scripts.length,
		Comments: document.body.textContent.includes("<img src=x onerror"),
	})`, &seen)
	if strings.Contains(seen.Title, "got in") || seen.Foreign != 0 || seen.Scripts != 1 || !seen.Comments {
		t.Errorf("the page: %+v", seen)
	}
}

// Package testbrowser opens pages in a headless Chromium, for tests: it shows them in
// a width and a colour scheme, presses keys and the mouse, runs scripts, takes
// screenshots, and notes what the console said and what was asked of the network. It
// refuses to be more than a test needs, and is no part of softroce.
package testbrowser

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// browserTimeout ends a test whose browser hangs; nothing is measured by it.
const browserTimeout = 5 * time.Minute

// Browser is a headless Chromium, driven over a pipe by the DevTools protocol.
type Browser struct {
	t       *testing.T
	to      io.Writer
	replies chan message
	session string
	next    atomic.Int64
	// Requests are the addresses that the page asked for, Complaints what its console said.
	Requests, Complaints []string
	loaded               bool
}

type message struct {
	ID     int64           `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
	Session string `json:"sessionId,omitempty"`
}

// find names a Chromium; the test is skipped where there is none.
func find(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chromium-headless-shell"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("needs a headless Chromium (Debian: chromium)")
	return ""
}

// Start starts one that ends with the test, which is skipped where there is none.
func Start(t *testing.T) *Browser {
	t.Helper()
	args := []string{
		"--headless", "--remote-debugging-pipe", "--user-data-dir=" + t.TempDir(), "--no-first-run", "--disable-gpu",
		"--disable-dev-shm-usage", "--hide-scrollbars", "--disable-background-networking", "--disable-component-update",
		"--disable-sync", "--disable-extensions", "--host-resolver-rules=MAP * ~NOTFOUND",
	}
	if os.Geteuid() == 0 {
		args = append(args, "--no-sandbox") // it refuses to run as root otherwise; the page is ours
	}
	cmd := exec.Command(find(t), args...)
	toRead, toWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fromRead, fromWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{toRead, fromWrite} // descriptors 3 and 4
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = toRead.Close(), fromWrite.Close()
	b := &Browser{t: t, to: toWrite, replies: make(chan message, 100)}
	go b.read(fromRead)
	stuck := time.AfterFunc(browserTimeout, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() {
		_, _ = io.WriteString(toWrite, `{"id":1000000,"method":"Browser.close"}`+"\x00")
		_ = toWrite.Close()
		_ = cmd.Wait() // its status says nothing about the page
		if !stuck.Stop() {
			t.Error("the browser hung")
		}
		_ = fromRead.Close()
	})
	return b
}

// read hands over what the browser says, messages that end on a zero byte.
func (b *Browser) read(r io.Reader) {
	defer close(b.replies)
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(line[:len(line)-1], &m) == nil {
			b.replies <- m
		}
	}
}

// call asks the browser and gives its answer.
func (b *Browser) call(method string, params any) json.RawMessage {
	b.t.Helper()
	raw, err := json.Marshal(params)
	if err != nil {
		b.t.Fatal(err)
	}
	id := b.next.Add(1)
	line, err := json.Marshal(message{ID: id, Method: method, Params: raw, Session: b.session})
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.to.Write(append(line, 0)); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	for m := range b.replies {
		if m.ID != id {
			b.event(m)
			continue
		}
		if m.Error != nil {
			b.t.Fatalf("%s: %s", method, m.Error.Message)
		}
		return m.Result
	}
	b.t.Fatalf("%s: the browser is gone", method)
	return nil
}

// event notes what the page did.
func (b *Browser) event(m message) {
	switch m.Method {
	case "Network.requestWillBeSent":
		var p struct{ Request struct{ URL string } }
		_ = json.Unmarshal(m.Params, &p)
		if !strings.HasPrefix(p.Request.URL, "data:") {
			b.Requests = append(b.Requests, p.Request.URL)
		}
	case "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded":
		b.Complaints = append(b.Complaints, m.Method+" "+string(m.Params))
	case "Page.loadEventFired":
		b.loaded = true
	}
}

// Open shows a page in a tab of its own, of the given width and colour scheme.
func (b *Browser) Open(url, scheme string, width, height int) {
	b.t.Helper()
	b.session = ""
	var target struct{ TargetID string }
	b.into(&target, b.call("Target.createTarget", map[string]any{"url": "about:blank"}))
	var attached struct{ SessionID string }
	b.into(&attached, b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}))
	b.session, b.loaded, b.Requests, b.Complaints = attached.SessionID, false, nil, nil
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		b.call(domain+".enable", struct{}{})
	}
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": scheme}}})
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
	b.call("Page.navigate", map[string]any{"url": url})
	for !b.loaded {
		m, ok := <-b.replies
		if !ok {
			b.t.Fatal("the browser is gone")
		}
		b.event(m)
	}
}

func (b *Browser) into(v any, raw json.RawMessage) {
	b.t.Helper()
	if err := json.Unmarshal(raw, v); err != nil {
		b.t.Fatal(err)
	}
}

// Eval runs a script in the page and puts its value into v.
func (b *Browser) Eval(script string, v any) {
	b.t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct{ Exception struct{ Description string } }
	}
	b.into(&r, b.call("Runtime.evaluate", map[string]any{"expression": script, "returnByValue": true, "awaitPromise": true}))
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", script, r.ExceptionDetails.Exception.Description)
	}
	if v != nil {
		b.into(v, r.Result.Value)
	}
}

// Key presses and releases a key of the page that has the focus.
func (b *Browser) Key(name string) {
	b.t.Helper()
	for _, kind := range []string{"keyDown", "keyUp"} {
		p := map[string]any{"type": kind, "key": name, "code": name}
		if name == "Enter" {
			p["text"], p["windowsVirtualKeyCode"] = "\r", 13
		}
		b.call("Input.dispatchKeyEvent", p)
	}
}

// Click presses the mouse in the middle of the element.
func (b *Browser) Click(selector string) {
	b.t.Helper()
	var at struct{ X, Y float64 }
	b.Eval(fmt.Sprintf(`(() => { const e = document.querySelector(%q); e.scrollIntoView({block: "center"});
		const r = e.getBoundingClientRect(); return {x: r.x + r.width / 2, y: r.y + r.height / 2}; })()`, selector), &at)
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		b.call("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": at.X, "y": at.Y, "button": "left", "clickCount": 1})
	}
}

// Screenshot gives a PNG of what is on the screen.
func (b *Browser) Screenshot() []byte {
	b.t.Helper()
	var r struct{ Data []byte }
	b.into(&r, b.call("Page.captureScreenshot", map[string]any{"format": "png"}))
	if len(r.Data) == 0 {
		b.t.Fatal(errors.New("an empty screenshot"))
	}
	return r.Data
}

// LooksAlive fails on a picture of one colour, and gives its mean brightness, 0 to 1. With SOFTROCE_SCREENSHOTS set to a
// directory the picture is kept there.
func LooksAlive(t *testing.T, name string, data []byte) float64 {
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

package trace

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"slices"
)

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

//go:embed page.js
var pageJS string

var pageTemplate = template.Must(template.New("page").Parse(pageHTML))

// Our own choice of what the page lists; the rest is chosen by name.
const (
	pageConns  = 100
	pageEvents = 1000 // of a connection
)

// pageData is what the page holds as text, readable without a script.
type pageData struct {
	CSS      template.CSS
	JS       template.JS
	Title    string
	Summary  string
	Warnings []string
	Cards    []card
	More     int
	Conns    []string
	Data     string // the packets: JSON, gzip, base64
}

// card is a connection in the list.
type card struct {
	Index    int
	Name     string
	Ends     [2]string
	Summary  string
	Mark     string
	Findings []pageFinding
	weight   Weight
}

type pageFinding struct {
	Mark, Text string
	Packet     int // -1: none
}

// HTML writes the page. It refers to nothing outside of itself.
func (t *Trace) HTML(w io.Writer) error {
	data, err := t.packed()
	if err != nil {
		return err
	}
	d := pageData{
		CSS: template.CSS(pageCSS), JS: template.JS(pageJS), Warnings: t.Warnings, Data: data, Title: "softroce trace",
		Summary: fmt.Sprintf("%s of %s in %s", plural(len(t.Packets), "packet", "packets"), plural(len(t.Conns), "connection", "connections"), short(t.Length)),
	}
	if !t.Start.IsZero() {
		d.Summary += ", from " + t.Start.UTC().Format("2006-01-02 15:04:05.000000 MST")
	}
	for i, c := range t.Conns {
		d.Cards = append(d.Cards, newCard(i, c))
		d.Conns = append(d.Conns, c.String())
	}
	slices.SortStableFunc(d.Cards, func(a, b card) int { return int(b.weight - a.weight) })
	if len(d.Cards) > pageConns {
		d.More = len(d.Cards) - pageConns
		d.Cards = d.Cards[:pageConns]
	}
	return pageTemplate.Execute(w, d)
}

func newCard(i int, c *Conn) card {
	k := card{
		Index: i, Name: c.Service.String(), Ends: [2]string{c.Ends[0].String(), c.Ends[1].String()},
		Summary: fmt.Sprintf("%s in %s", plural(len(c.packets), "packet", "packets"), short(c.Last-c.First)),
	}
	if c.MTU > 0 {
		k.Summary += fmt.Sprintf(", path MTU %d", c.MTU)
	}
	for _, f := range c.Findings() {
		k.weight = max(k.weight, f.Weight)
		p := -1
		if f.Event >= 0 {
			p = c.Events[f.Event].Packet
		}
		k.Findings = append(k.Findings, pageFinding{mark(f.Weight), f.Text, p})
	}
	k.Mark = mark(k.weight)
	return k
}

func mark(w Weight) string { return [...]string{"fine", "cost", "fail"}[w] }

// packets are all packets, a column a field, as the script has them. Texts that
// occur often are numbers of Texts.
type packets struct {
	T       []int64  `json:"t"` // ns behind the packet before
	Conn    []int    `json:"c"`
	Flags   []Flags  `json:"f"`
	Pos     []int64  `json:"p"`
	Num     []int    `json:"n"`
	Label   []string `json:"l"`
	What    []int    `json:"w"`
	Note    []int    `json:"o"`
	Headers []string `json:"h"`
	Texts   []string `json:"texts"`
	Conns   []pageConn
}

type pageConn struct {
	A, B    string
	Service string
	Dirs    [2]pageDir
	Events  []pageEvent
	More    int // events that are left out
}

type pageDir struct {
	Summary string
	Sent    int
	Size    int64
}

type pageEvent struct {
	Kind   Kind
	Packet int
	Text   string
}

// packed makes the script's data.
func (t *Trace) packed() (string, error) {
	d := packets{Texts: []string{""}}
	number := map[string]int{"": 0}
	text := func(s string) int {
		n, ok := number[s]
		if !ok {
			n = len(d.Texts)
			number[s] = n
			d.Texts = append(d.Texts, s)
		}
		return n
	}
	before := int64(0)
	for i := range t.Packets {
		p := &t.Packets[i]
		d.T = append(d.T, int64(p.At)-before)
		before = int64(p.At)
		d.Conn, d.Flags, d.Pos, d.Num = append(d.Conn, p.Conn), append(d.Flags, p.Flags), append(d.Pos, p.Pos), append(d.Num, p.Number)
		d.Label, d.Headers = append(d.Label, p.label()), append(d.Headers, p.Headers)
		d.What, d.Note = append(d.What, text(p.What)), append(d.Note, text(p.notes()))
	}
	for _, c := range t.Conns {
		pc := pageConn{A: c.Ends[0].String(), B: c.Ends[1].String(), Service: c.Service.String()}
		for k := range c.Dirs {
			if dir := &c.Dirs[k]; dir.Sent > 0 || dir.Answers > 0 {
				pc.Dirs[k] = pageDir{dir.summary(), dir.Sent + dir.Answers, dir.MostPos}
			}
		}
		for n, e := range c.Events {
			if n == pageEvents {
				pc.More = len(c.Events) - n
				break
			}
			pc.Events = append(pc.Events, pageEvent{e.Kind, e.Packet, e.Text})
		}
		d.Conns = append(d.Conns, pc)
	}
	var b bytes.Buffer
	enc := base64.NewEncoder(base64.StdEncoding, &b)
	z := gzip.NewWriter(enc)
	if err := json.NewEncoder(z).Encode(&d); err != nil {
		return "", err
	}
	if err := z.Close(); err != nil {
		return "", err
	}
	if err := enc.Close(); err != nil {
		return "", err
	}
	return b.String(), nil
}

// notes are what an adapter's comments say, and what is wrong with the packet.
func (p *Packet) notes() string {
	s := string(p.Note.Append(nil))
	if p.Got != nil {
		if s != "" {
			s += "; "
		}
		s += "at its receiver: " + string(p.Got.Append(nil))
	}
	if p.Bad != "" {
		if s != "" {
			s += "; "
		}
		s += p.Bad
	}
	return s
}

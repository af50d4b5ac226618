package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// Top is the queue pairs of an adapter with what each did since the look before,
// sorted. Its methods are for one goroutine.
type Top struct {
	Filter Filter
	Sort   string // a name of TopSorts; empty: bytes
	Busy   bool   // leave out queue pairs that did nothing
	Every  time.Duration

	adapter string
	now     time.Time
	last    map[qpName]verbs.Resource
	rows    []topRow
	skip    int // rows scrolled over
	all     int
}

// topRow is a queue pair and what a second brought.
type topRow struct {
	r     verbs.Resource
	known bool // there was a look before
	per   [numRates]float64
}

// Rates of a queue pair.
const (
	sentBytes = iota
	rcvdBytes
	sentMsgs
	rcvdMsgs
	sentPkts
	rcvdPkts
	resent
	rnrWaits
	rnrShare // of the time, that the peer asked to wait
	timeouts
	naks
	numRates
)

// rateOfQP are the counters behind the rates.
var rateOfQP = [numRates]func(*verbs.Resource) uint64{
	sentBytes: func(r *verbs.Resource) uint64 { return r.SentBytes },
	rcvdBytes: func(r *verbs.Resource) uint64 { return r.RcvdBytes },
	sentMsgs:  func(r *verbs.Resource) uint64 { return r.SentMsgs },
	rcvdMsgs:  func(r *verbs.Resource) uint64 { return r.RcvdMsgs },
	sentPkts:  func(r *verbs.Resource) uint64 { return r.SentPkts },
	rcvdPkts:  func(r *verbs.Resource) uint64 { return r.RcvdPkts },
	resent:    func(r *verbs.Resource) uint64 { return r.Resent },
	rnrWaits:  func(r *verbs.Resource) uint64 { return r.RNRWaits + r.SentRNRs },
	rnrShare:  func(r *verbs.Resource) uint64 { return r.RNRWaitNS },
	timeouts:  func(r *verbs.Resource) uint64 { return r.Timeouts },
	naks:      func(r *verbs.Resource) uint64 { return r.SeqNAKs + r.SentNAKs },
}

// A TopSort is an order of queue pairs: the most first, but for numbers and words.
type TopSort struct {
	Name string
	Key  byte // on the terminal
	less func(x, y *topRow) int
}

// most orders by a sum of rates.
func most(rates ...int) func(x, y *topRow) int {
	sum := func(t *topRow) (v float64) {
		for _, i := range rates {
			v += t.per[i]
		}
		return v
	}
	return func(x, y *topRow) int { return cmp.Compare(sum(y), sum(x)) }
}

// TopSorts are the orders.
var TopSorts = []TopSort{
	{"bytes", 'b', most(sentBytes, rcvdBytes)},
	{"messages", 'm', most(sentMsgs, rcvdMsgs)},
	{"packets", 'p', most(sentPkts, rcvdPkts)},
	{"resent", 'r', most(resent)},
	{"waits", 'w', func(x, y *topRow) int {
		return cmp.Or(most(rnrShare)(x, y), most(rnrWaits)(x, y), cmp.Compare(y.r.SendQueued, x.r.SendQueued))
	}},
	{"timeouts", 't', most(timeouts)},
	{"errors", 'e', func(x, y *topRow) int { return cmp.Or(cmp.Compare(y.r.Faults, x.r.Faults), most(naks)(x, y)) }},
	{"state", 's', func(x, y *topRow) int { return cmp.Compare(x.r.State, y.r.State) }},
	{"pid", 'u', func(x, y *topRow) int { return cmp.Compare(x.r.PID, y.r.PID) }},
	{"qpn", 'n', func(*topRow, *topRow) int { return 0 }},
}

// TopSortNames are the names of the orders.
func TopSortNames() (names []string) {
	for _, s := range TopSorts {
		names = append(names, s.Name)
	}
	return names
}

// order is the order in force.
func (t *Top) order() *TopSort {
	for i := range TopSorts {
		if TopSorts[i].Name == t.Sort {
			return &TopSorts[i]
		}
	}
	return &TopSorts[0]
}

// Look takes the queue pairs as they are now.
func (t *Top) Look(src Source, now time.Time) error {
	list, err := t.Filter.list(src, verbs.ResourceQP)
	if err != nil {
		return err
	}
	t.adapter, t.all, t.rows = src.Name(), len(list), t.rows[:0]
	seen := make(map[qpName]verbs.Resource, len(list))
	for i := range list {
		name := qpName{list[i].Program, list[i].Number}
		row := topRow{r: list[i]}
		old, known := t.last[name]
		if known {
			row.rate(&old, now.Sub(t.now))
		}
		seen[name] = list[i]
		t.rows = append(t.rows, row)
	}
	t.last, t.now = seen, now
	t.arrange()
	return nil
}

// rate fills in what a second brought since old.
func (w *topRow) rate(old *verbs.Resource, elapsed time.Duration) {
	w.known = true
	for i, count := range rateOfQP {
		r := rateOf(count(old), count(&w.r), elapsed)
		w.per[i] = r.perSecond
		w.known = w.known && r.ok
	}
	w.per[rnrShare] /= float64(time.Second) / 100
}

// arrange sorts the rows.
func (t *Top) arrange() {
	o := t.order()
	slices.SortStableFunc(t.rows, func(x, y topRow) int {
		return cmp.Or(o.less(&x, &y), cmp.Compare(x.r.Number, y.r.Number), cmp.Compare(x.r.Program, y.r.Program))
	})
}

// shown are the rows that are not left out.
func (t *Top) shown() []topRow {
	if !t.Busy {
		return t.rows
	}
	out := make([]topRow, 0, len(t.rows))
	for _, r := range t.rows {
		if r.per != [numRates]float64{} || r.r.SendQueued > 0 || r.r.Faults > 0 {
			out = append(out, r)
		}
	}
	return out
}

// topColumn is one column; those with the highest drop go first when the terminal
// is narrow.
type topColumn struct {
	title, key string
	right      bool
	drop       int
	cell       func(*topRow) cell
}

func rateColumn(title, key string, drop, i int, show func(float64) string) topColumn {
	return topColumn{title, key, true, drop, func(w *topRow) cell {
		if !w.known {
			return cell{nil, "-"}
		}
		return cell{w.per[i], show(w.per[i])}
	}}
}

func factColumn(title, key string, right bool, drop int, f func(*verbs.Resource) (any, string)) topColumn {
	return topColumn{title, key, right, drop, func(w *topRow) cell {
		v, s := f(&w.r)
		if s == "" {
			return cell{nil, "-"}
		}
		return cell{v, s}
	}}
}

var topColumns = []topColumn{
	factColumn("LQPN", "lqpn", false, 0, func(r *verbs.Resource) (any, string) { return r.Number, fmt.Sprintf("0x%06x", r.Number) }),
	factColumn("TYPE", "type", false, 6, func(r *verbs.Resource) (any, string) { return r.Type, r.Type }),
	factColumn("STATE", "state", false, 1, func(r *verbs.Resource) (any, string) { return r.State, r.State }),
	factColumn("PEER", "peer_gid", false, 3, func(r *verbs.Resource) (any, string) {
		if r.Peer == "" {
			return nil, ""
		}
		return r.Peer, address(r.Peer)
	}),
	factColumn("RQPN", "rqpn", false, 9, func(r *verbs.Resource) (any, string) {
		if r.Peer == "" {
			return nil, ""
		}
		return r.PeerQPN, fmt.Sprintf("0x%06x", r.PeerQPN)
	}),
	rateColumn("TX-B/S", "sent_bytes_per_second", 0, sentBytes, scaled),
	rateColumn("RX-B/S", "rcvd_bytes_per_second", 0, rcvdBytes, scaled),
	rateColumn("TX-MSG/S", "sent_msgs_per_second", 2, sentMsgs, scaled),
	rateColumn("RX-MSG/S", "rcvd_msgs_per_second", 2, rcvdMsgs, scaled),
	rateColumn("TX-PKT/S", "sent_pkts_per_second", 8, sentPkts, scaled),
	rateColumn("RX-PKT/S", "rcvd_pkts_per_second", 8, rcvdPkts, scaled),
	rateColumn("RESENT/S", "resent_pkts_per_second", 1, resent, scaled),
	rateColumn("RNR/S", "rnr_waits_per_second", 4, rnrWaits, scaled),
	rateColumn("RNR%", "rnr_wait_percent", 7, rnrShare, func(v float64) string { return fmt.Sprintf("%.0f", v) }),
	rateColumn("TMO/S", "timeouts_per_second", 4, timeouts, scaled),
	rateColumn("NAK/S", "seq_naks_per_second", 7, naks, scaled),
	factColumn("WAIT", "sends_waiting", true, 5, func(r *verbs.Resource) (any, string) { return r.SendQueued, fmt.Sprint(r.SendQueued) }),
	factColumn("ERR", "errors", true, 2, func(r *verbs.Resource) (any, string) { return r.Faults, fmt.Sprint(r.Faults) }),
	factColumn("LAST-ERR", "last_error", false, 10, func(r *verbs.Resource) (any, string) { return r.LastFault, r.LastFault }),
	factColumn("PID", "pid", true, 5, func(r *verbs.Resource) (any, string) {
		if r.PID == 0 {
			return nil, ""
		}
		return r.PID, fmt.Sprint(r.PID)
	}),
	factColumn("COMM", "comm", false, 9, func(r *verbs.Resource) (any, string) { return r.Name, clean(r.Name) }),
}

// scaled shows a rate in three digits and a letter.
func scaled(v float64) string {
	for _, unit := range []string{"", "k", "M", "G"} {
		switch {
		case v == 0:
			return "0"
		case v < 10:
			return fmt.Sprintf("%.1f%s", v, unit)
		case v < 999.5:
			return fmt.Sprintf("%.0f%s", v, unit)
		}
		v /= 1000
	}
	return fmt.Sprintf("%.1fT", v)
}

// table is the rows with the columns that fit a width; 0: all.
func (t *Top) table(rows []topRow, width int) *Table {
	highest := 0
	for _, c := range topColumns {
		highest = max(highest, c.drop)
	}
	for ; ; highest-- {
		out := &Table{}
		for _, c := range topColumns {
			if c.drop <= highest {
				out.Titles, out.keys, out.right = append(out.Titles, c.title), append(out.keys, c.key), append(out.right, c.right)
			}
		}
		for i := range rows {
			var row []cell
			for _, c := range topColumns {
				if c.drop <= highest {
					row = append(row, c.cell(&rows[i]))
				}
			}
			out.rows = append(out.rows, row)
		}
		if width == 0 || highest == 0 || widest(out.Lines()) <= width {
			return out
		}
	}
}

func widest(lines []string) (n int) {
	for _, l := range lines {
		n = max(n, len([]rune(l)))
	}
	return n
}

// View is all rows and columns, once.
func (t *Top) View() View { return &named{*t.table(t.shown(), 0), "top"} }

// header says what is shown, in two lines of so many characters.
func (t *Top) header(columns int) []string {
	var sum [numRates]float64
	for i := range t.rows {
		for k, v := range t.rows[i].per {
			sum[k] += v
		}
	}
	which := ""
	if t.Busy {
		which = ", idle ones hidden"
	}
	return []string{
		fmt.Sprintf("%s  %s  %s%s  by %s, every %v", clean(t.adapter), t.now.Format(time.TimeOnly), Count(uint64(t.all), "queue pair"), which, t.order().Name, t.Every),
		totals(&sum, columns),
	}
}

// totals are the rates of all together: what went again, waited and failed is there in any case, the rest as there is room.
func totals(sum *[numRates]float64, columns int) string {
	rate := func(k int, unit string) string { return " " + scaled(sum[k]) + unit }
	trouble := "   resent" + rate(resent, "/s") + "   rnr" + rate(rnrWaits, "/s") + "   timeouts" + rate(timeouts, "/s")
	tx, rx := "tx"+rate(sentBytes, "B/s"), "   rx"+rate(rcvdBytes, "B/s")
	txMsgs, rxMsgs := rate(sentMsgs, " msg/s"), rate(rcvdMsgs, " msg/s")
	return firstFit(columns,
		tx+txMsgs+rate(sentPkts, " pkt/s")+rx+rxMsgs+rate(rcvdPkts, " pkt/s")+trouble,
		tx+txMsgs+rx+rxMsgs+trouble,
		tx+rx+trouble)
}

// firstFit is the first of the lines that has room, or the last.
func firstFit(columns int, lines ...string) string {
	for _, l := range lines {
		if len([]rune(l)) <= columns {
			return l
		}
	}
	return lines[len(lines)-1]
}

// keysLine names the keys behind more, which says what is not shown; where there is no room, those of orders without their names.
func keysLine(more string, columns int) string {
	var names, letters strings.Builder
	for _, s := range TopSorts {
		fmt.Fprintf(&names, " %c %s", s.Key, s.Name)
		fmt.Fprintf(&letters, " %c", s.Key)
	}
	keys := more + "q quit  +/- interval  i idle  j/k scroll  sort:"
	return firstFit(columns, keys+names.String(), keys+letters.String(), more+"q quit")
}

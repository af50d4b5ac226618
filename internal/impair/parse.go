package impair

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

// ParseError is a line that is no rule.
type ParseError struct {
	Line int // from 1
	Err  error
}

// Error names the line and says what is allowed.
func (e *ParseError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap is the reason.
func (e *ParseError) Unwrap() error { return e.Err }

// Parse reads rules, one a line; a # and what follows it is a comment. Error:
// *ParseError.
func Parse(text string) ([]Rule, error) {
	var rules []Rule
	size := 0
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		if strings.TrimSpace(line) == "" {
			continue
		}
		r, err := ParseRule(line)
		if err == nil && len(rules) == MaxRules {
			err = errTooMany(MaxRules + 1)
		}
		if size += len(r.String()); err == nil && size > MaxText {
			err = errTooLong(size)
		}
		if err != nil {
			return nil, &ParseError{i + 1, err}
		}
		rules = append(rules, r)
	}
	return rules, nil
}

func errTooMany(n int) error { return fmt.Errorf("%d rules, at most %d", n, MaxRules) }

func errTooLong(n int) error { return fmt.Errorf("rules of %d bytes, at most %d", n, MaxText) }

// ParseRule reads one rule.
func ParseRule(line string) (Rule, error) {
	p := parser{words: strings.Fields(line)}
	for _, list := range p.words {
		for w := range strings.SplitSeq(list, ",") {
			if len(w) > maxWord {
				return Rule{}, fmt.Errorf("a word of %d bytes is none of a rule: %q and so on", len(w), w[:maxWord/4])
			}
		}
	}
	if err := p.rule(); err != nil {
		return Rule{}, err
	}
	return p.r, p.r.Validate()
}

// parser reads the words of a rule one after the other.
type parser struct {
	words []string
	r     Rule
	said  map[string]bool
}

// next is the next word, "" at the end.
func (p *parser) next() string {
	if len(p.words) == 0 {
		return ""
	}
	w := p.words[0]
	p.words = p.words[1:]
	return w
}

func (p *parser) rule() error {
	word := p.next()
	for a := range NumActions {
		if strings.EqualFold(word, a.String()) {
			p.r.Action = a
			if err := p.action(); err != nil {
				return fmt.Errorf("%v: %w", a, err)
			}
			return p.rest()
		}
	}
	return fmt.Errorf("unknown rule %q: a rule begins with one of %s", word, strings.Join(actionNames[:], ", "))
}

// action reads what belongs to the action, and must stand behind it.
func (p *parser) action() (err error) {
	switch p.r.Action {
	case Delay:
		p.r.Delay, p.r.DelayMax, err = parseTimes(p.next())
	case Duplicate:
		p.r.Copies, err = p.optional("copies", MaxCopies)
	case Reorder:
		p.r.Places, err = p.optional("places", MaxPlaces)
	case Rate:
		p.r.BitsPerSecond, err = parseRate(p.next())
	case Partition:
		p.r.Peer, err = parsePeer(p.next())
	case Corrupt:
		p.r.Change, err = p.change()
	case Drop, Count, NumActions:
	}
	return err
}

// optional reads a number that may be left out.
func (p *parser) optional(what string, most int) (int, error) {
	if len(p.words) == 0 || p.words[0][0] != '-' && (p.words[0][0] < '0' || p.words[0][0] > '9') || strings.HasSuffix(p.words[0], "%") ||
		strings.HasPrefix(strings.ToLower(p.words[0]), "0x") {
		return 0, nil
	}
	n, err := strconv.Atoi(p.next())
	if err != nil || n < 1 || n > most {
		return 0, fmt.Errorf("%s must be a number from 1 to %d", what, most)
	}
	return n, nil
}

// change reads "bit N" or "byte N", and "sealed".
func (p *parser) change() (c Change, err error) {
	if len(p.words) > 0 {
		switch strings.ToLower(p.words[0]) {
		case "bit":
			c.Unit = Bit
		case "byte":
			c.Unit = Byte
		}
	}
	if c.Unit != AnyBit {
		word := p.next()
		if c.At, err = strconv.Atoi(p.next()); err != nil {
			return c, fmt.Errorf("%s wants a place: a number from the BTH's first, or a negative one from the packet's end", word)
		}
	}
	if len(p.words) > 0 && strings.EqualFold(p.words[0], "sealed") {
		p.next()
		c.Sealed = true
	}
	return c, nil
}

// rest reads which packets the rule is about.
func (p *parser) rest() error {
	p.said = make(map[string]bool)
	for len(p.words) > 0 {
		word := p.next()
		kind, err := p.word(word)
		if err != nil {
			return err
		}
		if kind != "" && p.said[kind] {
			return fmt.Errorf("%s: %s was said before", word, kind)
		}
		p.said[kind] = true
	}
	return nil
}

// matchWords are the words that say which packets, for an error's text.
const matchWords = "sent, received, to ADDRESS, from ADDRESS, peer ADDRESS, qp N, local-qp N, remote-qp N, psn N or N..N, nth N or N..N, first N, every N, N%, seed N, in TIME, for TIME, or an opcode"

// word reads one word and its value, and returns what kind it is of where a rule
// has one of them.
func (p *parser) word(word string) (kind string, err error) {
	r := &p.r
	lower := strings.ToLower(word)
	switch lower {
	case "sent":
		return "", p.direction(Sent)
	case "received":
		return "", p.direction(Received)
	case "to", "from", "peer":
		return "the peer", p.peer(lower)
	case "qp":
		r.QP, err = parseQP(p.next())
	case "local-qp":
		r.LocalQP, err = parseQP(p.next())
	case "remote-qp":
		r.RemoteQP, err = parseQP(p.next())
	case "psn":
		r.ByPSN = true
		r.PSN, err = parseRange(p.next(), 0, uint64(bth.PSNMask))
	case "nth":
		r.Nth, err = parseRange(p.next(), 1, 1<<62)
		lower = "the number"
	case "first":
		if p.isNumber() { // else it is a place in a message
			r.Nth.From = 1
			r.Nth.To, err = parseNumber(p.next(), 1, 1<<62)
			lower = "the number"
			break
		}
		return "the opcode", p.opcodes(word)
	case "every":
		r.Every, err = parseNumber(p.next(), 1, 1<<62)
	case "seed":
		r.Seed, err = parseNumber(p.next(), 0, 1<<64-1)
	case "in":
		r.In, err = parseTime(p.next())
	case "for":
		r.For, err = parseTime(p.next())
	default:
		if strings.HasSuffix(word, "%") {
			r.Percent, err = parsePercent(word)
			return "the percentage", err
		}
		return "the opcode", p.opcodes(word)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", word, err)
	}
	return lower, err
}

func (p *parser) isNumber() bool {
	return len(p.words) > 0 && strings.IndexByte("-0123456789", p.words[0][0]) >= 0 && !strings.HasSuffix(p.words[0], "%")
}

func (p *parser) opcodes(word string) error {
	p.r.Ops = strings.Split(strings.ToUpper(word), ",")
	if _, err := compile(p.r.Ops); err != nil {
		return fmt.Errorf("%w; or one of %s", err, matchWords)
	}
	return nil
}

// peer reads an address that is a packet's destination (to), origin (from) or
// either.
func (p *parser) peer(word string) (err error) {
	r := &p.r
	if r.Action == Partition {
		return errors.New("partition: the peer was said before")
	}
	if r.Peer, err = parsePeer(p.next()); err != nil {
		return fmt.Errorf("%s: %w", word, err)
	}
	switch word {
	case "to":
		return p.direction(Sent)
	case "from":
		return p.direction(Received)
	}
	return nil
}

// direction takes a direction, which may be said by more than one word.
func (p *parser) direction(d Direction) error {
	if p.r.Dir != Both && p.r.Dir != d {
		return errors.New("a packet cannot be both sent and received: leave the direction out for either")
	}
	p.r.Dir = d
	return nil
}

func parsePeer(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	if p, err := netip.ParsePrefix(s); err == nil && !p.Addr().Is4In6() {
		return p.Masked(), nil
	}
	return netip.Prefix{}, fmt.Errorf("%q is no address: one as 192.0.2.1 or 2001:db8::1, or several as 192.0.2.0/24", s)
}

func parseQP(s string) (bth.QPN, error) {
	n, err := strconv.ParseUint(s, 0, 32)
	if err != nil || n == 0 || n > uint64(bth.QPNMask) {
		return 0, fmt.Errorf("%q is no queue pair number: 1 to %#x, as 17 or 0x11", s, uint32(bth.QPNMask))
	}
	return bth.QPN(n), nil
}

func parseNumber(s string, least, most uint64) (uint64, error) {
	n, err := strconv.ParseUint(s, 0, 64)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%q is no number from %d to %d", s, least, most)
	}
	return n, nil
}

// parseRange reads N, N..M, or N.. where the numbers have no end.
func parseRange(s string, least, most uint64) (r Range, err error) {
	from, to, many := strings.Cut(s, "..")
	if r.From, err = parseNumber(from, least, most); err != nil {
		return r, err
	}
	switch {
	case !many:
		r.To = r.From
	case to == "" && least > 0:
		r.To = 0
	default:
		if r.To, err = parseNumber(to, least, most); err == nil && least > 0 && r.To < r.From {
			err = fmt.Errorf("%q ends before it begins", s)
		}
	}
	return r, err
}

func parsePercent(s string) (float64, error) {
	v, err := strconv.ParseFloat(strings.TrimSuffix(s, "%"), 64)
	if err != nil || !(v > 0 && v <= 100) { // written so that NaN is refused
		return 0, fmt.Errorf("%q is no percentage: more than 0%% and at most 100%%", s)
	}
	return v, nil
}

func parseTime(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is no time: one as 200us, 5ms or 1.5s", s)
	case d < 0:
		return 0, fmt.Errorf("%q: a time must not be negative", s)
	case d == 0 || d > MaxTime:
		return 0, fmt.Errorf("%q: a time must be above 0 and at most %v", s, MaxTime)
	}
	return d, nil
}

// parseTimes reads D, or D..D for a time between the two.
func parseTimes(s string) (from, to time.Duration, err error) {
	a, b, many := strings.Cut(s, "..")
	if from, err = parseTime(a); err != nil || !many {
		return from, 0, err
	}
	if to, err = parseTime(b); err == nil && to <= from {
		err = fmt.Errorf("%q ends before it begins", s)
	}
	return from, to, err
}

// units are those of a rate.
var units = []struct {
	name string
	bits uint64
}{{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}}

func parseRate(s string) (uint64, error) {
	for _, u := range units {
		number, ok := strings.CutSuffix(strings.ToLower(s), u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil || n > maxRate/u.bits || n*u.bits < minRate {
			break
		}
		return n * u.bits, nil
	}
	return 0, fmt.Errorf("%q is no rate from 1kbit to 1000gbit: bits a second, as 500kbit, 10mbit or 1gbit", s)
}

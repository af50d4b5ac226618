package scenario

import (
	"fmt"
	"strconv"
	"strings"
)

// words are a command's arguments: key=value, or a flag without a value. Each is
// used up by the command that knows it; one that is left is an error.
type words struct {
	value map[string]string
	used  map[string]bool
	err   error
}

func parseWords(fields []string) *words {
	w := &words{value: make(map[string]string), used: make(map[string]bool)}
	for _, f := range fields {
		k, v, _ := strings.Cut(f, "=")
		if _, twice := w.value[k]; twice {
			w.fail(fmt.Errorf("%q twice", k))
		}
		w.value[k] = v
	}
	return w
}

func (w *words) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

// flag says whether a word is there.
func (w *words) flag(k string) bool {
	w.used[k] = true
	_, ok := w.value[k]
	return ok
}

// text is a word's value, or what stands for it.
func (w *words) text(k, without string) string {
	if !w.flag(k) {
		return without
	}
	return w.value[k]
}

// num is a word's number, or what stands for it.
func (w *words) num(k string, without uint64) uint64 {
	if !w.flag(k) {
		return without
	}
	n, err := strconv.ParseUint(w.value[k], 0, 64)
	if err != nil {
		w.fail(fmt.Errorf("%s: %w", k, err))
	}
	return n
}

// small is num for a value of 8 bits.
func (w *words) small(k string, without uint8) uint8 {
	n := w.num(k, uint64(without))
	if n > 255 {
		w.fail(fmt.Errorf("%s=%d: more than 255", k, n))
	}
	return uint8(n)
}

// done says what is wrong with the words: a value, or a word that nobody asked
// for.
func (w *words) done() error {
	if w.err != nil {
		return w.err
	}
	for k := range w.value {
		if !w.used[k] {
			return fmt.Errorf("word %q is not known here", k)
		}
	}
	return nil
}

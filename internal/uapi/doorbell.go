package uapi

import (
	"fmt"
	"math/bits"
	"sync/atomic"
)

// A worker's block of the doorbell segment: three levels of bits, so that a
// worker finds the few queue pairs that have work among many. The program sets
// them from the bottom up, the adapter takes them from the top down.
//
//	  0 any      u32            not 0: a bit of summary is set
//	 64 summary  [32]u64        bit i: words[i] is not 0
//	320 words    [2048]u64      bit i of words[j]: the QP with doorbell index 64j+i
const (
	bellAny     = 0
	bellSummary = 64
	bellWords   = 320

	bellSummaryWords = 32
	bellWordCount    = 64 * bellSummaryWords

	// DoorbellIndices is how many queue pairs of a program one worker can serve.
	DoorbellIndices = 64 * bellWordCount
	// DoorbellBlock is the length of one worker's block in bytes.
	DoorbellBlock = 20 << 10
)

// DoorbellSize returns the bytes of a doorbell segment.
func DoorbellSize(workers int) int { return workers * DoorbellBlock }

// bell is one worker's block.
type bell struct {
	any     *atomic.Uint32
	summary [bellSummaryWords]*atomic.Uint64
	words   []*atomic.Uint64
}

func (b *bell) init(mem Memory, worker int) error {
	off := worker * DoorbellBlock
	if worker < 0 || off+DoorbellBlock > len(mem.Bytes()) {
		return fmt.Errorf("%w: doorbells of worker %d in %d bytes", ErrGeometry, worker, len(mem.Bytes()))
	}
	b.any = mem.Word32(off + bellAny)
	for i := range b.summary {
		b.summary[i] = mem.Word64(off + bellSummary + 8*i)
	}
	b.words = make([]*atomic.Uint64, bellWordCount)
	for i := range b.words {
		b.words[i] = mem.Word64(off + bellWords + 8*i)
	}
	return nil
}

// ProgramDoorbell is the program's side of one worker's doorbells. Set may be
// called from any goroutine.
type ProgramDoorbell struct {
	bell
	asleep *atomic.Uint32
}

// NewProgramDoorbell returns the program's side of a worker's block of the
// doorbell segment, with the worker's sleep flag from the status page.
// Error: ErrGeometry.
func NewProgramDoorbell(doorbells, status Memory, worker int) (*ProgramDoorbell, error) {
	d := &ProgramDoorbell{}
	if err := d.init(doorbells, worker); err != nil {
		return nil, err
	}
	page, err := NewStatusPage(status)
	if err != nil {
		return nil, err
	}
	if d.asleep, err = page.SleepWord(worker); err != nil {
		return nil, err
	}
	return d, nil
}

// Set tells the worker that the QP with this doorbell index has work. It
// reports whether the worker sleeps: then its eventfd must be written. Publish
// the ring's index first.
//
// A level that is seen set need not be written: the adapter clears the levels
// from the top down, so whoever clears this one later looks at the levels below
// after what was set there.
func (d *ProgramDoorbell) Set(index uint32) (asleep bool) {
	w := index / 64 % bellWordCount
	set(d.words[w], uint(index%64))
	set(d.summary[w/64], uint(w%64))
	if d.any.Load() == 0 {
		d.any.Store(1)
	}
	return d.asleep.Load() != 0
}

func set(w *atomic.Uint64, bit uint) {
	if mask := uint64(1) << bit; w.Load()&mask == 0 {
		w.Or(mask)
	}
}

// AdapterDoorbell is the adapter's side of one worker's doorbells. It belongs
// to that worker.
type AdapterDoorbell struct {
	bell
	// left holds summary bits taken and not looked at yet, word the bits taken
	// of words[wordAt] and not given out yet.
	left   [bellSummaryWords]uint64
	at     int
	word   uint64
	wordAt int
	limit  int // words to look at
}

// NewAdapterDoorbell returns the adapter's side of a worker's block of the
// doorbell segment. Error: ErrGeometry.
func NewAdapterDoorbell(mem Memory, worker int) (*AdapterDoorbell, error) {
	d := &AdapterDoorbell{at: bellSummaryWords, limit: bellWordCount}
	if err := d.init(mem, worker); err != nil {
		return nil, err
	}
	return d, nil
}

// Any reports whether Next would find anything. A worker asks after it has set
// its sleep flag and before it sleeps.
func (d *AdapterDoorbell) Any() bool {
	return d.word != 0 || d.at < bellSummaryWords || d.any.Load() != 0
}

// Next takes one doorbell and returns its index, which is below
// DoorbellIndices (and the limit, rounded up to 64), whether or not the program
// has such a queue pair. false ends a round: what was set meanwhile comes in
// the next one, and Any tells of it. A round is bounded, whatever the program
// does; a caller that stops within one goes on there, so that no queue pair is
// passed over. Without work it costs one load.
func (d *AdapterDoorbell) Next() (index uint32, ok bool) {
	if d.word == 0 {
		if d.at == bellSummaryWords && !d.nextRound() {
			return 0, false
		}
		for d.word == 0 {
			if !d.nextWord() {
				return 0, false
			}
		}
	}
	index = uint32(64*d.wordAt + bits.TrailingZeros64(d.word))
	d.word &= d.word - 1
	return index, true
}

// Limit makes Next pass over indices of n and more, by whole words of 64: those
// no queue pair has, so that a program cannot have the worker look through all
// of them. Without it there is no limit.
func (d *AdapterDoorbell) Limit(n uint32) {
	d.limit = int((min(n, DoorbellIndices) + 63) / 64)
}

// nextRound takes the two upper levels, in that order.
func (d *AdapterDoorbell) nextRound() bool {
	if d.any.Load() == 0 {
		return false
	}
	d.any.Store(0)
	for i, w := range d.summary {
		d.left[i] = take(w)
	}
	d.at = 0
	return true
}

// nextWord takes the next word that a summary bit names.
func (d *AdapterDoorbell) nextWord() bool {
	for d.at < bellSummaryWords && d.left[d.at] == 0 {
		d.at++
	}
	if d.at == bellSummaryWords {
		return false
	}
	d.wordAt = 64*d.at + bits.TrailingZeros64(d.left[d.at])
	if d.wordAt >= d.limit { // and so are all that follow
		d.at = bellSummaryWords
		return false
	}
	d.left[d.at] &= d.left[d.at] - 1
	d.word = take(d.words[d.wordAt])
	return true
}

func take(w *atomic.Uint64) uint64 {
	if w.Load() == 0 {
		return 0
	}
	return w.Swap(0)
}

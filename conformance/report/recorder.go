package report

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/wire"
)

// Recorder takes the results of a run as they come: into Run, onto Tree, and their packets into files.
type Recorder struct {
	Run        *Run
	Tree       *Tree       // nil: none
	Exceptions *Exceptions // nil: none
	// Pcap is a directory that gets a file a case, of those that had packets. Empty: none.
	Pcap string
	// Section is called when a section's last case is there, with its numbers; nil: not.
	Section func(name string, n Counts)

	section string
	counts  Counts
	err     error
}

// Take takes a result.
func (c *Recorder) Take(r *suite.Result) {
	if r.Section != c.section {
		c.endSection()
		c.section = r.Section
	}
	k := NewCase(r, suite.Ladder, c.Exceptions)
	c.Run.Add(k)
	c.counts.add(k)
	if c.Tree != nil {
		c.Tree.Case(k)
	}
	if c.Pcap != "" && len(r.Frames) > 0 && c.err == nil {
		c.err = c.keep(r)
	}
}

func (c *Recorder) endSection() {
	if c.section != "" && c.Section != nil {
		c.Section(c.section, c.counts)
	}
	c.section, c.counts = "", Counts{}
}

func (c *Recorder) keep(r *suite.Result) error {
	f, err := os.Create(filepath.Join(c.Pcap, r.ID+".pcapng"))
	if err != nil {
		return fmt.Errorf("keep packets: %w", err)
	}
	if err := errors.Join(wire.WritePcapng(f, r.Frames), f.Close()); err != nil {
		return fmt.Errorf("keep packets: %w", err)
	}
	return nil
}

// End ends the last section and returns the first error of writing the tree or the packets.
func (c *Recorder) End() error {
	c.endSection()
	if c.err == nil && c.Tree != nil {
		return c.Tree.Err()
	}
	return c.err
}

package report

import (
	"fmt"
	"io"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/softroce/softroce/conformance/suite"
)

// WritePcap writes a case's packets as pcapng, from the IP header on. The file's comment says what the case is and what
// came of it.
func WritePcap(w io.Writer, r *suite.Result) error {
	comment := fmt.Sprintf("%s (%v): %s: %v", r.ID, r.Level, Title(r.Statement), r.Outcome)
	if r.Reason != "" {
		comment += ": " + r.Reason
	}
	ng, err := pcapgo.NewNgWriterInterface(w,
		pcapgo.NgInterface{Name: "tester", LinkType: layers.LinkTypeRaw, TimestampResolution: 9},
		pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "softroce conformance", Comment: comment}})
	if err != nil {
		return fmt.Errorf("write the packets of %s: %w", r.ID, err)
	}
	for _, f := range r.Frames {
		info := gopacket.CaptureInfo{Timestamp: f.Time, CaptureLength: len(f.IP), Length: len(f.IP)}
		if err := ng.WritePacket(info, f.IP); err != nil {
			return fmt.Errorf("write the packets of %s: %w", r.ID, err)
		}
	}
	if err := ng.Flush(); err != nil {
		return fmt.Errorf("write the packets of %s: %w", r.ID, err)
	}
	return nil
}

package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// The elements of JUnit's XML that CI systems read.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Errors   int          `xml:"errors,attr"`
		Skipped  int          `xml:"skipped,attr"`
		Time     string       `xml:"time,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name      string      `xml:"name,attr"`
		Tests     int         `xml:"tests,attr"`
		Failures  int         `xml:"failures,attr"`
		Errors    int         `xml:"errors,attr"`
		Skipped   int         `xml:"skipped,attr"`
		Time      string      `xml:"time,attr"`
		Timestamp string      `xml:"timestamp,attr"`
		Cases     []junitCase `xml:"testcase"`

		ms float64
	}
	junitCase struct {
		Class   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		Time    string        `xml:"time,attr"`
		Failure *junitFailure `xml:"failure,omitempty"`
		Skipped *junitSkipped `xml:"skipped,omitempty"`
		Out     string        `xml:"system-out,omitempty"`
	}
	junitFailure struct {
		Type    string `xml:"type,attr"`
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
	junitSkipped struct {
		Message string `xml:"message,attr"`
	}
)

// WriteJUnit writes the run as JUnit's XML, a suite a section. A failure's type is its level; an exception counts as
// skipped, and says so.
func (r *Run) WriteJUnit(w io.Writer) error {
	all := junitSuites{Name: "conformance of " + r.Target.Name, Time: seconds(r.MS)}
	for _, c := range r.Cases {
		if n := len(all.Suites); n == 0 || all.Suites[n-1].Name != c.Section {
			all.Suites = append(all.Suites, junitSuite{Name: c.Section, Timestamp: r.Began.UTC().Format("2006-01-02T15:04:05")})
		}
		s := &all.Suites[len(all.Suites)-1]
		s.add(c)
	}
	for i := range all.Suites {
		s := &all.Suites[i]
		s.Time = seconds(s.ms)
		all.Tests += s.Tests
		all.Failures += s.Failures
		all.Skipped += s.Skipped
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return fmt.Errorf("write JUnit: %w", err)
	}
	e := xml.NewEncoder(w)
	e.Indent("", " ")
	if err := e.Encode(all); err != nil {
		return fmt.Errorf("write JUnit: %w", err)
	}
	if _, err := io.WriteString(w, "\n"); err != nil {
		return fmt.Errorf("write JUnit: %w", err)
	}
	return nil
}

func (s *junitSuite) add(c Case) {
	prefix, _, _ := strings.Cut(c.ID, "-")
	j := junitCase{Class: "conformance." + prefix, Name: c.ID + " " + c.Title, Time: seconds(c.MS), Out: strings.Join(c.Notes, "\n")}
	switch {
	case c.Result == resultPass:
	case c.Result == resultSkip:
		j.Skipped = &junitSkipped{c.Reason}
	case c.Exception != "":
		j.Skipped = &junitSkipped{"an exception: " + c.Exception + ": " + c.Reason}
	default:
		j.Failure = &junitFailure{Type: c.Level, Message: c.Reason, Text: c.Reason + "\n" + c.Ladder + "\n"}
	}
	if j.Failure != nil {
		s.Failures++
	}
	if j.Skipped != nil {
		s.Skipped++
	}
	s.Tests++
	s.ms += c.MS
	s.Cases = append(s.Cases, j)
}

func seconds(ms float64) string { return fmt.Sprintf("%.3f", ms/1000) }

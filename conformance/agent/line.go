package agent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Limits of the protocol, and the port that an agent listens on by default.
const (
	DefaultPort = 4792
	MaxLine     = 16 << 20 // bytes of a request or an answer, its end included
	MaxData     = 8 << 20  // bytes that one write or read carries
	MaxWait     = 60_000   // ms that one request may wait
)

// errLong is what a line over MaxLine is.
var errLong = fmt.Errorf("a line of more than %d bytes", MaxLine)

// lines reads lines of at most MaxLine bytes.
type lines struct{ s *bufio.Scanner }

func newLines(r io.Reader) lines {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 4096), MaxLine)
	return lines{s}
}

// next returns a line, which is good until the next call. io.EOF: the peer closed the connection.
func (l lines) next() ([]byte, error) {
	if l.s.Scan() {
		return l.s.Bytes(), nil
	}
	switch err := l.s.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, errLong
	case err != nil:
		return nil, err
	}
	return nil, io.EOF
}

// decode reads one JSON object and nothing else. strict refuses fields that v does not have.
func decode(line []byte, v any, strict bool) error {
	if !bytes.HasPrefix(line, []byte("{")) {
		return errors.New("no JSON object")
	}
	d := json.NewDecoder(bytes.NewReader(line))
	if strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one object in a line")
	}
	return nil
}

// brief is the beginning of a line, for an error's text.
func brief(line []byte) string {
	const n = 80
	if len(line) > n {
		return fmt.Sprintf("%q...", line[:n])
	}
	return fmt.Sprintf("%q", line)
}

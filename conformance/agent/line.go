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
	maxLimit    = 1 << 16  // of a device's own, as its hello says it
)

// errLong is what a line over MaxLine is.
var errLong = fmt.Errorf("a line of more than %d bytes", MaxLine)

// lines reads lines of at most MaxLine bytes.
type lines struct {
	r    *bufio.Reader
	line []byte
}

func newLines(r io.Reader) *lines { return &lines{r: bufio.NewReader(r)} }

// next returns a line without its end, which is good until the next call. io.EOF: the peer closed the connection; what it had
// begun to say is no line.
func (l *lines) next() ([]byte, error) {
	l.line = l.line[:0]
	for {
		piece, err := l.r.ReadSlice('\n')
		if len(l.line)+len(piece) > MaxLine {
			return nil, errLong
		}
		l.line = append(l.line, piece...)
		switch {
		case err == nil:
			return bytes.TrimSuffix(l.line[:len(l.line)-1], []byte("\r")), nil
		case errors.Is(err, io.EOF) && len(l.line) > 0:
			return nil, fmt.Errorf("%w in the middle of a line", err)
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
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

package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrFormat says that the file is neither pcap nor pcapng, or breaks its format.
var ErrFormat = errors.New("read capture: not a pcap or pcapng file, or a broken one")

// ErrLimit says that the file asks for more memory than any capture of packets needs.
var ErrLimit = errors.New("read capture: limit exceeded")

// Limits on what a file may make us hold (our own choice).
const (
	maxFrame      = 256 << 10 // bytes of one captured frame
	maxBlock      = 1 << 20   // bytes of one pcapng block that is read
	maxInterfaces = 4096      // interfaces of one pcapng section
	readBuffer    = 64 << 10
)

// frame is one captured frame of any link type.
type frame struct {
	link    uint32
	time    time.Time // zero when the file does not say
	data    []byte    // valid until the next frame
	length  int       // on the wire; more than len(data) when cut
	comment string
	way     Direction
}

// source yields the frames of a capture file, io.EOF after the last.
type source interface{ next(f *frame) error }

// openSource tells the format by the file's first four bytes.
func openSource(r io.Reader) (source, error) {
	br := bufio.NewReaderSize(r, readBuffer)
	head, err := br.Peek(4)
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%w: only %d bytes", ErrFormat, len(head))
		}
		return nil, fmt.Errorf("read capture: %w", err)
	}
	if binary.LittleEndian.Uint32(head) == blockSection {
		return &pcapng{r: br}, nil
	}
	return newPcap(br)
}

// readFull reads len(b) bytes and calls an early end by its name. what says what
// was being read.
func readFull(r io.Reader, b []byte, what string) error {
	if _, err := io.ReadFull(r, b); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("%w: file ends inside %s", ErrFormat, what)
		}
		return fmt.Errorf("read capture: %w", err)
	}
	return nil
}

// grow returns a slice of n bytes, in b's memory when that is large enough.
func grow(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}

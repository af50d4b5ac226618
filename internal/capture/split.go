package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Split says how a capture is cut into files. The zero value is one file of all.
type Split struct {
	// Size is how many bytes a file may have, one packet over; 0: any number.
	Size int64
	// Count is how many packets are taken; 0: all.
	Count uint64
	// OnPacket is called behind each packet that was written; nil: nobody is.
	OnPacket func()
}

// ErrWrite is why a capture ended whose file could not be written.
var ErrWrite = errors.New("the capture ended: its file cannot be written")

// Copy reads the pcapng that an adapter writes, and writes it block by block into
// files that open gives, numbered from 1: each one is a whole capture of its own.
// A file is closed before the next is asked for, and at the end. done says that
// Count packets were taken.
func (s Split) Copy(r io.Reader, open func(n int) (io.WriteCloser, error)) (done bool, err error) {
	c := copier{Split: s, r: bufio.NewReaderSize(r, readBuffer), open: open}
	done, err = c.run()
	if c.out != nil {
		if cerr := c.out.Close(); cerr != nil && err == nil {
			err = fmt.Errorf("%w: %w", ErrWrite, cerr)
		}
	}
	return done, err
}

// copier is a Copy under way.
type copier struct {
	Split
	r     *bufio.Reader
	open  func(n int) (io.WriteCloser, error)
	out   io.WriteCloser
	files int
	size  int64  // of the file
	head  []byte // section and interface blocks
	seen  uint64
	block []byte
}

func (c *copier) run() (done bool, err error) {
	for {
		typ, err := c.next()
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if typ == blockSection || typ == blockInterface {
			c.head = append(c.head, c.block...)
		}
		if c.out == nil || typ == blockPacket && c.Size > 0 && c.size+int64(len(c.block)) > c.Size && c.size > int64(len(c.head)) {
			if err := c.begin(typ); err != nil {
				return false, err
			}
		}
		if err := c.write(c.block); err != nil {
			return false, err
		}
		if typ != blockPacket {
			continue
		}
		if c.OnPacket != nil {
			c.OnPacket()
		}
		if c.seen++; c.seen == c.Count {
			return true, nil
		}
	}
}

// begin goes on in the next file.
func (c *copier) begin(typ uint32) error {
	if c.out != nil {
		out := c.out
		c.out = nil
		if err := out.Close(); err != nil {
			return fmt.Errorf("%w: %w", ErrWrite, err)
		}
	}
	c.files++
	c.size = 0
	var err error
	if c.out, err = c.open(c.files); err != nil {
		c.out = nil
		return fmt.Errorf("%w: %w", ErrWrite, err)
	}
	if typ == blockPacket {
		return c.write(c.head)
	}
	return nil
}

func (c *copier) write(b []byte) error {
	n, err := c.out.Write(b)
	c.size += int64(n)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrWrite, err)
	}
	return nil
}

// next reads a block as it is.
func (c *copier) next() (typ uint32, err error) {
	var h [8]byte
	if n, err := io.ReadFull(c.r, h[:]); err != nil {
		if n == 0 && errors.Is(err, io.EOF) {
			return 0, io.EOF
		}
		return 0, fmt.Errorf("%w: the stream ends inside a block header", ErrFormat)
	}
	total := binary.LittleEndian.Uint32(h[4:])
	if total < 12 || total > maxBlock || total%4 != 0 {
		return 0, fmt.Errorf("%w: a block of %d bytes", ErrFormat, total)
	}
	c.block = grow(c.block, int(total))
	copy(c.block, h[:])
	return binary.LittleEndian.Uint32(h[:]), readFull(c.r, c.block[8:], "a block")
}

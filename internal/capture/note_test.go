package capture

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

// A note is read as it was written, also before what the writer did not know.
func TestNote(t *testing.T) {
	for _, n := range []Note{
		{},
		{Verdict: "accepted", QPN: 0x11, HasQP: true},
		{Verdict: DroppedBecause("no_qp")},
		{QPN: 0x11, HasQP: true, WR: 42, Op: "RDMA_WRITE", Resend: true},
		{Verdict: "out of sequence", QPN: 1, HasQP: true, WR: 1<<64 - 1, Op: "RECV", Lost: 17},
		{Lost: 3},
	} {
		s := string(n.Append(nil))
		for _, more := range []string{"", "; not known: TTL (64 is written), UDP checksum (the right one is written)"} {
			if got := ParseNote(s + more); got != n {
				t.Errorf("%q is read as %+v, want %+v", s+more, got, n)
			}
		}
	}
	for s, want := range map[string]Note{
		"dropped: \x1b]0;title\x07":      {Verdict: "dropped: ?]0"},
		"dropped: a\r\n\x00b\u202ec\xff": {Verdict: "dropped: a???b?c\ufffd"},
		strings.Repeat("x", 1<<16):       {Verdict: strings.Repeat("x", maxNote)},
	} {
		if got := ParseNote(s); got != want {
			t.Errorf("%.40q is read as %+v, want %+v", s, got, want)
		}
	}
	for _, s := range []string{"not known: TTL (64 is written)", "", ", ,", "accepted, qp x, wr 1, wr y SEND, 5 packets"} {
		if n := ParseNote(s); n.HasQP || n.Op != "" || n.Lost != 0 {
			t.Errorf("%q is read as %+v", s, n)
		}
	}
}

// tape is a capture of n packets, as an adapter streams it.
func tape(t *testing.T, n int) []byte {
	t.Helper()
	q, err := NewQueue("softroce0", 1<<20, WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		h := bth.BTHFields{Opcode: bth.RCSendOnly, PKey: bth.DefaultPKey, DestQP: 0x11, PSN: bth.PSN(i)}
		q.Put(Packet{
			Time: time.Unix(1, 0), Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), IDKnown: true, TTL: 64,
			Payload: bth.AppendICRC(h.Append(nil), 0), Outbound: true,
		}, Note{QPN: 0x11, HasQP: true})
	}
	q.End()
	b, ended := q.Take(nil)
	if !ended {
		t.Error("End does not end it")
	}
	return b
}

// memFile is a file of a ring in memory that holds so many bytes.
type memFile struct {
	bytes.Buffer
	room   int
	closed bool
}

var errFull = errors.New("no space left on device")

func (f *memFile) Write(b []byte) (int, error) {
	if f.room > 0 && f.Len()+len(b) > f.room {
		return 0, errFull
	}
	return f.Buffer.Write(b)
}

func (f *memFile) Close() error { f.closed = true; return nil }

// A ring's files are captures of their own, none larger than it may be.
func TestSplit(t *testing.T) {
	for _, c := range []struct {
		size         int64
		count        uint64
		files, total int
	}{{0, 0, 1, 100}, {2000, 0, 0, 100}, {1, 0, 100, 100}, {0, 7, 1, 7}, {2000, 50, 0, 50}} {
		t.Run(fmt.Sprint(c.size, " ", c.count), func(t *testing.T) {
			var files []*memFile
			done, err := Split{Size: c.size, Count: c.count}.Copy(bytes.NewReader(tape(t, 100)), func(n int) (io.WriteCloser, error) {
				if len(files) > 0 && !files[len(files)-1].closed || n != len(files)+1 {
					t.Errorf("file %d while the one before is open", n)
				}
				files = append(files, &memFile{})
				return files[len(files)-1], nil
			})
			if err != nil || done != (c.count > 0) || c.files > 0 && len(files) != c.files || c.files == 0 && len(files) < 3 {
				t.Errorf("%d files, done %v, %v", len(files), done, err)
			}
			next := 0
			for _, f := range files {
				if c.size > 1 && int64(f.Len()) > c.size || !f.closed {
					t.Errorf("a file of %d bytes, closed %v", f.Len(), f.closed)
				}
				for _, r := range records(t, f.Bytes()) {
					if r.PSN != bth.PSN(next) || r.Way != Outbound {
						t.Errorf("packet %d is %v", next, r)
					}
					next++
				}
			}
			if next != c.total {
				t.Errorf("%d packets, want %d", next, c.total)
			}
		})
	}
}

// A full disk ends a capture with words; what was written is a capture still.
func TestSplitFullDisk(t *testing.T) {
	f := &memFile{room: 3000}
	_, err := Split{}.Copy(bytes.NewReader(tape(t, 100)), func(int) (io.WriteCloser, error) { return f, nil })
	if !errors.Is(err, ErrWrite) || !errors.Is(err, errFull) || !f.closed {
		t.Errorf("%v, closed %v", err, f.closed)
	}
	if n := len(records(t, f.Bytes())); n == 0 || n >= 100 {
		t.Errorf("%d packets are left", n)
	}
	_, err = Split{}.Copy(bytes.NewReader(tape(t, 3)[:200]), func(int) (io.WriteCloser, error) { return &memFile{}, nil })
	if !errors.Is(err, ErrFormat) {
		t.Errorf("a stream that is cut off: %v", err)
	}
}

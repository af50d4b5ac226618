package rawudp

import "golang.org/x/sys/unix"

// source is memory to send from, in turn.
type source struct {
	b  []byte
	at int
}

func newSource(n int) *source {
	s := &source{b: make([]byte, max(sourceBytes, n))}
	for i := range s.b { // touched, or all of it is the page of zeros
		s.b[i] = byte(i)
	}
	return s
}

// next gives n bytes.
func (s *source) next(n int) *byte {
	if s.at+n > len(s.b) {
		s.at = 0
	}
	p := &s.b[s.at]
	s.at += n
	return p
}

// segmented is one send of several packets.
type segmented struct {
	fd    int
	hdr   unix.Msghdr
	iov   unix.Iovec
	bytes int
	src   *source
}

func newSegmented(d duo, c Config) *segmented {
	s := &segmented{fd: d.tx.fd, bytes: c.Segments * c.Size}
	s.src = newSource(s.bytes)
	s.iov.SetLen(s.bytes)
	s.hdr.Name, s.hdr.Namelen = d.rx.sockaddr()
	s.hdr.Iov = &s.iov
	s.hdr.SetIovlen(1)
	cm := segmentControl(c.Size)
	s.hdr.Control = &cm[0]
	s.hdr.SetControllen(len(cm))
	return s
}

func (s *segmented) send() unix.Errno {
	s.iov.Base = s.src.next(s.bytes)
	return sendmsg(s.fd, &s.hdr)
}

// batch is one sendmmsg of single datagrams.
type batch struct {
	fd   int
	hdrs []mmsghdr
	iovs []unix.Iovec
	size int
	src  *source
}

func newBatch(d duo, c Config) *batch {
	b := &batch{fd: d.tx.fd, hdrs: make([]mmsghdr, c.Batch), iovs: make([]unix.Iovec, c.Batch), size: c.Size, src: newSource(c.Size)}
	name, n := d.rx.sockaddr()
	for i := range b.hdrs {
		h := &b.hdrs[i].hdr
		h.Name, h.Namelen, h.Iov = name, n, &b.iovs[i]
		h.SetIovlen(1)
		b.iovs[i].SetLen(c.Size)
	}
	return b
}

// send sends the whole batch.
func (b *batch) send() unix.Errno {
	for i := range b.iovs {
		b.iovs[i].Base = b.src.next(b.size)
	}
	for k := 0; k < len(b.hdrs); {
		n, e := sendmmsg(b.fd, b.hdrs[k:])
		switch {
		case e == 0:
			k += n
		case k > 0 && again(e):
		default:
			return e
		}
	}
	return 0
}

// receiver takes datagrams or merged buffers.
type receiver struct {
	fd   int
	hdrs []mmsghdr
	iovs []unix.Iovec
	bufs []byte
	ctls []byte
	srcs []byte
}

// Room for what the kernel says of a buffer: its segment size, its sender.
const (
	controlBytes = 64
	nameBytes    = unix.SizeofSockaddrInet6
)

func newReceiver(k *socket, n, size int) *receiver {
	size = (size + 63) &^ 63
	r := &receiver{
		fd: k.fd, hdrs: make([]mmsghdr, n), iovs: make([]unix.Iovec, n),
		bufs: make([]byte, n*size), ctls: make([]byte, n*controlBytes), srcs: make([]byte, n*nameBytes),
	}
	for i := range r.hdrs {
		h := &r.hdrs[i].hdr
		r.iovs[i].Base = &r.bufs[i*size]
		r.iovs[i].SetLen(size)
		h.Iov, h.Control, h.Name = &r.iovs[i], &r.ctls[i*controlBytes], &r.srcs[i*nameBytes]
		h.SetIovlen(1)
		r.reset(i)
	}
	return r
}

// reset makes a header usable again.
func (r *receiver) reset(i int) {
	r.hdrs[i].hdr.SetControllen(controlBytes)
	r.hdrs[i].hdr.Namelen = nameBytes
}

// one receives with recvmsg and returns the bytes.
func (r *receiver) one() (int, unix.Errno) {
	n, e := recvmsg(r.fd, &r.hdrs[0].hdr)
	r.reset(0)
	return n, e
}

// many receives with recvmmsg and returns the bytes.
func (r *receiver) many() (int, unix.Errno) {
	n, e := recvmmsg(r.fd, r.hdrs)
	if e != 0 {
		return 0, e
	}
	bytes := 0
	for i := range n {
		bytes += int(r.hdrs[i].n)
		r.reset(i)
	}
	return bytes, 0
}

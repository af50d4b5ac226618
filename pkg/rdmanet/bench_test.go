package rdmanet

import (
	"fmt"
	"io"
	"testing"

	"github.com/softroce/softroce/internal/testdevices"
	"github.com/softroce/softroce/pkg/verbs"
)

// BenchmarkStream is a stream beside RDMA WRITEs of the same size on the same kind
// of queue pair, which is the most that it could carry. Compare within one run.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("write/%d", size), func(b *testing.B) { benchWrites(b, size) })
		b.Run(fmt.Sprintf("stream/%d", size), func(b *testing.B) { benchStream(b, size) })
	}
}

func benchStream(b *testing.B, size int) {
	devs, _ := testdevices.Open(b, 2)
	x, y := pair(b, devs[0], devs[1], nil, nil)
	read := make(chan int64)
	go func() {
		n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{y}, make([]byte, size)) // the count says it
		read <- n
	}()
	buf := make([]byte, size)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	sent := int64(0)
	for b.Loop() {
		n, err := x.Write(buf)
		check(b, err)
		sent += int64(n)
	}
	check(b, x.CloseWrite())
	if n := <-read; n != sent {
		b.Errorf("%d bytes read, %d sent", n, sent)
	}
	_, _ = x.Close(), y.Close()
}

// benchWrites keeps as much in flight, as a stream does, and at least two
// requests.
func benchWrites(b *testing.B, size int) {
	devs, _ := testdevices.Open(b, 2)
	x, y := pair(b, devs[0], devs[1], nil, nil)
	depth := min(max(defaultSendBuffer/size, 2), sends)
	b.SetBytes(int64(size))
	inFlight := 0
	var wcs [sends]verbs.WC
	for b.Loop() {
		for inFlight == depth {
			n, err := x.e.cq.Poll(wcs[:])
			check(b, err)
			for i := range n {
				if wcs[i].Status != verbs.WCSuccess {
					b.Fatal(wcs[i].Status)
				}
			}
			inFlight -= n
		}
		_, err := x.e.qp.PostSend(verbs.SendWR{
			Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{x.e.sendMR.SGE(0, size)}, RemoteAddr: x.peer.addr, RKey: x.peer.rkey,
		})
		check(b, err)
		inFlight++
	}
	for inFlight > 0 {
		n, err := x.e.cq.Poll(wcs[:])
		check(b, err)
		inFlight -= n
	}
	_, _ = x.Close(), y.Close()
}

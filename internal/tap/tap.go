// Package tap gets the packets of a running adapter: a capture that the adapter
// writes into a pipe, as pcapng, until it is told to stop. It refuses to know what
// is done with the packets, and files.
package tap

import (
	"net/netip"
	"os"
	"sync/atomic"

	"github.com/softroce/softroce/internal/devctl"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

// Options choose packets. The zero value is all that the program may see: those of
// its user's queue pairs, or as root or the adapter's own user those of all.
type Options struct {
	QPNs []uint32   // of the adapter's queue pairs; none: all
	Peer netip.Addr // zero: any
}

// Capture is a capture that runs. Its reader gets io.EOF when it is over.
type Capture struct {
	dev    devctl.Device
	handle uint32
	pipe   *os.File
	over   atomic.Bool // Stop was called
}

// Stats count a capture's packets: those written, and those lost because the
// reader was too slow.
type Stats struct{ Written, Lost uint64 }

// Start begins a capture. Errors are verbs.Error.
func Start(dev *verbs.Device, o Options) (*Capture, error) {
	c := &Capture{dev: devctl.Of(dev)}
	var err error
	req := uapi.StartCaptureRequest{QPNs: o.QPNs}
	if o.Peer.IsValid() {
		req.Peer = bth.GIDFromAddr(o.Peer.Unmap().WithZone(""))
	}
	c.handle, c.pipe, err = c.dev.Stream("start capture", uapi.OpStartCapture, &req)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Read implements io.Reader.
func (c *Capture) Read(b []byte) (int, error) { return c.pipe.Read(b) }

// Stop ends the capture. What the adapter has got still comes, and then io.EOF.
func (c *Capture) Stop() (Stats, error) {
	c.over.Store(true)
	var rep uapi.CaptureReply
	err := c.dev.Do("stop capture", uapi.OpStopCapture, &uapi.HandleRequest{Handle: c.handle}, &rep)
	return Stats(rep), err
}

// Stats counts the packets so far.
func (c *Capture) Stats() (Stats, error) {
	var rep uapi.CaptureReply
	err := c.dev.Do("query capture", uapi.OpQueryCapture, &uapi.HandleRequest{Handle: c.handle}, &rep)
	return Stats(rep), err
}

// Close ends the capture, if Stop did not, and gives the pipe back. The adapter finds
// out by itself only when it has something to write.
func (c *Capture) Close() error {
	if !c.over.Load() {
		_, _ = c.Stop() // the adapter may be gone
	}
	return c.pipe.Close()
}

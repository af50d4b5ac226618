package verbs

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
)

// SocketEnv is the environment variable that names a daemon's socket.
const SocketEnv = "SOFTROCE_SOCKET"

// Options say which adapter to open. The zero value finds the usual one.
type Options struct {
	// Socket is the path of a daemon's Unix socket; empty: see SocketPath.
	Socket string
}

// SocketPath gives the socket that Open uses: path when it is not empty, else
// the value of SOFTROCE_SOCKET, else softroce/softroce.sock in the user's
// runtime directory when it exists there, else
// /run/softroce/softroce.sock.
func SocketPath(path string) string {
	if path != "" {
		return path
	}
	if s := os.Getenv(SocketEnv); s != "" {
		return s
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		s := filepath.Join(dir, "softroce", "softroce.sock")
		if _, err := os.Stat(s); err == nil {
			return s
		}
	}
	return "/run/softroce/softroce.sock"
}

// Device is one open adapter (ibv_context). Objects of one Device cannot be
// used with another's (EINVAL).
type Device struct {
	ctl   control
	hello uapi.HelloReply

	status    *shm.Segment
	doorbells *shm.Segment
	bells     []*uapi.ProgramDoorbell // one per worker
	wakes     []*shm.Doorbell         // one per worker
	async     *records
	inProcess bool    // the adapter is in this process
	waiting   waiting // since something was posted or completed

	// ringMu is held from a request for rings until their memory is mapped: a
	// segment comes with one answer only, and the next one may name it.
	ringMu sync.Mutex

	mu       sync.Mutex
	segments map[uint32]*shm.Segment
	cqs      map[uint32]*CQ
	qps      map[uint32]*QP
	srqs     map[uint32]*SRQ
	mrs      map[LKey]*MR
	rekeyed  map[uint32]rekeyed // windows and fast regions by the upper bits of their key
	gone     atomic.Bool
	dying    chan struct{}
	closed   sync.Once
}

// Open connects to a daemon's adapter (ibv_open_device). Errors name the
// socket: ENOENT and ECONNREFUSED mean that no daemon serves it, EPROTO that
// the daemon speaks another version.
func Open(opts *Options) (*Device, error) {
	var path string
	if opts != nil {
		path = opts.Socket
	}
	path = SocketPath(path)
	c, err := shm.Dial(path)
	if err != nil {
		return nil, openError(path, err)
	}
	return OpenConn(c)
}

func openError(path string, err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		errno = unix.EIO
	}
	text := fmt.Sprintf("socket %s: %v", path, err)
	switch errno {
	case unix.EACCES:
		text = fmt.Sprintf("no permission to connect to %s: the daemon's --socket-mode and --socket-group say who may", path)
	case unix.ENOENT, unix.ECONNREFUSED:
		text = fmt.Sprintf("no daemon serves %s: start `softroce daemon`, or name its socket with --socket or %s", path, SocketEnv)
	}
	return &Error{Op: "open device", Errno: errno, Text: text}
}

// OpenConn makes a Device of a connection to an adapter. The Device owns c,
// also when an error is returned.
func OpenConn(c *shm.Conn) (*Device, error) {
	d := &Device{
		segments: make(map[uint32]*shm.Segment),
		cqs:      make(map[uint32]*CQ), qps: make(map[uint32]*QP), srqs: make(map[uint32]*SRQ),
		mrs: make(map[LKey]*MR), rekeyed: make(map[uint32]rekeyed),
		dying: make(chan struct{}), waiting: waiting{clock: time.Now()},
	}
	if cred, err := c.PeerCred(); err == nil {
		d.inProcess = cred.PID == os.Getpid()
	}
	if !d.inProcess { // of a build with -race, a daemon cannot map what lies in the heap
		shm.ShareAcrossProcesses()
	}
	d.ctl.init(c, d.die)
	if err := d.handshake(); err != nil {
		d.release()
		return nil, err
	}
	return d, nil
}

// handshake exchanges versions and takes the adapter's shared pages.
func (d *Device) handshake() error {
	req := uapi.HelloRequest{Version: uapi.Version, Program: filepath.Base(os.Args[0])}
	fds, err := d.ctl.call("open device", uapi.OpHello, &req, &d.hello, nil)
	if err != nil {
		return err
	}
	want := 3 + int(d.hello.Workers)
	if len(fds) != want {
		closeAll(fds)
		return &Error{Op: "open device", Errno: unix.EPROTO, Text: fmt.Sprintf("the adapter sent %d descriptors, expected %d", len(fds), want)}
	}
	owned := 2 // descriptors before this one are only mapped
	defer func() { closeAll(fds[:2]); closeAll(fds[owned:]) }()
	if d.status, err = shm.Map(fds[0], true); err != nil {
		return mapError("status page", err)
	}
	if d.doorbells, err = shm.Map(fds[1], false); err != nil {
		return mapError("doorbells", err)
	}
	owned++ // by the records, also when they fail
	if d.async, err = newRecords(fds[2], uapi.AsyncRecordSize); err != nil {
		return mapError("event pipe", err)
	}
	for w := range int(d.hello.Workers) {
		owned++
		d.wakes = append(d.wakes, shm.DoorbellFromFD(fds[3+w]))
		bell, err := uapi.NewProgramDoorbell(d.doorbells, d.status, w)
		if err != nil {
			return mapError("doorbells", err)
		}
		d.bells = append(d.bells, bell)
	}
	return nil
}

func mapError(what string, err error) error {
	return &Error{Op: "open device", Errno: unix.EPROTO, Text: fmt.Sprintf("%s: %v", what, err)}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd) // nothing to do about a descriptor that is not open
	}
}

// Name is the adapter's name, as devinfo shows it.
func (d *Device) Name() string { return d.hello.Name }

// Close closes the Device (ibv_close_device). The adapter destroys what is
// left of it. Memory of regions from AllocMR must not be used any more.
func (d *Device) Close() error {
	d.die()
	d.release()
	return nil
}

// die marks the Device dead: pending and later calls fail, waiters wake.
func (d *Device) die() {
	if d.gone.Swap(true) {
		return
	}
	close(d.dying)
}

// release unmaps and closes everything, once.
func (d *Device) release() {
	d.closed.Do(func() {
		d.ctl.close()
		if d.async != nil {
			d.async.close()
		}
		d.gone.Store(true)
		d.shutObjects()
		for _, w := range d.wakes {
			_ = w.Close() // a descriptor of our own, at the end
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, m := range d.mrs {
			m.release()
		}
		for _, s := range d.segments {
			_ = s.Close() // unmapping what we mapped
		}
		for _, s := range []*shm.Segment{d.status, d.doorbells} {
			if s != nil {
				_ = s.Close() // the same
			}
		}
	})
}

// shutObjects ends the use of the rings, queues before queue pairs: a poll
// reaches into both.
func (d *Device) shutObjects() {
	d.mu.Lock()
	cqs, qps := slices.Collect(maps.Values(d.cqs)), slices.Collect(maps.Values(d.qps))
	srqs := slices.Collect(maps.Values(d.srqs))
	d.mu.Unlock()
	for _, c := range cqs {
		c.mu.Lock()
		c.closed = true
		c.mu.Unlock()
	}
	for _, q := range qps {
		q.mu.Lock()
		q.closed = true
		q.mu.Unlock()
	}
	for _, s := range srqs {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
	}
}

// busy notes that the program posted something or got a completion.
func (d *Device) busy() {
	d.waiting.ends()
}

// ringMemory returns the segments of rings, mapping those that are new: their
// descriptors came along, in the same order. It takes over fds. The caller has
// held ringMu since before the request.
func (d *Device) ringMemory(op string, fds []int, refs ...uapi.RingRef) ([]*shm.Segment, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer closeAll(fds)
	out := make([]*shm.Segment, len(refs))
	used := 0
	for i, ref := range refs {
		if out[i] = d.segments[ref.Segment]; out[i] != nil {
			continue
		}
		if used == len(fds) {
			return nil, &Error{Op: op, Errno: unix.EPROTO, Text: "the adapter sent no ring memory"}
		}
		s, err := shm.Map(fds[used], false)
		if err != nil {
			return nil, &Error{Op: op, Errno: unix.EPROTO, Text: err.Error()}
		}
		used++
		out[i], d.segments[ref.Segment] = s, s
	}
	return out, nil
}

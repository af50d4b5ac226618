package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/internal/impair"
	"github.com/softroce/softroce/internal/nic"
	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/pkg/bth"
)

// Keys of the daemon's own log lines.
const (
	keyErr    = "err"
	keySocket = "socket"
	keyURL    = "url"
)

// daemonFlags are the daemon's settings as given.
type daemonFlags struct {
	addrs     []string
	iface     string
	name      string
	socket    string
	mode      string
	group     string
	metrics   string
	logLevel  string
	logFormat string
	pcap      string
	impair    string
	workers   int
	window    int
	recvBuf   int
	gso       string
	backend   string
	tun       string
	pprof     string
	crc       string
	strict    bool
	limits    []string
}

func newDaemonCmd() *cobra.Command {
	var f daemonFlags
	c := &cobra.Command{
		Use:   "daemon (--addr ADDRESS... | --interface NAME)",
		Short: "Run an adapter and serve the programs of this host",
		Long: `daemon is the adapter. It owns UDP port 4791 on its addresses and serves local programs over a Unix
socket. It needs no privilege. It ends at SIGTERM, SIGINT or SIGHUP: programs get a fatal device event, and
the socket is removed; a second signal, a quarter of a second later, ends it at once.

The socket is --socket, else $SOFTROCE_SOCKET, else softroce/softroce.sock in $XDG_RUNTIME_DIR, else
/run/softroce/softroce.sock. Programs look in the same places. A socket that a service manager passed
(LISTEN_FDS) goes before these, with the mode and the owner that it has.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runDaemon(c.Context(), &f, c.ErrOrStderr()) },
	}
	fl := c.Flags()
	fl.StringSliceVar(&f.addrs, "addr", nil, "address of the adapter (repeat for several); GID 0 is the first; with --backend tun also as 10.99.0.2/24")
	fl.StringVar(&f.iface, "interface", "", "network interface whose addresses the adapter takes")
	fl.StringVar(&f.name, "name", "", "device name that programs see (default softroce0)")
	fl.StringVar(&f.socket, "socket", "", "path of the Unix socket")
	fl.StringVar(&f.mode, "socket-mode", "0600", "permissions of the socket, octal")
	fl.StringVar(&f.group, "socket-group", "", "group that owns the socket, by name or number")
	fl.StringVar(&f.metrics, "metrics", "", "address for Prometheus metrics, as 127.0.0.1:9479; /metrics?qps=1 adds each queue pair's (default: none)")
	fl.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	fl.StringVar(&f.logFormat, "log-format", "text", "text or json")
	fl.StringVar(&f.pcap, "pcap", "", "write a pcapng of every packet to this file")
	fl.StringVar(&f.impair, "impair", "", "harm packets on purpose by the rules of this file, see softroce impair")
	fl.IntVar(&f.workers, "workers", 0, "receive sockets and threads, 1 to 8 (default: one per CPU)")
	fl.IntVar(&f.window, "window", 0, "most bytes in flight on one queue pair (default: the engine's)")
	fl.IntVar(&f.recvBuf, "recv-buffer", 0, "socket receive buffer in bytes (default: up to 8 MiB)")
	fl.StringVar(&f.backend, "backend", "udp", "way to the network: udp; packet, which checks whole IP headers and needs CAP_NET_RAW; or tun, with addresses of its own")
	fl.StringVar(&f.tun, "tun", "", "name of the TUN link of --backend tun, which is opened, or made where there is none")
	fl.StringVar(&f.gso, "gso", "auto", "UDP segmentation and receive offload: auto, on or off")
	fl.StringVar(&f.crc, "crc", "", "how to compute the ICRC, as hash/crc32; a wrong name is answered with those of this CPU (default: the best)")
	fl.StringVar(&f.pprof, "pprof", "", "address for CPU and memory profiles, as 127.0.0.1:6060 (default: none)")
	fl.BoolVar(&f.strict, "strict-icrc", false, "refuse packets whose IPv4 identification cannot be proven")
	fl.StringArrayVar(&f.limits, "limit", nil, "quota as LEVEL:RESOURCE=NUMBER, LEVEL adapter, user or program, as user:queue_pairs=100 (repeat for several)")
	c.MarkFlagsMutuallyExclusive("addr", "interface")
	c.MarkFlagsOneRequired("addr", "interface")
	return c
}

func runDaemon(ctx context.Context, f *daemonFlags, stderr io.Writer) (err error) {
	log, err := newLogger(stderr, f.logLevel, f.logFormat)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	cfg, err := f.config(ctx, log)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	if f.pcap != "" {
		done, openErr := f.openCapture(ctx, &cfg)
		if openErr != nil {
			return openErr
		}
		defer func() { err = errors.Join(err, done()) }()
	}
	l, err := f.inheritOrListen()
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // an error path; Serve closes it in the ordinary one
	a, err := nic.New(cfg)
	if err != nil {
		return err
	}
	stopMetrics, err := serveMetrics(f.metrics, a, log)
	if err != nil {
		_ = a.Close() // the first error is the one to report
		return err
	}
	defer stopMetrics()
	stopProfiles, err := serveProfiles(f.pprof, log)
	if err != nil {
		_ = a.Close() // the first error is the one to report
		return err
	}
	defer stopProfiles()
	log.Info("serving", keySocket, l.Path())
	served := make(chan error, 1)
	go func() { served <- a.Serve(l) }()
	m := newManager(log)
	m.tell("READY=1", "STATUS=serving "+l.Path())
	stopBeat := m.beat(a, l.Path())
	select {
	case <-ctx.Done():
		log.Info("stopping")
	case err = <-served:
	}
	stopBeat()
	m.tell("STOPPING=1")
	return errors.Join(err, a.Close())
}

// config turns flags into the adapter's configuration.
func (f *daemonFlags) config(ctx context.Context, log *slog.Logger) (nic.Config, error) {
	cfg := nic.Config{
		Name: f.name, TUN: f.tun, Interface: f.iface, Workers: f.workers, Window: f.window, RecvBuffer: f.recvBuf,
		StrictICRC: f.strict, Log: log, OwnProcess: true,
	}
	var err error
	if cfg.Offload, err = nic.ParseOffload(f.gso); err != nil {
		return cfg, fmt.Errorf("--gso: %w", err)
	}
	if cfg.Backend, err = nic.ParseBackend(f.backend); err != nil {
		return cfg, fmt.Errorf("--backend: %w", err)
	}
	if f.crc != "" {
		if err := bth.SetCRC(f.crc); err != nil {
			return cfg, fmt.Errorf("--crc: %w", err)
		}
	}
	for _, s := range f.addrs {
		a, err := netip.ParseAddr(s)
		if p, perr := netip.ParsePrefix(s); perr == nil && cfg.Backend == nic.BackendTUN {
			a, err = p.Addr(), nil
			cfg.Routes = append(cfg.Routes, p)
		}
		if err != nil {
			return cfg, fmt.Errorf("--addr %q is not an IP address: %w", s, err)
		}
		cfg.Addrs = append(cfg.Addrs, a)
	}
	for _, s := range f.limits {
		if err := cfg.Limits.Set(s); err != nil {
			return cfg, fmt.Errorf("--limit: %w", err)
		}
	}
	if f.impair != "" {
		text, err := readRules(ctx, f.impair, os.Stdin)
		if err != nil {
			return cfg, fmt.Errorf("--impair: %w", err)
		}
		if cfg.Impair, err = impair.Parse(text); err != nil {
			return cfg, fmt.Errorf("--impair: %w", err)
		}
	}
	return cfg, cfg.Validate()
}

// openCapture starts the packet capture; done flushes and closes it. Captures
// hold payloads and keys: a new file is its owner's alone. One that another
// daemon writes is left as it is.
func (f *daemonFlags) openCapture(ctx context.Context, cfg *nic.Config) (done func() error, err error) {
	file, err := openFile(ctx, f.pcap, os.O_WRONLY|os.O_CREATE)
	if err != nil {
		return nil, fmt.Errorf("--pcap: %w", err)
	}
	if err := emptyCapture(file); err != nil {
		_ = file.Close() // nothing was written
		return nil, fmt.Errorf("--pcap: %w", err)
	}
	out := &captureFile{file}
	w, err := capture.NewWriter(out, cfg.Name, capture.WriterOptions{})
	if err != nil {
		_ = file.Close() // nothing was written
		return nil, fmt.Errorf("--pcap: %w", err)
	}
	cfg.Capture = w
	return func() error { return errors.Join(w.Flush(), out.close()) }, nil
}

// captureFile is a capture's file, which is closed as soon as it cannot be written:
// on a full disk the operator deletes it, and its room must then be free.
type captureFile struct{ *os.File }

// pcapPatience is how long a pipe's reader may take for a block: the adapter waits for
// it, and peers must not run out of retries meanwhile.
const pcapPatience = 250 * time.Millisecond

func (f *captureFile) Write(b []byte) (int, error) {
	_ = f.File.SetWriteDeadline(time.Now().Add(pcapPatience)) // a regular file has none
	n, err := f.File.Write(b)
	if err != nil {
		_ = f.File.Close() // the first error is the one to report
	}
	return n, err
}

func (f *captureFile) close() error {
	if err := f.File.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// emptyCapture locks a capture's file against other daemons and empties it, if
// it is one that keeps what is written.
func emptyCapture(file *os.File) error {
	st, err := file.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return err
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%s: another process writes it; choose another file", file.Name())
	}
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOLCK) { // no locks there
		return fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return file.Truncate(0)
}

// listen opens the daemon's socket, making its directory where there is none.
func (f *daemonFlags) listen() (*shm.Listener, error) {
	path := daemonSocket(f.socket)
	mode, err := strconv.ParseUint(f.mode, 8, 32)
	if err != nil || mode > 0o777 {
		return nil, &exitError{exitUsage, fmt.Errorf("--socket-mode %q is not an octal mode, as 0660", f.mode)}
	}
	cfg := shm.ListenConfig{Path: path, Mode: os.FileMode(mode), UID: -1, GID: -1}
	if f.group != "" {
		if cfg.GID, err = groupID(f.group); err != nil {
			return nil, &exitError{exitUsage, err}
		}
	}
	dir := filepath.Dir(path)
	if f.socket == "" { // one of the usual places
		err = os.MkdirAll(filepath.Dir(dir), 0o755)
	}
	if err == nil {
		err = makeSocketDir(dir, cfg)
	}
	if err != nil {
		return nil, anotherPath(fmt.Errorf("the socket's directory cannot be used: %w", err))
	}
	l, err := shm.Listen(cfg)
	if err != nil {
		return nil, anotherPath(err)
	}
	return l, nil
}

// makeSocketDir makes the directory of a socket for those who may use the socket: its owner, its group, or all. One that is there stays
// as it is.
func makeSocketDir(dir string, cfg shm.ListenConfig) error {
	err := os.Mkdir(dir, 0o700)
	switch {
	case errors.Is(err, os.ErrExist):
		_, err = os.Stat(dir) // a link to nothing is no directory
		return err
	case err != nil:
		return err
	case cfg.Mode&0o007 != 0:
		return os.Chmod(dir, 0o755)
	case cfg.GID >= 0:
		return errors.Join(os.Chown(dir, -1, cfg.GID), os.Chmod(dir, 0o750))
	}
	return nil
}

// anotherPath says of a socket that cannot be made how to choose another.
func anotherPath(err error) error {
	const choose = "choose another path"
	if strings.HasSuffix(err.Error(), choose) {
		return fmt.Errorf("%w with --socket or SOFTROCE_SOCKET", err)
	}
	return fmt.Errorf("%w; "+choose+" with --socket or SOFTROCE_SOCKET", err)
}

// daemonSocket is where a daemon listens: the first place a program looks
// that this user can make.
func daemonSocket(flag string) string {
	if flag != "" {
		return flag
	}
	if s := os.Getenv("SOFTROCE_SOCKET"); s != "" {
		return s
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "softroce", "softroce.sock")
	}
	return "/run/softroce/softroce.sock"
}

func groupID(s string) (int, error) {
	if n, err := strconv.Atoi(s); err == nil {
		return n, nil
	}
	g, err := user.LookupGroup(s)
	if err != nil {
		return 0, fmt.Errorf("--socket-group: %w", err)
	}
	return strconv.Atoi(g.Gid)
}

// newLogger makes the daemon's logger.
func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: want debug, info, warn or error", level)
	}
	opts := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("--log-format %q: want text or json", format)
}

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/softroce/softroce/internal/metrics"
	"github.com/softroce/softroce/internal/nic"
)

// serveMetrics answers Prometheus on addr until stop is called. An empty addr
// serves nothing.
func serveMetrics(addr string, a *nic.Adapter, log *slog.Logger) (stop func(), err error) {
	mux := http.NewServeMux()
	mux.Handle("/metrics", metrics.Handler(a))
	return serveHTTP("metrics", addr, "/metrics", mux, 30*time.Second, log)
}

// serveProfiles answers go tool pprof on addr until stop is called. An empty
// addr serves nothing.
func serveProfiles(addr string, log *slog.Logger) (stop func(), err error) {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	return serveHTTP("pprof", addr, "/debug/pprof/", mux, 5*time.Minute, log)
}

// maxHTTPConns bounds the connections to an address that is served, each of which
// costs a descriptor and what its reader does not take; our own tuning. Further ones
// wait.
const maxHTTPConns = 64

// connLimit is a listener of so many connections at a time.
type connLimit struct {
	net.Listener
	room   chan struct{} // a value for each
	closed chan struct{}
	once   sync.Once
}

func limitConns(l net.Listener, most int) *connLimit {
	return &connLimit{Listener: l, room: make(chan struct{}, most), closed: make(chan struct{})}
}

// Accept waits for a connection, and for one to end where there are too many.
func (l *connLimit) Accept() (net.Conn, error) {
	select {
	case l.room <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.room
		return nil, err
	}
	return &limitedConn{Conn: c, limit: l}, nil
}

// Close ends the listener, also for who waits in Accept.
func (l *connLimit) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	limit *connLimit
	once  sync.Once
}

// Close ends the connection: there is room for another one.
func (c *limitedConn) Close() error {
	defer c.once.Do(func() { <-c.limit.room })
	return c.Conn.Close()
}

// serveHTTP serves h on addr for the flag of that name. A request may take so
// long: whoever reaches this address must not keep the daemon's descriptors.
func serveHTTP(flag, addr, path string, h http.Handler, longest time.Duration, log *slog.Logger) (stop func(), err error) {
	if addr == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w; choose another address, or port 0 for any", flag, err)
	}
	srv := &http.Server{
		Handler: h, ReadTimeout: 5 * time.Second, WriteTimeout: longest, IdleTimeout: time.Minute,
		MaxHeaderBytes: 8 << 10,
	}
	go func() {
		if err := srv.Serve(limitConns(l, maxHTTPConns)); err != nil && !errors.Is(err, http.ErrServerClosed) {
			log.Error(flag+" server ended", keyErr, err)
		}
	}()
	log.Info(flag, keyURL, "http://"+l.Addr().String()+path)
	return func() { _ = srv.Close() }, nil
}

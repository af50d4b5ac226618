package main

import (
	"errors"
	"net"
	"testing"
)

// So many connections at a time are accepted; the next one waits until one of them
// ends, or the listener.
func TestConnectionsAreLimited(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := limitConns(inner, 2)
	accept := func() net.Conn {
		t.Helper()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() }) // may be closed
		return c
	}
	for range 4 {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	first := accept()
	accept()
	if n := cap(l.room) - len(l.room); n != 0 {
		t.Errorf("room for %d more", n)
	}
	third := make(chan net.Conn, 1)
	go func() {
		c, _ := l.Accept() // nil: an error
		third <- c
	}()
	select {
	case <-third:
		t.Error("a third connection was accepted beside two")
	default:
	}
	for range 2 { // closed twice, it counts once
		_ = first.Close()
	}
	if c := <-third; c == nil {
		t.Fatal("no third connection when one had ended")
	}
	if n := cap(l.room) - len(l.room); n != 0 {
		t.Errorf("room for %d more", n)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		ended <- err
	}()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("a fourth: %v", err)
	}
}

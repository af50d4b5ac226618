package nic

import (
	"testing"

	"github.com/softroce/softroce/internal/uapi"
)

// TestQuietLog: a probe of the socket and a tool that only looks leave no line at the level Info; a program that begins to use the adapter
// leaves one when it comes and one when it goes.
func TestQuietLog(t *testing.T) {
	lines := &logLines{}
	a := startAdapter(t, func(c *Config) { c.Log = lines.logger() })
	probe := rawConn(t, a)
	if err := probe.c.Close(); err != nil {
		t.Fatal(err)
	}
	looker := rawHello(t, a)
	must[uapi.ListResourcesReply](looker, uapi.OpListResources, &uapi.ListResourcesRequest{Kind: uapi.ResourceQP})
	if err := looker.c.Close(); err != nil {
		t.Fatal(err)
	}
	alone := func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.conns) == 0
	}
	eventually(t, "both are gone", alone)
	if about := append(lines.with("program "), lines.with("connection")...); len(about) != 0 {
		t.Errorf("a probe and a look: got %q", about)
	}
	user := rawHello(t, a)
	user.pd()
	user.pd()
	if err := user.c.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the program is gone", alone)
	if came, went := lines.with("program connected"), lines.with("program gone"); len(came) != 1 || len(went) != 1 {
		t.Errorf("a program: got %q and %q, want a line each", came, went)
	}
}

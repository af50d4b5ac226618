package main

import "testing"

func TestPingsAreJudged(t *testing.T) {
	c := cmCase{pings: 2}
	client := "ping data: rdma-ping-0: AB\nping data: rdma-ping-1: BC\nbye\n"
	server := "server ping data: rdma-ping-0: AB\nserver ping data: rdma-ping-1: BC\n"
	if err := c.judge(server, client); err != nil {
		t.Errorf("two good pings: %v", err)
	}
	for name, bad := range map[string]string{
		"one ping":   "server ping data: rdma-ping-0: AB\n",
		"other data": "server ping data: rdma-ping-0: AB\nserver ping data: rdma-ping-1: BD\n",
		"no name":    "server ping data: rdma-ping-1: BC\nserver ping data: rdma-ping-0: AB\n",
	} {
		if c.judge(bad, client) == nil {
			t.Errorf("%s: nothing was found wrong", name)
		}
	}
}

func TestWatchedSeesOnce(t *testing.T) {
	n := 0
	w := &watched{text: "listening on", seen: func() { n++ }}
	for _, s := range []string{"softroce: liste", "ning on [::]:1\n", "listening on\n"} {
		if _, err := w.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	if n != 1 || w.String() != "softroce: listening on [::]:1\nlistening on\n" {
		t.Errorf("seen %d times in %q", n, w.String())
	}
}

func TestTablesAreJudged(t *testing.T) {
	c := cmCase{program: "cmtime"}
	table := "step  total ms  us / conn\nconnect : 1\ndestroy      :        0.46\n"
	if err := c.judge("", table); err != nil {
		t.Errorf("a table: %v", err)
	}
	for _, bad := range []string{"", "connecting\nevent: RDMA_CM_EVENT_REJECTED, error: 8\n", "step  total ms  us / conn\nconnect : 1\n"} {
		if c.judge("", bad) == nil {
			t.Errorf("nothing was found wrong in %q", bad)
		}
	}
}

func TestTransfersAreJudged(t *testing.T) {
	c, done := cmCase{program: "ucmatose"}, "cmatose: starting\ndata transfers complete\nreturn status 0\n"
	if err := c.judge(done, done); err != nil {
		t.Errorf("both complete: %v", err)
	}
	if c.judge(done, "receiving data transfers\n") == nil || c.judge("", done) == nil {
		t.Error("one end did not complete, and nothing was found wrong")
	}
}

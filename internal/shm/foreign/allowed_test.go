package foreign

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/softroce/softroce/internal/shm"
)

func TestAllowedRule(t *testing.T) {
	const sysPtrace = 1 << 19
	user := func(uid uint32, caps uint64) status {
		return status{uids: [4]uint32{uid, uid, uid, uid}, caps: caps, userNS: "user:[1]"}
	}
	with := func(s status, f func(*status)) status { f(&s); return s }
	rows := []struct {
		name     string
		peer     uint32
		us, them status
		why      string // "" means allowed
	}{
		{"same user", 1000, user(1000, 0), user(1000, 0), ""},
		{"the program may more", 1000, user(1000, 0), user(1000, sysPtrace), ""},
		{"root and root", 0, user(0, ^uint64(0)), user(0, ^uint64(0)), ""},
		{"root and root in a container", 0, user(0, ^uint64(0)), user(0, 0xff), ""},
		{"another user", 1001, user(1000, 0), user(1001, 0), "user 1001"},
		{"root and a user", 1000, user(0, ^uint64(0)), user(1000, 0), "user 0"},
		{"a user and root", 0, user(1000, 0), user(0, ^uint64(0)), "user 1000"},
		{"connected as one, now another", 1000, user(1000, 0), user(1001, 0), "user ids"},
		{"set-uid program", 1000, user(1000, 0), with(user(1000, 0), func(s *status) { s.uids[1] = 0 }), "user ids"},
		{"saved user differs", 1000, user(1000, 0), with(user(1000, 0), func(s *status) { s.uids[2] = 0 }), "user ids"},
		{"the adapter may trace anyone", 1000, user(1000, sysPtrace), user(1000, 0), "capabilities"},
		{"the adapter may something else", 1000, user(1000, 1), user(1000, sysPtrace), "capabilities"},
		{
			"all capabilities in a namespace of its own", 1000, user(1000, sysPtrace),
			with(user(1000, ^uint64(0)), func(s *status) { s.userNS = "user:[2]" }), "user namespace",
		},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			err := check(shm.Cred{PID: 7, UID: row.peer}, row.us, row.them)
			switch {
			case row.why == "" && err != nil:
				t.Errorf("refused: %v", err)
			case row.why != "" && !errors.Is(err, ErrNotAllowed):
				t.Errorf("got %v, want ErrNotAllowed", err)
			case row.why != "" && !strings.Contains(err.Error(), row.why):
				t.Errorf("reason %q does not speak of %q", err, row.why)
			}
		})
	}
}

func TestAllowedHere(t *testing.T) {
	me := shm.Cred{PID: os.Getpid(), UID: uint32(os.Geteuid())}
	if err := Allowed(me); err != nil {
		t.Errorf("of this very process: %v", err)
	}
	for _, row := range []struct {
		name string
		peer shm.Cred
		why  string
	}{
		{"invisible", shm.Cred{UID: me.UID}, "not visible"},
		{"no such process", shm.Cred{PID: 1 << 30, UID: me.UID}, "cannot learn"},
		{"another user connected", shm.Cred{PID: me.PID, UID: me.UID + 1}, "user"},
	} {
		if err := Allowed(row.peer); !errors.Is(err, ErrNotAllowed) || !strings.Contains(err.Error(), row.why) {
			t.Errorf("%s: %v, want ErrNotAllowed with %q", row.name, err, row.why)
		}
	}
}

func TestStatusParse(t *testing.T) {
	const good = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t9\t9\t9\t9\nCapEff:\t00000000000000ff\n"
	var s status
	if err := s.parse(good); err != nil || s.uids != [4]uint32{1, 2, 3, 4} || s.caps != 0xff {
		t.Errorf("parse: %+v, %v", s, err)
	}
	for _, bad := range []string{"", "Uid:\t1\t2\t3\nCapEff:\tff\n", "Uid:\t1\t2\t3\t4\n", "Uid:\t1\t2\t3\t4\nCapEff:\tzz\n", "Uid:\t-1\t2\t3\t4\nCapEff:\tff\n"} {
		var s status
		if err := s.parse(bad); err == nil {
			t.Errorf("parse of %q: no error, %+v", bad, s)
		}
	}
	// A name with a line break cannot forge a line: the kernel escapes it. Fields
	// are taken by the start of the line only.
	var forged status
	if err := forged.parse("Name:\tUid:\t0\t0\t0\t0\n" + strings.TrimPrefix(good, "Name:\tx\n")); err != nil || forged.uids[0] != 1 {
		t.Errorf("forged name: %+v, %v", forged, err)
	}
}

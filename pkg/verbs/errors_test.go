package verbs

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestErrorText(t *testing.T) {
	for _, c := range []struct {
		name string
		err  Error
		want string
	}{
		{"no text", Error{"modify QP", unix.EINVAL, ""}, "modify QP: invalid argument"},
		{"text", Error{"modify QP", unix.EINVAL, "path_mtu is 9"}, "modify QP: path_mtu is 9 (EINVAL)"},
		{"text that names the call", Error{"modify QP", unix.EINVAL, "modify QP: modify QP: path_mtu is 9"}, "modify QP: path_mtu is 9 (EINVAL)"},
		{"text that names another call", Error{"allocate MR", unix.EINVAL, "reg MR: no"}, "allocate MR: reg MR: no (EINVAL)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.err.Error(); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

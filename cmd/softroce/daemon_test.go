package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// The socket's directory is made for those who may use the socket, whatever the umask; one that is there stays as it is.
func TestSocketDirectory(t *testing.T) {
	group := strconv.Itoa(os.Getgid())
	for _, c := range []struct {
		name, mode, group string
		there             os.FileMode // mode of a directory that is there; 0: none is
		want              os.FileMode
	}{
		{"the owner's", "0600", "", 0, 0o700},
		{"a group's", "0660", group, 0, 0o750},
		{"everybody's", "0666", "", 0, 0o755},
		{"one that is there", "0600", "", 0o711, 0o711},
	} {
		dir := filepath.Join(t.TempDir(), "dir")
		if c.there != 0 {
			if err := os.Mkdir(dir, c.there); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(dir, c.there); err != nil {
				t.Fatal(err)
			}
		}
		f := daemonFlags{socket: filepath.Join(dir, "s"), mode: c.mode, group: c.group}
		l, err := f.listen()
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != c.want {
			t.Errorf("%s: %v, %v; want mode %v", c.name, st.Mode(), err, c.want)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A socket that cannot be made says how to choose another, once.
func TestSocketRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, socket := range []string{file, filepath.Join(file, "s"), filepath.Join(file+"2", "dir", "s")} {
		f := daemonFlags{socket: socket, mode: "0600"}
		l, err := f.listen()
		if err == nil {
			t.Errorf("%s: %v", socket, l.Close())
			continue
		}
		if text := err.Error(); !strings.HasSuffix(text, "choose another path with --socket or SOFTROCE_SOCKET") || strings.Count(text, "choose") != 1 {
			t.Errorf("%s: %q", socket, text)
		}
	}
}

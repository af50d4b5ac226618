package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

//go:generate go test -run TestReference -update .

var update = flag.Bool("update", false, "write docs/cli anew")

// docs/cli has a page for each command, made from the commands themselves.
func TestReference(t *testing.T) {
	const dir = "../../docs/cli"
	want := map[string][]byte{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		c.DisableAutoGenTag = true
		var b bytes.Buffer
		if err := doc.GenMarkdown(c, &b); err != nil {
			t.Fatal(err)
		}
		name := string(bytes.ReplaceAll([]byte(c.CommandPath()), []byte(" "), []byte("_"))) + ".md"
		want[name] = b.Bytes()
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				walk(sub)
			}
		}
	}
	root := newRoot()
	root.Version = "" // the page is of no version
	walk(root)
	if *update {
		writePages(t, dir, want)
	}
	have, err := filepath.Glob(dir + "/*.md")
	if err != nil {
		t.Fatal(err)
	}
	if len(have) != len(want) {
		t.Errorf("pages in docs/cli: got %d, want %d (make man)", len(have), len(want))
	}
	for name, text := range want {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(got, text) {
			t.Errorf("docs/cli/%s is not what the command says of itself: %v (make man)", name, err)
		}
	}
}

func writePages(t *testing.T, dir string, pages map[string][]byte) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range pages {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

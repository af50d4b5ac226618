package softroce_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	docLink    = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)
	makeTarget = regexp.MustCompile("(?m)(?:`|^)make ([a-z][a-z-]*)")
	target     = regexp.MustCompile(`(?m)^([a-z][a-z-]*):`)
)

// TestDocuments checks that what the documents point at exists: files by relative links, targets of the Makefile.
func TestDocuments(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, m := range target.FindAllStringSubmatch(string(makefile), -1) {
		targets[m[1]] = true
	}
	seen := 0
	err = filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && skipDir(name, d.Name()):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(name) != ".md":
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		seen++
		for _, complaint := range deadEnds(filepath.Dir(name), string(text), targets) {
			t.Errorf("%s: %s", name, complaint)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen == 0 {
		t.Fatal("found no document")
	}
}

// deadEnds lists the links and targets in a document of directory dir that lead nowhere.
func deadEnds(dir, text string, targets map[string]bool) []string {
	var found []string
	for _, m := range docLink.FindAllStringSubmatch(text, -1) {
		if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, m[1])); err != nil {
			found = append(found, "links to "+m[1]+", which is not there")
		}
	}
	for _, m := range makeTarget.FindAllStringSubmatch(text, -1) {
		if !targets[m[1]] {
			found = append(found, "names 'make "+m[1]+"', which is no target")
		}
	}
	return found
}

func TestDocumentsPlanted(t *testing.T) {
	targets := map[string]bool{"check": true}
	for text, want := range map[string]int{
		"[x](deps_test.go) and [y](deps_test.go#z)": 0,
		"[x](nowhere.md)":                  1,
		"[x](https://example.com/nowhere)": 0,
		"run `make check` or\nmake check":  0,
		"run `make coffee`":                1,
	} {
		if got := deadEnds(".", text, targets); len(got) != want {
			t.Errorf("%q: got %q, want %d complaints", text, got, want)
		}
	}
}

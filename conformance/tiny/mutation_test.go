package tiny

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/softroce/softroce/conformance/suite"
)

// TestTable: every mutation is named once, is in the code, and names statements that there are; every break in the code is
// in the table.
func TestTable(t *testing.T) {
	t.Parallel()
	code := inCode(t)
	seen := map[Mutation]bool{}
	specific := 0
	for _, b := range Mutations() {
		if seen[b.Name] {
			t.Errorf("%s is there twice", b.Name)
		}
		seen[b.Name] = true
		if !code[b.Name] {
			t.Errorf("%s: nothing does it", b.Name)
		}
		if b.What == "" {
			t.Errorf("%s does not say what it breaks", b.Name)
		}
		if len(b.IDs) > 0 {
			specific++
		}
		for _, id := range b.IDs {
			if _, ok := suite.Lookup(id); !ok {
				t.Errorf("%s: there is no statement %s", b.Name, id)
			}
		}
	}
	for m := range code {
		if !seen[m] {
			t.Errorf("%s is in the code and not in the table", m)
		}
	}
	if specific < 60 {
		t.Errorf("%d mutations that name a statement, want 60", specific)
	}
}

// inCode finds the mutations that the sources ask for.
func inCode(t *testing.T) map[Mutation]bool {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	out := map[Mutation]bool{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?:broken\(|need, name = \w+, |name = )"([a-z0-9-]+)"`).FindAllSubmatch(b, -1) {
			out[Mutation(m[1])] = true
		}
	}
	return out
}

package softroce_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	caseRow  = regexp.MustCompile(`(?m)^\| (F\d+) \|`)
	testName = regexp.MustCompile(`(?m)^func Test((?:F\d+)+)[^\d]`)
	caseID   = regexp.MustCompile(`F\d+`)
)

// TestFieldCases checks that each case of docs/field-cases.md is a test with its
// number in the name, and that each number in a test's name is such a case.
func TestFieldCases(t *testing.T) {
	doc, err := os.ReadFile("docs/field-cases.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := casesListed(string(doc))
	if len(listed) == 0 {
		t.Fatal("docs/field-cases.md lists no case")
	}
	var tested []string
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		src, err := os.ReadFile(path)
		tested = append(tested, casesTested(string(src))...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range listed {
		if !slices.Contains(tested, id) {
			t.Errorf("case %s of docs/field-cases.md has no test with its number in the name", id)
		}
	}
	for _, id := range tested {
		if !slices.Contains(listed, id) {
			t.Errorf("a test names case %s, which docs/field-cases.md does not have", id)
		}
	}
}

func casesListed(doc string) (ids []string) {
	for _, m := range caseRow.FindAllStringSubmatch(doc, -1) {
		ids = append(ids, m[1])
	}
	return ids
}

func casesTested(src string) (ids []string) {
	for _, m := range testName.FindAllStringSubmatch(src, -1) {
		ids = append(ids, caseID.FindAllString(m[1], -1)...)
	}
	return ids
}

func TestFieldCasesPlanted(t *testing.T) {
	src := "func TestF1EveryLength(t\nfunc TestF2F3One(t\nfunc TestF14_Bulk(t\nfunc TestFence(t\n\tTestF9(\nfunc TestF57x9(t\n"
	if got := casesTested(src); !slices.Equal(got, []string{"F1", "F2", "F3", "F14", "F57"}) {
		t.Errorf("cases in names of tests: got %v", got)
	}
	if got := casesListed("| case |\n| F1 | x |\n| F22 | see F9 |\n|F3|\n"); !slices.Equal(got, []string{"F1", "F22"}) {
		t.Errorf("cases in the table: got %v", got)
	}
}

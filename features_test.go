package softroce_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// featureCases are the names in internal/featuretest's tables.
var (
	featureCase = regexp.MustCompile(`(?m)^\t\{"([a-z0-9-]+)", `)
	quoted      = regexp.MustCompile("`([^`]+)`")
	testFunc    = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
)

// feature is a row of docs/features.md.
type feature struct {
	name, ours string
	shown      []string
}

func featuresListed(doc string) (rows []feature) {
	for line := range strings.Lines(doc) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 6 || strings.HasPrefix(cells[0], "-") {
			continue
		}
		f := feature{name: strings.TrimSpace(cells[0]), ours: strings.TrimSpace(cells[1])}
		if f.name == "feature" {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[5], -1) {
			f.shown = append(f.shown, m[1])
		}
		rows = append(rows, f)
	}
	return rows
}

// wrongFeatures says what is wrong between the table and the tests.
func wrongFeatures(rows []feature, cases, tests []string, interop string) (wrong []string) {
	var named []string
	for _, f := range rows {
		named = append(named, f.shown...)
		if f.ours == "yes" && len(f.shown) == 0 {
			wrong = append(wrong, f.name+": yes, and no test shows it")
		}
		for _, name := range f.shown {
			ok := slices.Contains(cases, name) || slices.Contains(tests, name)
			if group, rest, found := strings.Cut(name, "/"); found {
				ok = strings.Contains(interop, `"`+name) || strings.Contains(interop, `"`+group+`/"`) && strings.Contains(interop, `"`+rest)
			}
			if !ok {
				wrong = append(wrong, f.name+": there is no test "+name)
			}
		}
	}
	for _, c := range cases {
		if !slices.Contains(named, c) {
			wrong = append(wrong, "no row names the case "+c)
		}
	}
	return wrong
}

// sources reads the Go files below dir whose names match.
func sources(t *testing.T, dir string, match func(path string) bool) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !match(path) {
			return err
		}
		src, err := os.ReadFile(path)
		all.Write(src)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func names(re *regexp.Regexp, src string) (found []string) {
	for _, m := range re.FindAllStringSubmatch(src, -1) {
		found = append(found, m[1])
	}
	return found
}

// TestFeatureTable: each row of docs/features.md that says yes names tests that
// exist, and each case of internal/featuretest is named.
func TestFeatureTable(t *testing.T) {
	doc, err := os.ReadFile("docs/features.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := featuresListed(string(doc))
	if len(rows) == 0 {
		t.Fatal("docs/features.md lists no feature")
	}
	isTest := func(path string) bool { return strings.HasSuffix(path, "_test.go") }
	isGo := func(path string) bool { return strings.HasSuffix(path, ".go") }
	cases := names(featureCase, sources(t, "internal/featuretest", isGo))
	tests := names(testFunc, sources(t, ".", isTest))
	for _, w := range wrongFeatures(rows, cases, tests, sources(t, "conformance/interop/peer", isGo)) {
		t.Error(w)
	}
}

func TestFeatureTablePlanted(t *testing.T) {
	doc := "| feature | softroce | a | b | c | shown by |\n|---|---|---|---|---|---|\n" +
		"| one | yes | | | | `one` `TestOne` `uc/one` |\n| two | yes | | | | |\n| three | no | | | | |\n| four | yes | | | | `gone` `uc/gone` |\n"
	got := wrongFeatures(featuresListed(doc), []string{"one", "lonely"}, []string{"TestOne"}, `case{"uc/one"}`)
	want := []string{
		"two: yes, and no test shows it", "four: there is no test gone", "four: there is no test uc/gone", "no row names the case lonely",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Package softroce_test keeps the rules that no single package can keep: who may import whom, and where system
// calls, clocks, dice and goroutines may be. deps_table_test.go holds the rules as data, docs/architecture.md
// explains them.
package softroce_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestImports checks every Go file of the repository, whatever its build constraints, against the table.
func TestImports(t *testing.T) {
	files := parseTree(t, ".")
	if len(files) == 0 {
		t.Fatal("found no Go file")
	}
	for _, f := range files {
		for _, v := range check(f) {
			t.Error(v)
		}
	}
}

// TestRuleTable checks the table itself: every name in it is known, no circle is allowed by it, and the
// document that explains it names every row.
func TestRuleTable(t *testing.T) {
	doc, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range rules {
		if seen[r.path] {
			t.Errorf("row %s: there are two", r.path)
		}
		seen[r.path] = true
		if !strings.Contains(string(doc), "`"+r.path+"`") {
			t.Errorf("docs/architecture.md: its table of packages does not name `%s`", r.path)
		}
		if r.is == "" || r.never == "" {
			t.Errorf("row %s: without a purpose or a bound", r.path)
		}
		for _, p := range slices.Concat(r.may, r.testsMay) {
			if _, ok := ruleFor(p); !ok && !isModule(p) {
				t.Errorf("row %s: %q is neither a package of the table nor an approved module", r.path, p)
			}
		}
	}
	if c := circle(); c != nil {
		t.Errorf("the table allows a circle: %s", strings.Join(c, " -> "))
	}
}

// sourceFile is one parsed file. pkg is its package's path below the module's, "" for the root.
type sourceFile struct {
	name, pkg string
	test      bool
	fset      *token.FileSet
	ast       *ast.File
}

// check lists what a file does against the rules, one sentence each, with the reason.
func check(f sourceFile) []string {
	r, ok := ruleFor(f.pkg)
	if !ok {
		return []string{fmt.Sprintf("%s: package %q is not in the table of deps_table_test.go and docs/architecture.md: add a row that says what it is and what it may import", f.name, f.pkg)}
	}
	var found []string
	names := map[string]string{} // the file's name for an import, to its path
	for _, spec := range f.ast.Imports {
		p := strings.Trim(spec.Path.Value, `"`)
		if why := r.bars(p, f.test); why != "" {
			found = append(found, fmt.Sprintf("%s: imports %s: %s", f.fset.Position(spec.Pos()), p, why))
		}
		names[importName(spec, p)] = p
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if why := r.barsNode(n, names, f.test); why != "" {
			found = append(found, fmt.Sprintf("%s: %s", f.fset.Position(n.Pos()), why))
		}
		return true
	})
	return found
}

// bars says why a package under this rule may not import p; "" means it may.
func (r rule) bars(p string, test bool) string {
	within := strings.TrimPrefix(p, modulePath+"/")
	switch {
	case p == "C":
		return "there is no cgo in this project: it must build with Go alone"
	case p == "unsafe" && !r.unsafe:
		return "unsafe is kept to internal/shm, internal/shm/foreign, pkg/udp4791 and internal/rawudp"
	case p == sysUnix && !r.unix && !(test && !r.pure):
		return r.refuse("golang.org/x/sys/unix is for the packages that meet the kernel")
	case p == sysUnix:
		return ""
	case within != p:
		if r.allows(within, test) {
			return ""
		}
		return r.refuse("not among what it may import")
	case strings.Contains(strings.SplitN(p, "/", 2)[0], "."):
		if m := moduleOf(p); m != "" && r.allows(m, test) {
			return ""
		}
		return r.refuse("not among the modules it may import")
	}
	if why := r.noStd[p]; why != "" && !test {
		return r.refuse(why)
	}
	return ""
}

// refuse puts the row's own words behind a reason.
func (r rule) refuse(why string) string {
	return fmt.Sprintf("%s (%s is %s; never in it: %s)", why, r.path, r.is, r.never)
}

// allows reports whether p, a package of the module or another module, is in the row.
func (r rule) allows(p string, test bool) bool {
	list := r.may
	if test {
		list = slices.Concat(r.may, r.testsMay, []string{r.path})
	}
	target, ok := ruleFor(p)
	return slices.Contains(list, p) || ok && slices.Contains(list, target.path) ||
		strings.HasSuffix(r.path, "/...") && ok && target.path == r.path
}

// barsNode says why a piece of code may not be in a package under this rule.
func (r rule) barsNode(n ast.Node, names map[string]string, test bool) string {
	switch n := n.(type) {
	case *ast.SelectorExpr:
		id, ok := n.X.(*ast.Ident)
		if !ok || names[id.Name] == "" {
			return ""
		}
		call := names[id.Name] + "." + n.Sel.Name
		if rawCalls[call] && !r.unsafe {
			return call + ": raw system calls are kept to internal/shm, internal/shm/foreign, pkg/udp4791 and internal/rawudp"
		}
		if why := impure[call]; r.pure && !test && why != "" {
			return r.refuse(call + ": " + why)
		}
	case *ast.GoStmt:
		if r.pure && !test {
			return r.refuse("starts a goroutine")
		}
	case *ast.ChanType, *ast.SelectStmt:
		if r.noChannels && !test {
			return r.refuse("uses a channel")
		}
	}
	return ""
}

// ruleFor finds the row of a package: its own, or the nearest "above/..." one.
func ruleFor(pkg string) (rule, bool) {
	for _, r := range rules {
		if r.path == pkg || r.path == "." && pkg == "" {
			return r, true
		}
	}
	for p := pkg; p != "." && p != ""; p = path.Dir(p) {
		for _, r := range rules {
			if r.path == p+"/..." {
				return r, true
			}
		}
	}
	return rule{}, false
}

// moduleOf is the approved module that holds the import path p, or "".
func moduleOf(p string) string {
	for _, m := range modules {
		if p == m || strings.HasPrefix(p, m+"/") {
			return m
		}
	}
	return ""
}

func isModule(p string) bool { return p == sysUnix || slices.Contains(modules, p) }

// importName is the name by which a file speaks of an import.
func importName(spec *ast.ImportSpec, p string) string {
	if spec.Name != nil {
		return spec.Name.Name
	}
	base := path.Base(p)
	if len(base) > 1 && base[0] == 'v' && strings.Trim(base[1:], "0123456789") == "" {
		base = path.Base(path.Dir(p))
	}
	return base
}

// circle finds a way from a row back to itself through what rows may import, or nil.
func circle() []string {
	const inProgress, done = 1, 2
	state := map[string]int{}
	var walk func(p string) []string
	walk = func(p string) []string {
		switch state[p] {
		case inProgress:
			return []string{p}
		case done:
			return nil
		}
		state[p] = inProgress
		r, _ := ruleFor(p)
		for _, next := range r.may {
			if _, ok := ruleFor(next); !ok {
				continue
			}
			if c := walk(next); c != nil {
				return append([]string{p}, c...)
			}
		}
		state[p] = done
		return nil
	}
	for _, r := range rules {
		if c := walk(r.path); c != nil {
			return c
		}
	}
	return nil
}

// parseTree parses the Go files below dir that belong to this module.
func parseTree(t *testing.T, dir string) []sourceFile {
	t.Helper()
	var files []sourceFile
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if skipDir(name, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		f, err := parse(filepath.ToSlash(name), nil)
		files = append(files, f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// skipDir reports whether a directory holds nothing of this module: the go command ignores it, or it has a
// go.mod of its own.
func skipDir(name, base string) bool {
	if name == "." {
		return false
	}
	if base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return true
	}
	_, err := os.Stat(filepath.Join(name, "go.mod"))
	return err == nil
}

// parse reads one file; src as for parser.ParseFile.
func parse(name string, src any) (sourceFile, error) {
	fset := token.NewFileSet()
	a, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	pkg := path.Dir(name)
	if pkg == "." {
		pkg = ""
	}
	return sourceFile{name: name, pkg: pkg, test: strings.HasSuffix(name, "_test.go"), fset: fset, ast: a}, err
}

// TestRulePlantedViolations shows that each rule fires, and that legal code passes.
func TestRulePlantedViolations(t *testing.T) {
	for _, c := range planted {
		t.Run(c.name, func(t *testing.T) {
			f, err := parse(c.file, c.src)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(check(f), "\n")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("%s with %q\n got: %s\nwant: %s", c.file, c.src, got, c.want)
			}
		})
	}
}

// TestLintRules keeps the depguard rules of .golangci.yml equal to the table. SOFTROCE_UPDATE=1 rewrites them.
func TestLintRules(t *testing.T) {
	const file, begin, end = ".golangci.yml", "# begin: from deps_table_test.go\n", "        # end: from deps_table_test.go\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok1 := strings.Cut(string(text), begin)
	got, tail, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s: no lines %q and %q", file, begin, end)
	}
	want := depguardRules()
	if got == want {
		return
	}
	if os.Getenv("SOFTROCE_UPDATE") != "" {
		if err := os.WriteFile(file, []byte(head+begin+want+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s: the import rules differ from the table; run SOFTROCE_UPDATE=1 go test -run TestLintRules .", file)
}

// depguardRules writes the table as depguard rules, for what is not a test.
func depguardRules() string {
	var b strings.Builder
	for _, r := range rules {
		if r.path == "." {
			continue
		}
		dir, deep := strings.CutSuffix(r.path, "/...")
		glob := "*.go"
		if deep {
			glob = "**/*.go"
		}
		fmt.Fprintf(&b, "        %s:\n          list-mode: strict\n          files:\n", strings.NewReplacer("/...", "", "/", "-").Replace(r.path))
		fmt.Fprintf(&b, "            - \"**/%s/%s\"\n", dir, glob)
		if deep {
			fmt.Fprintf(&b, "            - \"**/%s/*.go\"\n", dir)
			for _, other := range rules {
				below, whole := strings.CutSuffix(other.path, "/...")
				if !strings.HasPrefix(below, dir+"/") {
					continue
				}
				fmt.Fprintf(&b, "            - \"!**/%s/*.go\"\n", below)
				if whole {
					fmt.Fprintf(&b, "            - \"!**/%s/**/*.go\"\n", below)
				}
			}
		}
		b.WriteString("            - \"!$test\"\n          allow:\n            - $gostd\n")
		writeAllowed(&b, r, deep)
		writeDenied(&b, r)
	}
	return b.String()
}

func writeAllowed(b *strings.Builder, r rule, deep bool) {
	allowed := slices.Clone(r.may)
	if r.unix {
		allowed = append(allowed, sysUnix)
	}
	if deep {
		allowed = append(allowed, r.path)
	}
	for _, p := range slices.Sorted(slices.Values(allowed)) {
		switch dir, below := strings.CutSuffix(p, "/..."); {
		case isModule(p):
			fmt.Fprintf(b, "            - %s\n", p)
		case below:
			fmt.Fprintf(b, "            - %s/%s\n", modulePath, dir)
		default:
			fmt.Fprintf(b, "            - %s/%s$\n", modulePath, p)
		}
	}
}

func writeDenied(b *strings.Builder, r rule) {
	denied := maps.Clone(r.noStd)
	if denied == nil {
		denied = map[string]string{}
	}
	if !r.unsafe {
		denied["unsafe"] = "unsafe is kept to internal/shm, pkg/udp4791 and internal/rawudp"
	}
	if len(denied) == 0 {
		return
	}
	b.WriteString("          deny:\n")
	for _, p := range slices.Sorted(maps.Keys(denied)) {
		fmt.Fprintf(b, "            - pkg: %s$\n              desc: %q\n", p, denied[p])
	}
}

package packaging

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const dockerfile = "container/Dockerfile"

// instruction is one step of a Dockerfile.
type instruction struct{ op, args string }

// stage is what one FROM begins.
type stage struct {
	base, name string
	steps      []instruction
}

// all gives the arguments of every step of a kind.
func (s stage) all(op string) []string {
	var found []string
	for _, i := range s.steps {
		if i.op == op {
			found = append(found, i.args)
		}
	}
	return found
}

// one gives the arguments of the only step of a kind, "" if there is another
// number of them.
func (s stage) one(op string) string {
	if a := s.all(op); len(a) == 1 {
		return a[0]
	}
	return ""
}

var known = []string{"ARG", "FROM", "WORKDIR", "COPY", "RUN", "LABEL", "ENV", "USER", "VOLUME", "HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "CMD"}

// parseDockerfile reads the Dockerfile into stages; what comes before the first
// FROM is a stage without a base.
func parseDockerfile() ([]stage, error) {
	text, err := os.ReadFile(dockerfile)
	if err != nil {
		return nil, err
	}
	lines := regexp.MustCompile(`(?m)^\s*#.*\n`).ReplaceAllString(string(text), "")
	lines = strings.ReplaceAll(lines, "\\\n", " ")
	stages := []stage{{}}
	for line := range strings.Lines(lines) {
		op, args, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case op == "":
			continue
		case !slices.Contains(known, op):
			return nil, fmt.Errorf("%s: no instruction %q", dockerfile, op)
		case op == "FROM":
			f := strings.Fields(args)
			s := stage{base: f[0]}
			if len(f) == 3 && f[1] == "AS" {
				s.name = f[2]
			}
			stages = append(stages, s)
		default:
			last := &stages[len(stages)-1]
			last.steps = append(last.steps, instruction{op, strings.TrimSpace(args)})
		}
	}
	return stages, nil
}

func image(t *testing.T) (build, final stage) {
	t.Helper()
	stages, err := parseDockerfile()
	if err != nil {
		t.Fatal(err)
	}
	if len(stages) != 3 {
		t.Fatalf("%d stages, want the arguments, the build and the image", len(stages))
	}
	return stages[1], stages[2]
}

// buildImageBinary runs the step that builds the command, with its environment
// and flags, into out.
func buildImageBinary(out string) error {
	stages, err := parseDockerfile()
	if err != nil {
		return err
	}
	for _, s := range stages {
		for _, step := range s.all("RUN") {
			if !strings.Contains(step, "go build") {
				continue
			}
			c := exec.Command("sh", "-ec", strings.Replace(step, "/out/softroce", "'"+out+"'", 1))
			c.Dir = ".."
			if text, err := c.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: RUN %s: %w\n%s", dockerfile, step, err, text)
			}
			return nil
		}
	}
	return fmt.Errorf("%s has no step that builds the command", dockerfile)
}

// execForm reads the JSON form, which needs no shell in the image.
func execForm(t *testing.T, what, args string) []string {
	t.Helper()
	var words []string
	if err := json.Unmarshal([]byte(args), &words); err != nil || len(words) == 0 {
		t.Fatalf("%s %s is not in the exec form, and the image has no shell: %v", what, args, err)
	}
	return words
}

// The image has no shell, no root and one command, and says how it is asked for
// its health.
func TestDockerfile(t *testing.T) {
	build, final := image(t)
	if final.base != "scratch" || build.name != "build" {
		t.Errorf("the image is from %q, the build stage is %q", final.base, build.name)
	}
	uid, _, _ := strings.Cut(final.one("USER"), ":")
	if n, err := strconv.Atoi(uid); err != nil || n == 0 {
		t.Errorf("USER %s: want a number other than 0, so that Kubernetes sees that it is not root", final.one("USER"))
	}
	for _, c := range final.all("COPY") {
		if !strings.HasPrefix(c, "--from=build ") {
			t.Errorf("COPY %s: not from the build", c)
		}
	}
	health := final.one("HEALTHCHECK")
	at := strings.Index(health, "CMD ")
	if at < 0 {
		t.Fatalf("HEALTHCHECK %s", health)
	}
	for _, args := range [][]string{execForm(t, "HEALTHCHECK", health[at+4:])[1:], execForm(t, "CMD", final.one("CMD"))} {
		takes(t, args)
	}
	socket := strings.TrimPrefix(final.one("ENV"), "SOFTROCE_SOCKET=")
	if path.Dir(socket) != final.one("VOLUME") {
		t.Errorf("the socket %s is not on the volume %s", socket, final.one("VOLUME"))
	}
}

// takes checks that the command knows the words and flags.
func takes(t *testing.T, args []string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), softroce, append(slices.Clone(args), "--help")...).CombinedOutput(); err != nil {
		t.Errorf("softroce %q: %v: %s", args, err, out)
	}
}

// The image is built with the Go that the module asks for.
func TestDockerfileGoVersion(t *testing.T) {
	mod := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "../go.mod"))
	arg := regexp.MustCompile(`(?m)^ARG GO_VERSION=(\S+)`).FindStringSubmatch(read(t, dockerfile))
	if mod == nil || arg == nil || mod[1] != arg[1] {
		t.Errorf("go.mod: %q, %s: %q", mod, dockerfile, arg)
	}
}

// The context that the ignore file leaves has every file of the build.
func TestDockerContext(t *testing.T) {
	rules := strings.Fields(regexp.MustCompile(`(?m)^#.*`).ReplaceAllString(read(t, dockerfile+".dockerignore"), ""))
	if sent(rules, "packaging/doc.go") || sent(rules, "pkg/bth/x_test.go") || !sent(rules, "pkg/bth/bth.go") {
		t.Error("the ignore file is not understood")
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	const format = `{{if .Module}}{{if .Module.Main}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}
{{end}}{{range .SFiles}}{{$d}}/{{.}}
{{end}}{{range .HFiles}}{{$d}}/{{.}}
{{end}}{{range .EmbedFiles}}{{$d}}/{{.}}
{{end}}{{end}}{{end}}`
	files := strings.Fields(command(t, "go", "list", "-deps", "-f", format, "../cmd/softroce"))
	if len(files) < 100 {
		t.Fatalf("only %d files", len(files))
	}
	for _, f := range append(files, root+"/go.mod", root+"/go.sum") {
		if name := strings.TrimPrefix(f, root+"/"); !sent(rules, name) {
			t.Errorf("%s is needed for the build, and the ignore file leaves it out", name)
		}
	}
}

// sent applies the rules of an ignore file in their order; the last one that
// fits decides.
func sent(rules []string, name string) bool {
	in := true
	for _, r := range rules {
		pattern, again := strings.CutPrefix(r, "!")
		if fits(pattern, name) {
			in = again
		}
	}
	return in
}

// fits reports whether a pattern names the file or a directory above it.
func fits(pattern, name string) bool {
	anywhere, deep := strings.CutPrefix(pattern, "**/")
	for p := name; p != "."; p = path.Dir(p) {
		target := p
		if deep {
			target = path.Base(p)
		}
		if ok, err := path.Match(anywhere, target); ok && err == nil {
			return true
		}
	}
	return false
}

package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/softroce/softroce/internal/testaddr"
)

// action is the metadata of a composite action.
type action struct {
	Name        string
	Description string
	Inputs      map[string]struct {
		Description string
		Required    bool
		Default     string
	}
	Outputs map[string]struct{ Description, Value string }
	Runs    struct {
		Using string
		Steps []actionStep
	}
}

type actionStep struct {
	Name, ID, Shell, Run string
	Env                  map[string]string
}

func theAction(t *testing.T) action {
	t.Helper()
	var a action
	dec := yaml.NewDecoder(strings.NewReader(read(t, "ci/action.yml")))
	dec.KnownFields(true)
	if err := dec.Decode(&a); err != nil {
		t.Fatalf("action.yml: %v", err)
	}
	if a.Runs.Using != "composite" || len(a.Runs.Steps) == 0 {
		t.Fatalf("action.yml runs %+v", a.Runs)
	}
	return a
}

var expression = regexp.MustCompile(`\$\{\{\s*([a-zA-Z_.-]+)\s*\}\}`)

// runner is a stand-in for what runs a job: it has the files that steps write to.
type runner struct {
	t       *testing.T
	dir     string
	inputs  map[string]string
	outputs map[string]string // by steps.ID.outputs.NAME
	out     string
}

func newRunner(t *testing.T, a action, inputs map[string]string) *runner {
	t.Helper()
	r := &runner{t: t, dir: shortDir(t), inputs: inputs, outputs: map[string]string{}}
	for name, in := range a.Inputs {
		if _, given := inputs[name]; !given {
			r.inputs[name] = in.Default
		}
	}
	return r
}

// expand replaces expressions; one that means nothing fails the test, where a
// real runner would put nothing.
func (r *runner) expand(s string) string {
	return expression.ReplaceAllStringFunc(s, func(e string) string {
		name := expression.FindStringSubmatch(e)[1]
		if in, ok := strings.CutPrefix(name, "inputs."); ok {
			if v, ok := r.inputs[in]; ok {
				return v
			}
		}
		if name == "github.action_path" {
			dir, err := filepath.Abs("ci")
			if err != nil {
				r.t.Fatal(err)
			}
			return dir
		}
		v, ok := r.outputs[name]
		if !ok {
			r.t.Errorf("the expression %s means nothing", e)
		}
		return v
	})
}

// pairs reads a file of NAME=VALUE lines that steps appended to.
func (r *runner) pairs(file string) map[string]string {
	m := map[string]string{}
	b, _ := os.ReadFile(filepath.Join(r.dir, file)) // none: nothing was written
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		m[name] = value
	}
	return m
}

func (r *runner) environment() []string {
	env := []string{"RUNNER_TEMP=" + filepath.Join(r.dir, "temp")}
	for _, f := range []string{"GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_PATH"} {
		env = append(env, f+"="+filepath.Join(r.dir, f))
	}
	for name, value := range r.pairs("GITHUB_ENV") {
		env = append(env, name+"="+value)
	}
	path := os.Getenv("PATH")
	b, _ := os.ReadFile(filepath.Join(r.dir, "GITHUB_PATH")) // none: nothing was added
	for line := range strings.Lines(string(b)) {
		path = strings.TrimSpace(line) + ":" + path
	}
	return append(append(os.Environ(), env...), "PATH="+path)
}

// step runs one step as a runner does: bash, which stops at the first error.
func (r *runner) step(s actionStep) error {
	r.t.Helper()
	env := r.environment()
	for name, value := range s.Env {
		env = append(env, name+"="+r.expand(value))
	}
	c := exec.CommandContext(r.t.Context(), "bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", s.Run)
	c.Env = env
	out, err := os.Create(filepath.Join(r.dir, "out")) // a file: the daemon that a step leaves would hold a pipe open
	if err != nil {
		r.t.Fatal(err)
	}
	defer out.Close()
	c.Stdout, c.Stderr = out, out
	err = c.Run()
	r.out = read(r.t, out.Name())
	for name, value := range r.pairs("GITHUB_OUTPUT") {
		r.outputs["steps."+s.ID+".outputs."+name] = value
	}
	return err
}

// The steps of the action build the command where the action lies, start an
// adapter and leave it to the steps that follow.
func TestActionRuns(t *testing.T) {
	needs(t, "bash", "bash")
	a := theAction(t)
	r := newRunner(t, a, map[string]string{"address": testaddr.Take(t, 1)[0].String(), "args": "--name ci0  --workers 1"})
	if err := os.Mkdir(filepath.Join(r.dir, "temp"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, s := range a.Runs.Steps {
		if err := r.step(s); err != nil {
			t.Fatalf("%s: %v\n%s", s.Name, err, r.out)
		}
	}
	pid, err := strconv.Atoi(r.expand(a.Outputs["pid"].Value))
	if err != nil || pid < 2 {
		t.Fatalf("output pid: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) }) // gone already
	next := actionStep{Run: `softroce devinfo; test "$SOFTROCE_SOCKET" = "$SOCKET"`, Env: map[string]string{"SOCKET": a.Outputs["socket"].Value}}
	if err := r.step(next); err != nil || !strings.Contains(r.out, "ci0") {
		t.Errorf("the next step: %v\n%s", err, r.out)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Errorf("output pid: %v", err)
	}
	log := r.expand(a.Outputs["log"].Value)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); !strings.Contains(read(t, log), "msg=stopping"); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("the daemon does not stop:\n%s", read(t, log))
		}
	}
}

// An adapter that cannot start fails the job at once, with the daemon's own words.
func TestActionFails(t *testing.T) {
	needs(t, "bash", "bash")
	a := theAction(t)
	r := newRunner(t, a, map[string]string{"address": "192.0.2.99", "binary": softroce})
	if err := os.Mkdir(filepath.Join(r.dir, "temp"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := r.step(a.Runs.Steps[0]); err != nil {
		t.Fatalf("%v\n%s", err, r.out)
	}
	if err := r.step(a.Runs.Steps[1]); err == nil || !strings.Contains(r.out, "::error::") || !strings.Contains(r.out, "192.0.2.99") {
		t.Errorf("%v, %s; want an error that names the address", err, r.out)
	}
	if env := r.pairs("GITHUB_ENV"); len(env) != 0 {
		t.Errorf("a failed start exports %v", env)
	}
}

// What a user gives reaches a script as a variable, never as a part of its text,
// and the scripts are sound.
func TestActionScripts(t *testing.T) {
	for _, s := range theAction(t).Runs.Steps {
		if s.Shell != "bash" || s.ID == "" {
			t.Errorf("step %q: shell %q, id %q; a composite action's step needs both", s.Name, s.Shell, s.ID)
		}
		if strings.Contains(s.Run, "${{") {
			t.Errorf("step %q has an expression in its script", s.Name)
		}
		file := filepath.Join(t.TempDir(), "step.sh")
		write(t, file, s.Run)
		if tool, err := exec.LookPath("shellcheck"); err == nil {
			command(t, tool, "-s", "bash", file)
		} else {
			t.Logf("shellcheck is not installed: %s is not checked by it", s.Name)
		}
	}
}

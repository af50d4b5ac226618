package packaging

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// as decodes a part of a manifest again, into v.
func as(t *testing.T, part, v any) {
	t.Helper()
	text, err := yaml.Marshal(part)
	if err == nil {
		err = yaml.Unmarshal(text, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// podSpec is what the tests look at in a pod.
type podSpec struct {
	HostNetwork     bool `yaml:"hostNetwork"`
	SecurityContext struct {
		RunAsNonRoot       bool                  `yaml:"runAsNonRoot"`
		RunAsUser          int                   `yaml:"runAsUser"`
		RunAsGroup         int                   `yaml:"runAsGroup"`
		SupplementalGroups []int                 `yaml:"supplementalGroups"`
		SeccompProfile     struct{ Type string } `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
	Containers     []container
	InitContainers []container `yaml:"initContainers"`
	Volumes        []struct{ Name string }
}

type probe struct{ Exec struct{ Command []string } }

type container struct {
	Name, Image     string
	Command, Args   []string
	Env             []struct{ Name, Value string }
	VolumeMounts    []struct{ Name, MountPath string } `yaml:"volumeMounts"`
	StartupProbe    probe                              `yaml:"startupProbe"`
	ReadinessProbe  probe                              `yaml:"readinessProbe"`
	LivenessProbe   probe                              `yaml:"livenessProbe"`
	SecurityContext struct {
		AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
		RunAsUser                *int  `yaml:"runAsUser"`
		Capabilities             struct{ Drop, Add []string }
	} `yaml:"securityContext"`
	Resources struct{ Requests, Limits map[string]string }
}

// manifests gives every object of the manifests, by FILE KIND/NAME.
func manifests(t *testing.T) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob("kubernetes/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d manifests, %v", len(files), err)
	}
	all := map[string]map[string]any{}
	for _, f := range files {
		for _, doc := range documents(t, f) {
			name, _ := doc["metadata"].(map[string]any)
			all[fmt.Sprintf("%s %v/%v", path.Base(f), doc["kind"], name["name"])] = doc
		}
	}
	return all
}

// pods gives the pods that the manifests make, by the same names.
func pods(t *testing.T) map[string]podSpec {
	t.Helper()
	all := map[string]podSpec{}
	for name, doc := range manifests(t) {
		spec, _ := doc["spec"].(map[string]any)
		if template, ok := spec["template"].(map[string]any); ok {
			spec, _ = template["spec"].(map[string]any)
		}
		if spec["containers"] == nil {
			continue
		}
		var p podSpec
		as(t, spec, &p)
		all[name] = p
	}
	return all
}

// Every field of the manifests is one of the API's, of its type, and what the
// API requires is there.
func TestManifestFields(t *testing.T) {
	for name, doc := range manifests(t) {
		kind, _ := doc["kind"].(string)
		if doc["apiVersion"] != group[kind] {
			t.Errorf("%s: apiVersion %v, want %q", name, doc["apiVersion"], group[kind])
			continue
		}
		for _, c := range complaints(kind, kind, doc) {
			t.Errorf("%s: %s", name, c)
		}
	}
	bad := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": 1}, "spec": map[string]any{"container": 2}}
	if got := complaints("Pod", "Pod", bad); len(got) != 3 {
		t.Errorf("a bad pod: %q", got)
	}
}

// Selectors select the pods that they are for.
func TestManifestSelectors(t *testing.T) {
	type labels = map[string]string
	templates := map[string]labels{}
	all := manifests(t)
	for name, doc := range all {
		var o struct {
			Spec struct {
				Template struct{ Metadata struct{ Labels labels } }
			}
		}
		as(t, doc, &o)
		templates[name] = o.Spec.Template.Metadata.Labels
	}
	selects := func(selector, l labels) bool {
		for k, v := range selector {
			if l[k] != v {
				return false
			}
		}
		return len(selector) > 0
	}
	for service, target := range map[string]string{
		"daemonset.yaml DaemonSet/softroce": "daemonset.yaml DaemonSet/softroce", "pingpong.yaml Service/pingpong-server": "pingpong.yaml Job/pingpong-server",
	} {
		var o struct {
			Spec struct{ Selector map[string]any }
		}
		as(t, all[service], &o)
		selector := o.Spec.Selector
		if m, ok := selector["matchLabels"].(map[string]any); ok {
			selector = m
		}
		var l labels
		as(t, selector, &l)
		for name, have := range templates {
			if selects(l, have) != (name == target) {
				t.Errorf("%s with %v selects %s with %v: %v", service, l, name, have, name != target)
			}
		}
	}
}

// Containers have no privilege but what the one that prepares the directory
// needs, and each has what it mounts and a bound on memory.
func TestManifestSecurity(t *testing.T) {
	for name, p := range pods(t) {
		if !p.SecurityContext.RunAsNonRoot || p.SecurityContext.SeccompProfile.Type != "RuntimeDefault" {
			t.Errorf("%s: %+v", name, p.SecurityContext)
		}
		for _, c := range slices.Concat(p.InitContainers, p.Containers) {
			s := c.SecurityContext
			escalates := s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation
			if escalates || !s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
				t.Errorf("%s, %s: %+v", name, c.Name, s)
			}
			if c.Name != "directory" && (len(s.Capabilities.Add) > 0 || s.RunAsUser != nil) {
				t.Errorf("%s, %s: capabilities %v, another user", name, c.Name, s.Capabilities.Add)
			}
			if c.Resources.Limits["memory"] == "" || c.Resources.Limits["cpu"] != "" || c.Resources.Requests["cpu"] == "" {
				t.Errorf("%s, %s: resources %v", name, c.Name, c.Resources)
			}
			for _, m := range c.VolumeMounts {
				if !slices.ContainsFunc(p.Volumes, func(v struct{ Name string }) bool { return v.Name == m.Name }) {
					t.Errorf("%s, %s mounts %s, which is no volume", name, c.Name, m.Name)
				}
			}
		}
	}
}

// What containers and probes run is what the image has, with flags that it
// takes.
func TestManifestCommands(t *testing.T) {
	reference := regexp.MustCompile(`\$\((\w+)\)`)
	for name, p := range pods(t) {
		for _, c := range slices.Concat(p.InitContainers, p.Containers) {
			if !strings.Contains(c.Image, "/softroce:") {
				continue
			}
			takes(t, c.Args)
			for _, m := range reference.FindAllStringSubmatch(strings.Join(c.Args, " "), -1) {
				if !slices.ContainsFunc(c.Env, func(e struct{ Name, Value string }) bool { return e.Name == m[1] }) {
					t.Errorf("%s, %s: %s is not in its environment", name, c.Name, m[0])
				}
			}
			for _, pr := range []probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
				if words := pr.Exec.Command; len(words) > 0 {
					if words[0] != "/softroce" {
						t.Errorf("%s, %s: the image has no %s", name, c.Name, words[0])
					}
					takes(t, words[1:])
				}
			}
		}
	}
}

// line is a container's command for the sandbox: as its pod's user.
func line(p podSpec, c container, replace map[string]string) string {
	args := slices.Clone(c.Args)
	for i := range args {
		for _, from := range slices.Sorted(maps.Keys(replace)) {
			args[i] = strings.ReplaceAll(args[i], from, replace[from])
		}
	}
	s := p.SecurityContext
	groups := strings.Trim(strings.ReplaceAll(fmt.Sprint(s.SupplementalGroups), " ", ","), "[]")
	return fmt.Sprintf("%d:%d '%s' /softroce%s", s.RunAsUser, s.RunAsGroup, groups, quoted(args...))
}

// The DaemonSet's adapter serves the pods of the ping-pong, and the sidecar its
// pod's programs: each container's command, as its user, in the image's root
// file system.
func TestManifestsRun(t *testing.T) {
	all := pods(t)
	daemon, server, client := all["daemonset.yaml DaemonSet/softroce"], all["pingpong.yaml Job/pingpong-server"], all["pingpong.yaml Job/pingpong-client"]
	replace := map[string]string{"$(HOST_IP)": "192.0.2.10", "$(POD_IP)": "192.0.2.10"}
	probe := fmt.Sprintf("%d:%d ''%s", daemon.SecurityContext.RunAsUser, daemon.SecurityContext.RunAsGroup, quoted(daemon.Containers[0].LivenessProbe.Exec.Command...))
	t.Run("daemonset", func(t *testing.T) {
		out := sandbox(t, `
enter `+line(daemon, daemon.Containers[0], replace)+` >"$LOGS/daemon" 2>&1 &
daemon=$!
healthy as `+probe+`
enter `+line(server, server.Containers[0], replace)+` >"$LOGS/server" 2>&1 &
server=$!
healthy as `+line(client, client.Containers[0], replace)+`
cat "$LOGS/health"
wait $server
kill $daemon
wait $daemon || true
`)
		if !strings.Contains(out, "1000 iters in") {
			t.Errorf("no ping-pong:\n%s", out)
		}
	})
	t.Run("sidecar", func(t *testing.T) {
		p := all["sidecar.yaml Pod/softroce-sidecar"]
		out := sandbox(t, `
enter `+line(p, p.InitContainers[0], replace)+` >"$LOGS/daemon" 2>&1 &
daemon=$!
healthy as `+probe+`
enter `+line(p, p.Containers[0], replace)+` >"$LOGS/server" 2>&1 &
server=$!
healthy as `+line(p, p.Containers[1], replace)+`
cat "$LOGS/health"
wait $server
kill $daemon
wait $daemon || true
`)
		if !strings.Contains(out, "10 pings of 64 bytes") {
			t.Errorf("no pings:\n%s", out)
		}
	})
}

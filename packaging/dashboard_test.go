package packaging

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/softroce/softroce/internal/metrics"
	"github.com/softroce/softroce/internal/testaddr"
)

const (
	dashboardFile = "grafana/softroce.json"
	rulesFile     = "prometheus/softroce.rules.yaml"
)

type panel struct {
	ID         int
	Type       string
	Title      string
	Datasource struct{ Type, UID string }
	GridPos    struct{ H, W, X, Y int }
	Targets    []struct{ RefID, Expr, LegendFormat string }
}

type dashboard struct {
	Title, UID    string
	SchemaVersion int
	Templating    struct {
		List []struct{ Name, Type, Definition string }
	}
	Panels []panel
}

func theDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	if err := json.Unmarshal([]byte(read(t, dashboardFile)), &d); err != nil {
		t.Fatalf("%s: %v", dashboardFile, err)
	}
	if len(d.Panels) < 20 {
		t.Fatalf("%s: %d panels", dashboardFile, len(d.Panels))
	}
	return d
}

// Panels have an id and a place of their own on the 24 columns, a title, and
// what they draw comes from the variable data source.
func TestDashboardShape(t *testing.T) {
	d := theDashboard(t)
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 30 {
		t.Errorf("uid %q, title %q, schema %d", d.UID, d.Title, d.SchemaVersion)
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		g := p.GridPos
		if ids[p.ID] || p.ID == 0 || p.Title == "" || g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("panel %d %q at %+v", p.ID, p.Title, g)
		}
		ids[p.ID] = true
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("panels %q and %q overlap", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
			t.Errorf("panel %q: %d targets from %+v", p.Title, len(p.Targets), p.Datasource)
		}
		for _, target := range p.Targets {
			for _, name := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if !regexp.MustCompile(`by \([^)]*\b` + name[1] + `\b`).MatchString(target.Expr) {
					t.Errorf("panel %q: the legend has %s, which the query does not keep: %s", p.Title, name[1], target.Expr)
				}
			}
		}
	}
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	for _, m := range regexp.MustCompile(`\$\{?([a-z]\w*)`).FindAllStringSubmatch(read(t, dashboardFile), -1) {
		if !slices.Contains(variables, m[1]) {
			t.Errorf("the variable %s is not defined", m[1])
		}
	}
}

// rules is a file of alerting rules.
type rules struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr, For    string
			Labels, Annotations map[string]string
		}
	}
}

func theRules(t *testing.T) rules {
	t.Helper()
	var r rules
	dec := yaml.NewDecoder(strings.NewReader(read(t, rulesFile)))
	dec.KnownFields(true)
	if err := dec.Decode(&r); err != nil {
		t.Fatalf("%s: %v", rulesFile, err)
	}
	return r
}

// queries gives every query of the dashboard and of the alerts, by where it is.
func queries(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	d := theDashboard(t)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all[p.Title+" "+target.RefID] = target.Expr
		}
	}
	for _, v := range d.Templating.List {
		if v.Definition != "" {
			all["variable "+v.Name] = v.Definition
		}
	}
	for _, g := range theRules(t).Groups {
		for _, r := range g.Rules {
			all["alert "+r.Alert] = r.Expr
		}
	}
	return all
}

var (
	// series is a metric's name with what selects its series.
	series  = regexp.MustCompile(`\b(softroce_[a-z0-9_]+)(?:\{([^}]*)\})?`)
	matcher = regexp.MustCompile(`(\w+)(=~|=)"([^"]*)"`)
	grouped = regexp.MustCompile(`by \(([^)]*)\)`)
)

// described gives the labels of every metric that an adapter may have, also of
// those that have no series yet.
func described() map[string][]string {
	ch := make(chan *prometheus.Desc, 1000)
	metrics.New().Describe(ch)
	close(ch)
	name, labels := regexp.MustCompile(`fqName: "([^"]+)"`), regexp.MustCompile(`variableLabels: \{([^}]*)\}`)
	all := map[string][]string{}
	for d := range ch {
		m := labels.FindStringSubmatch(d.String())
		all[name.FindStringSubmatch(d.String())[1]] = strings.Split(m[1], ",")
	}
	return all
}

// scraped is the metrics page of a running adapter.
func scraped(t *testing.T) string {
	t.Helper()
	addr := testaddr.Take(t, 1)[0].String()
	log := start(t, "msg=serving", softroce, "daemon", "--addr", addr, "--socket", filepath.Join(shortDir(t), "s"), "--metrics", addr+":0")
	url := regexp.MustCompile(`msg=metrics url=(\S+)`).FindStringSubmatch(log.String())
	if url == nil {
		t.Fatalf("no metrics address: %s", log)
	}
	resp, err := http.Get(url[1])
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// Every metric, label and value of a label that a query names is one that a
// running adapter has.
func TestQueriesNameWhatThereIs(t *testing.T) {
	known, page := described(), scraped(t)
	if len(known) < 40 {
		t.Fatalf("only %d metrics are described", len(known))
	}
	of := []string{"job", "instance"} // labels that Prometheus adds
	for where, query := range queries(t) {
		kept := slices.Clone(of)
		for _, m := range series.FindAllStringSubmatch(query, -1) {
			labels, ok := known[m[1]]
			if !ok {
				t.Errorf("%s: there is no metric %s", where, m[1])
			}
			kept = append(kept, labels...)
			for _, s := range matcher.FindAllStringSubmatch(m[2], -1) {
				if !slices.Contains(append(labels, of...), s[1]) {
					t.Errorf("%s: %s has no label %s, only %v", where, m[1], s[1], labels)
				}
				for value := range strings.SplitSeq(s[3], "|") {
					if !strings.HasPrefix(value, "$") && !regexp.MustCompile(`(?m)^`+m[1]+`\{.*\b`+s[1]+`="`+value+`"`).MatchString(page) {
						t.Errorf("%s: %s has no series with %s=%q", where, m[1], s[1], value)
					}
				}
			}
		}
		for _, by := range grouped.FindAllStringSubmatch(query, -1) {
			for label := range strings.SplitSeq(by[1], ",") {
				if !slices.Contains(kept, strings.TrimSpace(label)) {
					t.Errorf("%s: grouped by %s, which none of its metrics has", where, label)
				}
			}
		}
		if strings.Count(query, "(") != strings.Count(query, ")") || strings.Count(query, "{") != strings.Count(query, "}") {
			t.Errorf("%s: brackets do not match in %s", where, query)
		}
	}
}

// Each alert says what happened where, and has a case in which it fires and one
// in which it does not.
func TestAlerts(t *testing.T) {
	cases := read(t, "prometheus/alerts_test.yaml")
	for _, g := range theRules(t).Groups {
		for _, r := range g.Rules {
			if r.Labels["severity"] == "" || !strings.Contains(r.Annotations["summary"], "$labels.instance") || r.Annotations["description"] == "" {
				t.Errorf("%s: labels %v, annotations %v", r.Alert, r.Labels, r.Annotations)
			}
			for _, c := range []string{"fires", "does not"} {
				if !strings.Contains(cases, "- name: "+r.Alert+" "+c+"\n") {
					t.Errorf("alerts_test.yaml has no case %s %s", r.Alert, c)
				}
			}
		}
	}
}

// Prometheus' own tool takes the alerts, their cases hold, and it takes the
// dashboard's queries.
func TestPromtool(t *testing.T) {
	promtool := needs(t, "promtool", "prometheus")
	command(t, promtool, "check", "rules", rulesFile)
	command(t, promtool, "test", "rules", "prometheus/alerts_test.yaml")
	type rule struct {
		Record, Expr string
	}
	var list []rule
	for where, q := range queries(t) {
		if !strings.HasPrefix(where, "variable ") {
			list = append(list, rule{"x:y", strings.ReplaceAll(q, "$__rate_interval", "5m")})
		}
	}
	check := func(list []rule) error {
		text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": list}}})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "rules.yaml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", "--lint=none", file).CombinedOutput()
		if err != nil {
			t.Logf("%s", out)
		}
		return err
	}
	if err := check(list); err != nil {
		t.Error(err)
	}
	if check(append(list, rule{"x:y", "sum(rate(softroce_qps[5m]"})) == nil {
		t.Error("promtool takes a query that is none")
	}
}

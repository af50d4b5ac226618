package agent

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// agent.py and the document know every request and every field of proto.go.
func TestPythonAgentAndDocument(t *testing.T) {
	proto, script, document := text(t, "proto.go"), text(t, "agent.py"), text(t, "../../docs/conformance-agent.md")
	dos := regexp.MustCompile(`\tDo\w+ += "(\w+)"`).FindAllStringSubmatch(proto, -1)
	if len(dos) < 20 {
		t.Fatalf("%d requests in proto.go", len(dos))
	}
	for _, m := range dos {
		if !strings.Contains(script, "\n    def do_"+m[1]+"(self, r") {
			t.Errorf("agent.py does not do %q", m[1])
		}
		if !strings.Contains(document, "`"+m[1]+"`") {
			t.Errorf("the document does not know the request %q", m[1])
		}
	}
	for _, m := range regexp.MustCompile(`\tFeature\w+ += "(\w+)"`).FindAllStringSubmatch(proto, -1) {
		if !strings.Contains(document, "`"+m[1]+"`") {
			t.Errorf("the document does not know the feature %q", m[1])
		}
	}
	for _, typ := range []any{Request{}, Attrs{}, Path{}, SGE{}, SendWR{}, RecvWR{}, Bind{}} {
		for f := range reflect.TypeOf(typ).Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if !regexp.MustCompile(`[( ]` + name + `=`).MatchString(script) {
				t.Errorf("agent.py does not know the field %q of %T", name, typ)
			}
			if !strings.Contains(document, "`"+name+"`") {
				t.Errorf("the document does not know the field %q of %T", name, typ)
			}
		}
	}
	for _, typ := range []any{Hello{}, WC{}, Event{}, Answer{}} {
		for f := range reflect.TypeOf(typ).Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if !strings.Contains(document, "`"+name+"`") {
				t.Errorf("the document does not know the field %q of %T", name, typ)
			}
		}
	}
}

func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

package bench

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTargets(t *testing.T) {
	tab := sample()
	tab.Add(Row{Ref: Ref{Idle, IdleName}, Unit: PerCent}, 0.05)
	of, base := Ref{Loop, "WRITE 1 MiB"}, Raw(Loop)
	for _, c := range []struct {
		name    string
		w       Want
		verdict string
		met     bool
	}{
		{"the goal", want("x", 0.4, 0.5, of, base...), "yes, and the goal", true},
		{"the must", want("x", 0.5, 0.6, of, base...), "yes", true},
		{"neither", want("x", 0.6, 0.7, of, base...), "**no**", false},
		{"at most, the goal", atMost("x", 4, 0.5, of, base...), "yes, and the goal", true},
		{"at most, the must", atMost("x", 0.5, 0.4, of, base...), "yes", true},
		{"at most, neither", atMost("x", 0.4, 0.3, of, base...), "**no**", false},
		{"no such row", want("x", 0, 0, Ref{Loop, "nothing"}, base...), notMeasured, false},
		{"no such base", want("x", 0, 0, of, Ref{Loop, "nothing"}), notMeasured, false},
		{"a figure of its own", atMost("x", 0.1, 0.01, Ref{Idle, IdleName}), "yes", true},
		{"measured elsewhere", want("x", 0, 0, Ref{}), notMeasured, false},
	} {
		got := tab.Targets([]Want{c.w}, nil)[0]
		if got.verdict() != c.verdict || got.Met != c.met {
			t.Errorf("%s: got %q, met %v, want %q, %v", c.name, got.verdict(), got.Met, c.verdict, c.met)
		}
	}
}

// A floor that stays below the reference takes its targets with it.
func TestVoidFloor(t *testing.T) {
	w := []Want{want("x", 0.4, 0.5, Ref{Loop, "WRITE 1 MiB"}, Raw(Loop)...), want("y", 0.1, 0.1, Ref{Loop, "WRITE 1 MiB"}, Ref{Loop, RawRecvmsg + "!"})}
	for _, c := range []struct {
		reference []float64
		void      bool
	}{{nil, false}, {[]float64{4.9}, false}, {[]float64{5.1}, true}, {[]float64{1, 5.1}, true}} {
		tab := sample() // the better floor has 4
		for i, v := range c.reference {
			tab.Add(Row{Ref: Floors[0].Reference(i + 1), Unit: GBs}, v)
		}
		got := tab.Targets(w, Floors)
		if strings.HasPrefix(got[0].verdict(), "void: the floor reached 0.7") != c.void || got[0].Met == c.void || got[1].Note != "" {
			t.Errorf("reference %v: got %+v, want void %v, and the other untouched", c.reference, got, c.void)
		}
	}
}

// The targets have the keys that readers of bench.json look for, one by one.
func TestTargetJSON(t *testing.T) {
	b, err := json.Marshal(sample().Targets([]Want{
		want("a", 0.4, 0.5, Ref{Loop, "WRITE 1 MiB"}, Raw(Loop)...), atMost("b", 4, 3, Ref{}),
	}, nil))
	want := `[{"name":"a","ratio":0.5,"must":0.4,"goal":0.5,"met":true},{"name":"b","ratio":null,"must":4,"goal":3,"met":false,"at_most":true}]`
	if err != nil || string(b) != want {
		t.Errorf("got %s %v, want %s", b, err, want)
	}
}

// More than the floor is no floor; of a base that is none it may be.
func TestDisturbedFloor(t *testing.T) {
	tab := sample()
	tab.Add(Row{Ref: Ref{Loop, "READ 1 MiB"}, Unit: GBs}, 4.3)
	tab.Add(Row{Ref: Ref{Loop, TCPName}, Unit: GBs}, 4)
	of := Ref{Loop, "READ 1 MiB"}
	got := tab.Targets([]Want{want("x", 0.4, 0.5, of, Raw(Loop)...), want("y", 0.4, 0.5, of, Ref{Loop, TCPName})}, Floors)
	if got[0].verdict() != "void: the floor was disturbed, for nothing is faster" || got[0].Met || got[1].verdict() != "yes, and the goal" {
		t.Errorf("got %+v, want the first void", got)
	}
}

// A floor whose threads did not have their CPUs is none.
func TestWaitingFloor(t *testing.T) {
	for waited, void := range map[float64]bool{0.09: false, 0.11: true} {
		var tab Table
		tab.Add(Row{Ref: Ref{Loop, "x"}}, 6)
		tab.AddFloor(Row{Ref: Ref{Loop, RawBatches}}, 2, waited)
		got := tab.Targets([]Want{want("x", 3, 6, Ref{Loop, "x"}, Ref{Loop, RawBatches})}, Floors)[0]
		if (got.verdict() == "void: the floor waited for a CPU 11 % of the time") != void || got.Met == void {
			t.Errorf("waited %v: got %+v, want void %v", waited, got, void)
		}
	}
}

// No name is there twice, and the goal lies beyond the must.
func TestWants(t *testing.T) {
	seen := map[string]bool{}
	for _, w := range Wants {
		if seen[w.Name] || w.Name == "" {
			t.Errorf("%q is there twice", w.Name)
		}
		seen[w.Name] = true
		if better := w.Goal < w.Must; better != w.AtMost {
			t.Errorf("%q: must %v, goal %v, at most %v", w.Name, w.Must, w.Goal, w.AtMost)
		}
	}
	if len(Wants) != 14 {
		t.Errorf("got %d targets, want 14", len(Wants))
	}
}

func TestMergeRxe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bench-rxe.json")
	targets := sample().Targets(Wants, nil)
	got, err := MergeRxe(targets, file)
	if err != nil || len(got) != len(Wants) {
		t.Errorf("no file: got %d targets, %v", len(got), err)
	}
	name := Wants[10].Name // the latency
	text := `{"date":"2026-11-30","targets":[{"name":"` + name + `","ratio":5,"must":6,"goal":3,"met":true},{"name":"z","ratio":1,"must":2,"goal":2,"met":false}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err = MergeRxe(targets, file)
	if err != nil || len(got) != len(Wants)+1 {
		t.Fatalf("got %d targets, %v, want one more than %d", len(got), err, len(Wants))
	}
	table := FormatTargets(got)
	for _, want := range []string{
		"| " + name + " | 5.00 | at most 6 | at most 3 | yes (from bench-rxe of 2026-11-30) |\n",
		"| z | 1.00 | 2 | 2 | **no** (from bench-rxe of 2026-11-30) |\n",
		"the lowest of the ratios |  | 2 | 3 | not measured |\n",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("got\n%swant a line %q", table, want)
		}
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := MergeRxe(targets, file); err == nil {
		t.Error("half a file was taken")
	}
}

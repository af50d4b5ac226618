package main

import (
	"strings"
	"testing"
)

func TestBalance(t *testing.T) {
	const right = `# HELP softroce_qps Queue pairs.
softroce_rcvd_pkts_total{worker="0"} 12
softroce_qps{state="RTS",worker="0"} 0
softroce_resource_used{resource="programs"} 0
softroce_resource_limit{resource="programs"} 4096
softroce_drops_total{reason="icrc",stage="packet",worker="0"} 0
softroce_drops_total{reason="drop_stale",stage="qp",worker="0"} 7
`
	for _, row := range []struct{ name, from, to, reason string }{
		{"right", "", "", ""},
		{"a queue pair is left", `worker="0"} 0`, `worker="0"} 1`, "softroce_qps"},
		{"a program is left", `programs"} 0`, `programs"} 1`, "softroce_resource_used"},
		{"an ICRC was refused", `packet",worker="0"} 0`, `packet",worker="0"} 3`, `reason="icrc"`},
		{"nothing was received", "12", "0", "0 packets"},
		{"other names", "softroce_", "other_", "0 of the samples"},
	} {
		t.Run(row.name, func(t *testing.T) {
			text := right
			if row.from != "" {
				n := 1
				if row.from == "softroce_" {
					n = -1
				}
				text = strings.Replace(right, row.from, row.to, n)
			}
			err := balance(text)
			if row.reason == "" && err != nil || row.reason != "" && (err == nil || !strings.Contains(err.Error(), row.reason)) {
				t.Errorf("got %v, want an error with %q", err, row.reason)
			}
		})
	}
}

package uapi

import (
	"errors"
	"testing"
)

func TestImpairMode(t *testing.T) {
	for _, s := range []string{`{"mode":3}`, `{"mode":-1}`, `{"mode":"all"}`, `[]`, ``} {
		if err := new(ImpairRequest).Decode([]byte(s)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v, want ErrMalformed", s, err)
		}
	}
}

package adapter_test

import (
	"testing"

	"github.com/softroce/softroce/internal/featuretest"
	"github.com/softroce/softroce/pkg/verbs"
)

// TestFeatures plays every feature of docs/features.md between two in-process
// adapters.
func TestFeatures(t *testing.T) {
	featuretest.Run(t, func(t *testing.T) (a, b *verbs.Device) {
		t.Helper()
		return start(t, nil).device(t), start(t, nil).device(t)
	})
}

// device opens the adapter as a new program.
func (h *host) device(t testing.TB) *verbs.Device {
	t.Helper()
	dev, err := h.Open()
	must(t, err)
	t.Cleanup(func() { must(t, dev.Close()) })
	return dev
}

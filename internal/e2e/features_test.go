package e2e

import (
	"testing"

	"github.com/softroce/softroce/internal/featuretest"
	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/pkg/verbs"
)

// TestFeaturesOfTheDaemon plays every feature of docs/features.md between two
// daemons.
func TestFeaturesOfTheDaemon(t *testing.T) {
	needsSharedMemory(t)
	addrs := testaddr.Take(t, 2)
	a, b := startDaemon(t, addrs[0], socketIn(t)), startDaemon(t, addrs[1], socketIn(t))
	featuretest.Run(t, func(t *testing.T) (da, db *verbs.Device) {
		t.Helper()
		return openDevice(t, a.socket), openDevice(t, b.socket)
	})
}

func openDevice(t *testing.T, socket string) *verbs.Device {
	t.Helper()
	dev, err := verbs.Open(&verbs.Options{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}

package testnet

import (
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Names of device features, as ethtool(8) prints them.
const (
	// CutsUDP: the device takes segmented sends in one piece. Without it the
	// kernel cuts them before the device, so that packets of their own are on
	// the link. A veth passes them on in one piece.
	CutsUDP = "tx-udp-segmentation"
	// MergesUDP: the device's host merges what comes in.
	MergesUDP = "rx-gro"
)

// The ethtool family of generic netlink (linux/ethtool_netlink.h).
const (
	ethtoolFeaturesSet = 12

	featuresHeader   = 1
	featuresWanted   = 3
	headerDevName    = 2
	bitsetBits       = 3
	bitsetBit        = 1
	bitName          = 2
	bitValue         = 3
	ethtoolNLVersion = 1
)

// SetFeature switches a feature of the host's end of the link. The test is
// skipped where the kernel does not let it.
func (h *Host) SetFeature(t testing.TB, name string, on bool) {
	t.Helper()
	err := h.Do(func() error {
		f, err := netlink.GenlFamilyGet("ethtool")
		if err != nil {
			return fmt.Errorf("no ethtool by netlink: %w", err)
		}
		req := nl.NewNetlinkRequest(int(f.ID), unix.NLM_F_ACK)
		req.AddData(&nl.Genlmsg{Command: ethtoolFeaturesSet, Version: ethtoolNLVersion})
		head := nl.NewRtAttr(unix.NLA_F_NESTED|featuresHeader, nil)
		head.AddRtAttr(headerDevName, nl.ZeroTerminated(Iface))
		req.AddData(head)
		wanted := nl.NewRtAttr(unix.NLA_F_NESTED|featuresWanted, nil)
		bit := wanted.AddRtAttr(unix.NLA_F_NESTED|bitsetBits, nil).AddRtAttr(unix.NLA_F_NESTED|bitsetBit, nil)
		bit.AddRtAttr(bitName, nl.ZeroTerminated(name))
		if on {
			bit.AddRtAttr(bitValue, nil)
		}
		req.AddData(wanted)
		_, err = req.Execute(unix.NETLINK_GENERIC, 0)
		return err
	})
	if err != nil {
		t.Skipf("testnet: %s: %s cannot be set to %v: %v", h.Name, name, on, err)
	}
}

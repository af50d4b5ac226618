package udp4791

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testaddr"
)

// withoutCapability runs f in a thread that does not use one of its capabilities.
func withoutCapability(t *testing.T, c int, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had [2]unix.CapUserData
	if err := unix.Capget(&hdr, &had[0]); err != nil {
		t.Fatal(err)
	}
	less := had
	less[c/32].Effective &^= 1 << (c % 32)
	if err := unix.Capset(&hdr, &less[0]); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Capset(&hdr, &had[0]); err != nil {
			t.Error(err)
		}
	}()
	f()
}

// wantPrivilege checks that an error is EPERM and says what to do.
func wantPrivilege(t *testing.T, err error, words ...string) {
	t.Helper()
	if !errors.Is(err, unix.EPERM) {
		t.Fatalf("error %v, want EPERM", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

// Who may not open packet sockets hears which privilege it takes, how a program
// gets it, and what needs none.
func TestPacketWithoutPrivilege(t *testing.T) {
	addrs := testaddr.Take(t, 1)
	withoutCapability(t, unix.CAP_NET_RAW, func() {
		_, err := OpenNet(Config{Addrs: addrs, Backend: BackendPacket})
		wantPrivilege(t, err, "packet socket", "CAP_NET_RAW", "setcap", "AmbientCapabilities", "udp backend needs no privilege")
	})
}

// Who may not make a link hears the command that makes one for all times; opening
// one that is the user's own takes no privilege.
func TestTUNWithoutPrivilege(t *testing.T) {
	tunHost(t, "ipv4")
	addrs := tunAddrs(1, "ipv4")
	withoutCapability(t, unix.CAP_NET_ADMIN, func() {
		_, err := OpenNet(Config{Addrs: addrs, Backend: BackendTUN, TUN: "roce0"})
		wantPrivilege(t, err, "TUN link roce0", "CAP_NET_ADMIN", "ip tuntap add dev roce0 mode tun multi_queue user")
	})
	own, other := userLink(t, "roce1", os.Getuid()), userLink(t, "roce2", 65534)
	withoutCapability(t, unix.CAP_NET_ADMIN, func() {
		n, err := OpenNet(Config{Addrs: addrs, Backend: BackendTUN, TUN: own})
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		_, err = OpenNet(Config{Addrs: addrs, Backend: BackendTUN, TUN: other})
		wantPrivilege(t, err, "TUN link "+other, "CAP_NET_ADMIN")
	})
}

// Who may not open the device itself hears of its mode, not of making links.
func TestTUNNodeRefused(t *testing.T) {
	for _, v := range []struct {
		mode os.FileMode
		want string
	}{
		{0, "its mode is 0000, its owner user"},
		{0o400, "its mode is 0400, its owner user"},
	} {
		node := filepath.Join(t.TempDir(), "tun")
		if err := os.WriteFile(node, nil, v.mode); err != nil {
			t.Fatal(err)
		}
		withoutCapability(t, unix.CAP_DAC_OVERRIDE, func() {
			_, err := openTUNNode(node)
			if !errors.Is(err, unix.EACCES) {
				t.Fatalf("error %v, want EACCES", err)
			}
			n := &tunNet{name: "roce0", cfg: Config{Addrs: tunAddrs(1, "ipv4")}}
			text := n.explain(err).Error()
			if !strings.Contains(text, "device "+node) || !strings.Contains(text, v.want) || strings.Contains(text, "ip tuntap") {
				t.Errorf("mode %04o: %s", v.mode, text)
			}
		})
	}
	if text := (&nodeRefused{"/dev/null", unix.EPERM}).reason(); !strings.Contains(text, "device cgroup") {
		t.Errorf("a device that everybody may open, and may not: %s", text)
	}
}

// userLink makes a TUN link of a user's.
func userLink(t *testing.T, name string, uid int) string {
	t.Helper()
	link := &netlink.Tuntap{
		LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TUN,
		Flags: netlink.TUNTAP_MULTI_QUEUE_DEFAULTS, Queues: 1, Owner: uint32(uid),
	}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	for _, fd := range link.Fds {
		fd.Close()
	}
	return name
}

package wire

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testnet"
	"github.com/softroce/softroce/pkg/bth"
)

// segmented sends data to a link in segments of size bytes and returns what the link receives.
func segmented(t *testing.T, p place, data []byte, size int) (frames []*Frame) {
	t.Helper()
	raw, err := p.udp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var opt, discover error
	err = raw.Control(func(fd uintptr) {
		opt = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size)
		if p.link.Local().Is4() {
			discover = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		}
	})
	if opt != nil {
		t.Skipf("this kernel has no UDP_SEGMENT: %v", opt)
	}
	if err := errors.Join(err, discover); err != nil {
		t.Fatal(err)
	}
	defer InOrder()() // the kernel cuts it where the device does not
	if _, err := p.udp.WriteToUDPAddrPort(data, netip.AddrPortFrom(p.link.Local(), Port)); err != nil {
		t.Fatal(err)
	}
	for got := 0; got < len(data); {
		f := receive(t, p.link)
		got += len(f.Roce)
		frames = append(frames, f)
	}
	return frames
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i / 7)
	}
	return b
}

// A send of several segments, which a virtual device passes on in one piece, arrives in its segments.
func TestSegmentedSendsAreCut(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		const size = 1000
		data := pattern(60*size + 500)
		rest := data
		for i, f := range segmented(t, p, data, size) {
			want := rest[:min(size, len(rest))]
			rest = rest[len(want):]
			if err := f.Deliverable(); err != nil || string(f.Roce) != string(want) || len(f.Pad) != 0 || f.UDPSum == 0 {
				t.Errorf("segment %d: %d bytes, want %d, deliverable: %v, %+v", i, len(f.Roce), len(want), err, f)
			}
			if f.Src.Is4() && f.ID != uint16(i) {
				t.Errorf("segment %d: identification %d", i, f.ID)
			}
		}
	})
}

// A segmented send that this package cuts is the packets that the kernel makes of it where the sender's device cuts none.
func TestSegmentsAreTheKernels(t *testing.T) {
	for _, name := range []string{"veth4", "veth6"} {
		t.Run(name, func(t *testing.T) {
			p := placeNamed(t, name)
			for _, n := range []int{1, 1000, 1001, 64000} {
				data := pattern(n)
				p.far.SetFeature(t, testnet.CutsUDP, true)
				ours := segmented(t, p, data, 1000)
				p.far.SetFeature(t, testnet.CutsUDP, false)
				theirs := segmented(t, p, data, 1000)
				if len(ours) != len(theirs) {
					t.Fatalf("%d bytes: %d packets, the kernel makes %d", n, len(ours), len(theirs))
				}
				for i := range ours {
					if string(ours[i].IP) != string(theirs[i].IP) {
						t.Errorf("%d bytes, segment %d:\n  got % x\n want % x", n, i, ours[i].IP[:60], theirs[i].IP[:60])
					}
				}
			}
		})
	}
}

// Where the kernel does not tell how a segmented send is cut, the ICRC does.
func TestSegmentsAreGuessed(t *testing.T) {
	for _, name := range []string{"veth4", "veth6"} {
		t.Run(name, func(t *testing.T) {
			a, b := testnet.Pair(t, 0)
			local, remote := a.Addr4, b.Addr4
			if name == "veth6" {
				local, remote = a.Addr6, b.Addr6
			}
			p := place{open(t, a, Config{Local: local, Remote: remote, guess: true}), udpAt(t, b, remote), b}
			for _, size := range []int{1024, 256, 500} {
				var data []byte
				for i := range 9 {
					w := write(size)
					w.ID, w.SrcPort, w.BTH.PSN = uint16(i), Port, bth.PSN(i)
					ip := Build(w, remote, local)
					data = append(data, ip[headerLen(ip)+udpLen:]...)
				}
				for i, f := range segmented(t, p, data, len(data)/9) {
					if f.Err != nil || !f.ICRCOK || f.Deliverable() != nil || f.RoCE.BTH().PSN() != bth.PSN(i) || len(f.RoCE.Payload) != size {
						t.Errorf("segment %d: %v, %v, %+v", i, f.Err, f.Deliverable(), f)
					}
				}
			}
			send(t, p.dial(t, netip.AddrPortFrom(remote, 0), netip.AddrPortFrom(local, Port)), "small")
			if f := receive(t, p.link); string(f.Roce) != "small" || f.Deliverable() != nil {
				t.Errorf("got %+v", f)
			}
			if err := p.link.Send(write(8)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestKernelRelease(t *testing.T) {
	for release, want := range map[string]bool{
		"6.2.0": true, "6.1.99-x": false, "5.15.0-91-generic": false, "6.18.44": true, "7.0": true, "6.2-rc1": true, "10.1": true, "6": false,
	} {
		if got := atLeast(release, 6, 2); got != want {
			t.Errorf("%s: %v, want %v", release, got, want)
		}
	}
}

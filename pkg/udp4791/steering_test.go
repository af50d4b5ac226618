package udp4791

import (
	"fmt"
	"strings"
	"testing"

	"github.com/softroce/softroce/internal/testaddr"
)

// Steering: worker = (DestQP & 7) mod N, for every source, every QPN with
// that key, both families.
func TestDatagramsGoToTheWorkerOfTheirQPN(t *testing.T) {
	for _, family := range families {
		for _, workers := range []int{1, 2, 3, 8} {
			t.Run(fmt.Sprintf("%s/%d workers", family, workers), func(t *testing.T) {
				addrs := familyAddrs(t, family)
				a := mustOpen(t, Config{Addrs: addrs[:1], Workers: workers})
				b := mustOpen(t, Config{Addrs: addrs[1:], Workers: workers})
				want := make([]int, workers)
				for key := range uint32(Keys) {
					// The key of a flow is the sender's affair; from any port
					// the receiver steers by the packet alone.
					from := a.Endpoint(int(key) % workers)
					flow, _ := mustFlow(t, from, addrs[0], uint8(key), 0)
					for _, high := range []uint32{0, 0x10, 0xABCDE8, 0xFFFFF8} {
						qpn := high | key
						mustSend(t, from, SendSlot{Flow: flow, Dst: addrs[1], Buf: bth(qpn, fmt.Sprintf("qpn %d;", qpn))})
						want[int(qpn&7)%workers]++
					}
				}
				for w := range workers {
					for _, d := range collect(t, b.Endpoint(w), want[w]) {
						if got := int(d.Buf[7]&7) % workers; got != w {
							t.Errorf("%q is worker %d's and came to %d", d.Buf[12:], got, w)
						}
					}
					expectNone(t, b.Endpoint(w))
				}
			})
		}
	}
}

// A datagram too short to hold a QPN is somebody's to count: worker 0's.
func TestShortDatagramsGoToWorkerZero(t *testing.T) {
	addrs := testaddr.Take(t, 2)
	a := mustOpen(t, Config{Addrs: addrs[:1]})
	b := mustOpen(t, Config{Addrs: addrs[1:], Workers: 3})
	flow, _ := mustFlow(t, a.Endpoint(0), addrs[0], 0, 0)
	for n := range 8 {
		mustSend(t, a.Endpoint(0), SendSlot{Flow: flow, Dst: addrs[1], Buf: []byte(strings.Repeat("\x05", n))})
	}
	if got := collect(t, b.Endpoint(0), 8); len(got) != 8 {
		t.Errorf("got %d", len(got))
	}
	for w := range 3 {
		expectNone(t, b.Endpoint(w))
	}
}

package bthlayer_test

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/softroce/softroce/pkg/bth/bthlayer"
)

// Any gopacket program decodes RoCEv2 once it imports bthlayer.
func Example() {
	f, err := os.Open("../testdata/captures/rc_atomic.pcap")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 4 {
		data, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		packet := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Default)
		roce := packet.Layer(bthlayer.LayerTypeRoCEv2).(*bthlayer.RoCEv2)
		good, err := roce.Verify(packet.NetworkLayer())
		h := roce.Headers
		fmt.Println(h.BTH.Opcode, h.BTH.PSN, "ICRC right:", good, err)
	}
	// Output:
	// RC RDMA WRITE Only 0x000100 ICRC right: true <nil>
	// RC Acknowledge 0x000100 ICRC right: true <nil>
	// RC FetchAdd 0x000101 ICRC right: true <nil>
	// RC ATOMIC Acknowledge 0x000101 ICRC right: true <nil>
}

package pingpong

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"github.com/softroce/softroce/pkg/verbs"
)

// ErrExchange is wrapped by every error about what the peer sent over TCP.
var ErrExchange = errors.New("the exchange of addresses failed")

// The messages of the exchange (what rdma-core's programs define).
const (
	// Port is the TCP port of the exchange.
	Port = 18515
	// wireSize is an endpoint's message with its NUL.
	wireSize = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1
	// doneMessage is the client's confirmation.
	doneMessage = "done\x00"
)

// Endpoint is one side of a connection, as its peer must know it.
type Endpoint struct {
	LID uint16 // 0 on Ethernet
	QPN verbs.QPN
	PSN verbs.PSN // the side's first send PSN
	GID verbs.GID
}

// String is the endpoint as rdma-core's programs print it.
func (e Endpoint) String() string {
	return fmt.Sprintf("LID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %s", e.LID, uint32(e.QPN), uint32(e.PSN), e.GID)
}

// wire is the endpoint's message, wireSize bytes.
func (e Endpoint) wire() []byte {
	return fmt.Appendf(nil, "%04x:%06x:%06x:%x\x00", e.LID, uint32(e.QPN)&0xFFFFFF, uint32(e.PSN)&0xFFFFFF, e.GID[:])
}

// parseEndpoint reads an endpoint's message, which may be anything.
func parseEndpoint(b []byte) (e Endpoint, err error) {
	bad := func(what string) (Endpoint, error) {
		return Endpoint{}, fmt.Errorf("%w: %s in %q", ErrExchange, what, b[:min(len(b), wireSize)])
	}
	if len(b) != wireSize || b[4] != ':' || b[11] != ':' || b[18] != ':' || b[wireSize-1] != 0 {
		return bad("no LID:QPN:PSN:GID")
	}
	var v [3]uint64
	for i, f := range []string{string(b[:4]), string(b[5:11]), string(b[12:18])} {
		if v[i], err = strconv.ParseUint(f, 16, 24); err != nil {
			return bad("no hexadecimal number")
		}
	}
	if _, err := hex.Decode(e.GID[:], b[19:wireSize-1]); err != nil {
		return bad("no hexadecimal GID")
	}
	e.LID, e.QPN, e.PSN = uint16(v[0]), verbs.QPN(v[1]), verbs.PSN(v[2])
	return e, nil
}

package rdmanet

import "net/netip"

// Network is the name of the network of an Addr, and what Dialer takes beside
// "tcp".
const Network = "rdma"

// Addr is an address of the connection manager's: an IP address and a port that
// has nothing to do with TCP's.
type Addr struct{ netip.AddrPort }

// Network is "rdma".
func (Addr) Network() string { return Network }

// String gives address and port.
func (a Addr) String() string { return a.AddrPort.String() }

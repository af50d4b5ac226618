package nic

import "fmt"

// Keys of log attributes.
const (
	keyActiveMTU  = "active_mtu"
	keyAdapter    = "adapter"
	keyAddr       = "addr"
	keyBytes      = "bytes"
	keyCQ         = "cq"
	keyCRC        = "crc"
	keyDst        = "dst"
	keyErr        = "err"
	keyGID        = "gid"
	keyGot        = "got"
	keyIndex      = "index"
	keyInterface  = "interface"
	keyLinkMTU    = "link_mtu"
	keyPID        = "pid"
	keyPeer       = "peer"
	keyQPN        = "qpn"
	keyQPs        = "qps"
	keyReason     = "reason"
	keyRecvBuffer = "recv_buffer"
	keySRQ        = "srq"
	keySocket     = "socket"
	keySrc        = "src"
	keySuppressed = "suppressed"
	keyUID        = "uid"
	keyRules      = "rules"
	keyWant       = "want"
	keyWhy        = "why"
	keyWorker     = "worker"
	keyWorkers    = "workers"
)

// hex32 is a key or an ICRC as all else shows it.
func hex32(v uint32) string { return fmt.Sprintf("0x%08x", v) }

package udp4791

import "golang.org/x/sys/unix"

// probeOffload finds out whether the kernel cuts and merges datagrams, on a
// socket that is thrown away. It fails only where that was demanded.
func (g *Group) probeOffload() error {
	if g.cfg.Offload == OffloadOff {
		return nil
	}
	l := g.locals[0]
	fd, err := unix.Socket(l.family(), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return explainSocket(l, err)
	}
	defer unix.Close(fd)
	errSegment := unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 1024)
	errMerge := unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1)
	g.segments, g.merges = errSegment == nil, errMerge == nil
	if g.sink && !tellsSegments() {
		g.merges = false
	}
	if g.cfg.Offload == OffloadAuto {
		return nil
	}
	const reason = "this kernel has no such offload (Linux 4.18 and 5.0 brought it); use auto or off"
	switch {
	case errSegment != nil:
		return &SocketError{Op: "set UDP_SEGMENT", Addr: l.addr, Err: errSegment, Reason: reason}
	case errMerge != nil:
		return &SocketError{Op: "set UDP_GRO", Addr: l.addr, Err: errMerge, Reason: reason}
	}
	return nil
}

// offloadNote is what an operator should know of the offloads; empty when all
// is as it was asked for.
func (g *Group) offloadNote() string {
	switch {
	case g.cfg.Offload == OffloadOff:
		return "segmentation and receive offload are switched off: every packet costs a way through the kernel"
	case !g.segments && !g.merges:
		return "this kernel has no UDP segmentation and no receive offload: every packet costs a way through it"
	case !g.segments:
		return "this kernel has no UDP segmentation offload: every packet sent costs a way through it"
	case !g.merges:
		return "this kernel has no UDP receive offload: every packet received costs a way through it"
	}
	return ""
}

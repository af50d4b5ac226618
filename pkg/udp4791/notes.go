package udp4791

import (
	"fmt"
	"slices"
	"strings"
)

// Notes returns what an operator should know at start-up, each a line of
// plain words: the effective buffers and what would make them larger, and
// what this kernel lacks. Never empty.
func (g *Group) Notes() []string {
	out := []string{fmt.Sprintf("receive buffer %d bytes, send buffer %d bytes per socket", g.recvBuffer, g.sendBuffer)}
	if g.recvBuffer < g.cfg.RecvBuffer {
		out = append(out, bufferNote("receive", "rmem_max", g.recvBuffer, g.cfg.RecvBuffer))
	}
	if g.sendBuffer < g.cfg.SendBuffer {
		out = append(out, bufferNote("send", "wmem_max", g.sendBuffer, g.cfg.SendBuffer))
	}
	if n := g.offloadNote(); n != "" {
		out = append(out, n)
	}
	if len(g.missing) > 0 {
		names := slices.Clone(g.missing)
		slices.Sort(names)
		out = append(out, "this kernel does not know "+strings.Join(slices.Compact(names), ", "))
	}
	return out
}

func bufferNote(which, sysctl string, have, want int) string {
	s := fmt.Sprintf("the %s buffer is %d of %d bytes asked for; \"sysctl -w net.core.%s=%d\" or CAP_NET_ADMIN would give all",
		which, have, want, sysctl, want)
	if which == "receive" {
		s += "; a burst that does not fit is lost without a trace"
	}
	return s
}

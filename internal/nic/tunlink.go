package nic

import (
	"net"

	"github.com/vishvananda/netlink"
)

// routeToLink has the host reach the networks of the adapter's addresses by a link
// that the adapter made. What a link needs that was there is its owner's business.
func (a *Adapter) routeToLink() {
	made, ok := a.group.(interface{ Created() bool })
	if !ok || !made.Created() {
		return
	}
	link, err := netlink.LinkByName(a.group.Link())
	for _, p := range a.cfg.Routes {
		if err == nil {
			p = p.Masked()
			err = netlink.RouteReplace(&netlink.Route{
				LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK,
				Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
			})
		}
		if err != nil {
			a.log.Warn("no route to the adapter's network was made; \"ip route add\" makes one",
				keyAdapter, a.cfg.Name, keyInterface, a.group.Link(), keyErr, err)
			return
		}
	}
}

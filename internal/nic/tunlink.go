package nic

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routeToLink has the host reach the networks of the adapter's addresses by a link
// that the adapter made. What a link needs that was there is its owner's business.
func (a *Adapter) routeToLink() {
	made, ok := a.group.(interface{ Created() bool })
	if !ok || !made.Created() {
		return
	}
	for _, p := range a.cfg.Routes {
		if err := routeTo(p, a.group.Link()); err != nil {
			a.log.Warn("no route to the adapter's network was made; \"ip route add\" makes one",
				keyAdapter, a.cfg.Name, keyInterface, a.group.Link(), keyDst, p.Masked().String(), keyErr, err)
		}
	}
}

// routeTo makes a route to a network by a link. Where the host reaches that network
// otherwise, as its own or by the default route, that stays, and the address alone
// gets one.
func routeTo(p netip.Prefix, name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	link := l.Attrs().Index
	other, err := routed(p.Masked(), link)
	if err != nil {
		return err
	}
	to := p.Masked()
	if other != "" {
		to = netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
	}
	err = netlink.RouteAdd(&netlink.Route{LinkIndex: link, Scope: netlink.SCOPE_LINK, Dst: ipNet(to)})
	if err == nil && other != "" {
		err = fmt.Errorf("the host has a route to %v by %s, which stays; only %v is reached by the link", p.Masked(), other, p.Addr())
	}
	return err
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// routed is the interface by which the host reaches a network other than by a link,
// "" for none. That it reaches a larger one does not count.
func routed(p netip.Prefix, link int) (by string, err error) {
	family := unix.AF_INET6
	if p.Addr().Is4() {
		family = unix.AF_INET
	}
	list, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN, Dst: ipNet(p)}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
	for i := range list {
		if list[i].LinkIndex == link {
			continue
		}
		by = "another interface"
		if l, err := netlink.LinkByIndex(list[i].LinkIndex); err == nil {
			by = l.Attrs().Name
		}
	}
	return by, err
}

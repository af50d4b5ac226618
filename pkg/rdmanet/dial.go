package rdmanet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"

	"github.com/softroce/softroce/pkg/rdmacm"
	"github.com/softroce/softroce/pkg/verbs"
)

// Dialer makes connections. Its DialContext is what http.Transport and its like
// take.
type Dialer struct {
	// Device is the adapter to use. Required.
	Device *verbs.Device
	// Local is the own address; not valid: the host's routing table chooses.
	Local netip.AddrPort
	// Config says how large connections are.
	Config Config
}

// Dial connects to a listener at address, host and port, with the usual sizes.
func Dial(ctx context.Context, dev *verbs.Device, address string) (*Conn, error) {
	return (&Dialer{Device: dev}).dial(ctx, Network, address)
}

// Dial is DialContext without an end.
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext connects to a listener at address, host and port. A host that is a
// name is looked up; its addresses are tried one after the other. network is
// "rdma" or "tcp", which means the same here; with 4 or 6 behind it, it is of that
// family. A peer that does not answer is asked for more than a minute: give ctx an
// end.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (d *Dialer) dial(ctx context.Context, network, address string) (*Conn, error) {
	addrs, err := resolve(ctx, network, address)
	for _, a := range addrs {
		var c *Conn
		if c, err = d.connect(ctx, a); err == nil {
			return c, nil
		}
		err = &net.OpError{Op: "dial", Net: Network, Addr: Addr{a}, Err: err}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

// resolve looks an address up.
func resolve(ctx context.Context, network, address string) ([]netip.AddrPort, error) {
	family := ""
	switch network {
	case Network, "tcp":
		family = "ip"
	case Network + "4", "tcp4":
		family = "ip4"
	case Network + "6", "tcp6":
		family = "ip6"
	default:
		return nil, &net.OpError{Op: "dial", Net: network, Err: net.UnknownNetworkError(network)}
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: &net.AddrError{Err: "the port must be a number", Addr: address}}
	}
	if host == "" {
		return []netip.AddrPort{netip.AddrPortFrom(netip.Addr{}, uint16(port))}, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, family, host)
	addrs := make([]netip.AddrPort, 0, len(ips))
	for _, ip := range ips {
		addrs = append(addrs, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	return addrs, err
}

func (d *Dialer) connect(ctx context.Context, to netip.AddrPort) (*Conn, error) {
	e, err := newEndpoint(d.Device, &d.Config)
	if err != nil {
		return nil, err
	}
	conf := e.cmConfig()
	conf.Local = d.Local
	conn, err := rdmacm.Dial(ctx, d.Device, to, conf)
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e.connected(conn)
}

// cmConfig is how the connection manager is to connect the endpoint.
func (e *Endpoint) cmConfig() *rdmacm.Config {
	p := rdmacm.DefaultConnParam()
	p.PrivateData = e.Hello()
	return &rdmacm.Config{PD: e.pd, QP: e.qpInit(), Param: &p, Prepare: func(id *rdmacm.ID) error {
		e.qp = id.QP()
		return e.PostReceives()
	}}
}

// connected makes the stream of an endpoint whose connection is up.
func (e *Endpoint) connected(conn *rdmacm.Conn) (*Conn, error) {
	c, err := e.start(conn.Private(), Addr{conn.LocalAddr()}, Addr{conn.PeerAddr()}, conn.Close)
	if err != nil {
		return nil, errors.Join(err, conn.Close(), e.Close())
	}
	return c, nil
}

package cm

import (
	"fmt"
	"net/netip"
	"slices"
)

// BindArgs are the arguments of [Ports.Bind].
type BindArgs struct {
	Space PortSpace
	// Addr is as in ListenArgs: unspecified or zero is every address.
	Addr netip.Addr
	Only bool   // IPv6 only, of the unspecified IPv6 address
	Port uint16 // 0: a free one
	// Reuse lets several share a port, all of them with Reuse
	// (RDMA_OPTION_ID_REUSEADDR). None may listen while it is shared.
	Reuse bool
}

// Binding is a port that a program's identifier holds.
type Binding struct {
	args      BindArgs
	listening bool
}

// Port is the port's number.
func (b *Binding) Port() uint16 { return b.args.Port }

// Service is the port's service id.
func (b *Binding) Service() ServiceID { return IPService(b.args.Space, b.args.Port) }

// Ports are the ports of an adapter that identifiers are bound to, one table for
// all programs. The zero value is empty. Like the Machine it rolls no dice.
type Ports struct {
	// Low and High bound the ports that are given out for port 0; both 0 is
	// DefaultLowPort to DefaultHighPort.
	Low, High uint16
	// Limit is the most bindings; 0 is none.
	Limit int

	bound map[ServiceID][]*Binding
	count int
}

// The ports for port 0, as Linux has them for IP (net.ipv4.ip_local_port_range).
const (
	DefaultLowPort  = 32768
	DefaultHighPort = 60999
)

// Bind takes a port for an address. random picks the place at which the search
// for a free one begins.
//
// Errors: ErrInUse, ErrFull (no port is free, or the limit).
func (t *Ports) Bind(a BindArgs, random uint32) (*Binding, error) {
	a.Addr = a.Addr.Unmap().WithZone("")
	if t.Limit > 0 && t.count >= t.Limit {
		return nil, fmt.Errorf("bind: %d ports are bound: %w", t.count, ErrFull)
	}
	if a.Port == 0 {
		port, ok := t.free(a.Space, random)
		if !ok {
			return nil, fmt.Errorf("bind: no free port in %v: %w", a.Space, ErrFull)
		}
		a.Port = port
	}
	b := &Binding{args: a}
	for _, o := range t.bound[b.Service()] {
		if o.conflicts(b) && (!a.Reuse || !o.args.Reuse || o.listening) {
			return nil, fmt.Errorf("bind %v port %d at %v: %w", a.Space, a.Port, a.Addr, ErrInUse)
		}
	}
	if t.bound == nil {
		t.bound = make(map[ServiceID][]*Binding)
	}
	t.bound[b.Service()] = append(t.bound[b.Service()], b)
	t.count++
	return b, nil
}

// Listen says that b's identifier is about to listen. No other may be bound to
// the port for an address of b's, Reuse or not.
//
// Errors: ErrInUse.
func (t *Ports) Listen(b *Binding) error {
	for _, o := range t.bound[b.Service()] {
		if o != b && o.conflicts(b) {
			return fmt.Errorf("listen at %v port %d of %v: %w", b.args.Addr, b.args.Port, b.args.Space, ErrInUse)
		}
	}
	b.listening = true
	return nil
}

// Release gives b's port back. It does nothing the second time.
func (t *Ports) Release(b *Binding) {
	s := b.Service()
	i := slices.Index(t.bound[s], b)
	if i < 0 {
		return
	}
	t.count--
	if t.bound[s] = slices.Delete(t.bound[s], i, i+1); len(t.bound[s]) == 0 {
		delete(t.bound, s)
	}
}

// Bound is the number of bindings.
func (t *Ports) Bound() int { return t.count }

// conflicts says whether both are for some address.
func (b *Binding) conflicts(o *Binding) bool {
	return overlap(
		&ListenArgs{Addr: b.args.Addr, Only: b.args.Only},
		&ListenArgs{Addr: o.args.Addr, Only: o.args.Only})
}

// free finds a port that nobody holds.
func (t *Ports) free(space PortSpace, random uint32) (uint16, bool) {
	low, high := uint32(t.Low), uint32(t.High)
	if low == 0 && high == 0 {
		low, high = DefaultLowPort, DefaultHighPort
	}
	if high < low {
		return 0, false
	}
	n := high - low + 1
	for i := range n {
		port := uint16(low + (random%n+i)%n)
		if port != 0 && len(t.bound[IPService(space, port)]) == 0 {
			return port, true
		}
	}
	return 0, false
}

package cm

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/softroce/softroce/pkg/qpstate"
)

// listener is who takes the requests for a service id and an address.
type listener struct {
	id      ListenerID
	args    ListenArgs
	waiting map[*conn]struct{} // requests that the program has not taken
}

// listeners is the table of them.
type listeners struct {
	byID      map[ListenerID]*listener
	byService map[ServiceID][]*listener
	last      ListenerID
	count     int
	limit     int
}

func (t *listeners) init(limit int) {
	t.byID, t.byService, t.limit = make(map[ListenerID]*listener), make(map[ServiceID][]*listener), limit
}

func (t *listeners) add(a ListenArgs) (ListenerID, error) {
	switch a.Type {
	case qpstate.RC, qpstate.UC, qpstate.UD:
	case qpstate.GSI:
		return 0, fmt.Errorf("listen: type %v: %w", a.Type, ErrInvalid)
	default:
		return 0, fmt.Errorf("listen: %v: %w", a.Type, ErrInvalid)
	}
	a.Addr = a.Addr.Unmap().WithZone("")
	for _, l := range t.byService[a.Service] {
		if overlap(&l.args, &a) {
			return 0, fmt.Errorf("listen for service id %v at %v: %w", a.Service, a.Addr, ErrInUse)
		}
	}
	if t.count >= t.limit {
		return 0, fmt.Errorf("listen: %d listeners: %w", t.count, ErrFull)
	}
	if a.Backlog <= 0 || a.Backlog > DefaultBacklog {
		a.Backlog = DefaultBacklog
	}
	for {
		t.last++
		if t.last != 0 && t.byID[t.last] == nil {
			break
		}
	}
	l := &listener{id: t.last, args: a, waiting: make(map[*conn]struct{})}
	t.byID[l.id] = l
	t.byService[a.Service] = append(t.byService[a.Service], l)
	t.count++
	return l.id, nil
}

func (t *listeners) remove(l *listener) {
	delete(t.byID, l.id)
	t.count--
	list := t.byService[l.args.Service]
	kept := list[:0]
	for _, o := range list {
		if o != l {
			kept = append(kept, o)
		}
	}
	clear(list[len(kept):])
	if len(kept) == 0 {
		delete(t.byService, l.args.Service)
		return
	}
	t.byService[l.args.Service] = kept
}

// find is the listener for a request to dst, which is not valid without a CMA
// header: the only one, since those that overlap exclude each other. known is
// whether there is any for the service id.
func (t *listeners) find(s ServiceID, dst netip.Addr) (l *listener, known bool) {
	list := t.byService[s]
	for _, l := range list {
		if l.takes(dst) {
			return l, true
		}
	}
	return nil, len(list) > 0
}

// takes says whether l is for requests to dst.
func (l *listener) takes(dst netip.Addr) bool {
	a := &l.args
	switch {
	case !a.Addr.IsValid():
		return true
	case !dst.IsValid():
		return false
	case a.wildcard():
		return a.families()&family(dst) != 0
	}
	return a.Addr == dst
}

// full says whether l takes no more requests for now.
func (l *listener) full() bool { return len(l.waiting) >= l.args.Backlog }

// Families as bits.
const (
	family4 = 1 << iota
	family6
	familyNone
)

func family(a netip.Addr) int {
	switch {
	case !a.IsValid():
		return familyNone
	case a.Is4():
		return family4
	}
	return family6
}

// wildcard says whether a is for more than one address.
func (a *ListenArgs) wildcard() bool { return !a.Addr.IsValid() || a.Addr.IsUnspecified() }

// families are the families of the addresses that a is for.
func (a *ListenArgs) families() int {
	switch {
	case !a.Addr.IsValid():
		return family4 | family6 | familyNone
	case a.Addr.Is6() && a.Addr.IsUnspecified() && !a.Only:
		return family4 | family6
	}
	return family(a.Addr)
}

// overlap says whether a request could be for both.
func overlap(a, b *ListenArgs) bool {
	if a.wildcard() || b.wildcard() {
		return a.families()&b.families() != 0
	}
	return a.Addr == b.Addr
}

func (m *Machine) unlisten(now time.Time, id ListenerID) error {
	l := m.listeners.byID[id]
	if l == nil {
		return fmt.Errorf("unlisten %d: %w", id, ErrUnknownID)
	}
	m.listeners.remove(l)
	for _, c := range sorted(l.waiting) {
		m.drop(now, c)
	}
	return nil
}

func (m *Machine) taken(id CommID) error {
	c, err := m.own("take", id)
	if err == nil {
		c.untake()
	}
	return err
}

package nic

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/softroce/softroce/internal/uapi"
)

// Resource is one kind of thing that a program can use up.
type Resource uint8

// The resources that are counted. Registered, Mapped and Ring are bytes,
// everything else is a number of things.
const (
	ResourcePrograms Resource = iota
	ResourcePDs
	ResourceMRs
	ResourceMWs
	ResourceCQs
	ResourceQPs
	ResourceChannels
	ResourceAHs
	ResourceSRQs
	// ResourceMcast counts queue pairs attached to multicast groups, once for each
	// group.
	ResourceMcast
	// ResourceCMIDs counts identifiers of the connection manager, also those that a
	// peer's request made.
	ResourceCMIDs
	ResourceCMChannels
	// ResourceMappings counts distinct memory files of programs mapped by the
	// adapter: a process has room for some 65,530 mappings.
	ResourceMappings
	// ResourceRegisteredBytes counts the bytes of all memory regions.
	ResourceRegisteredBytes
	// ResourceMappedBytes counts the whole memory files behind shared
	// regions, once each.
	ResourceMappedBytes
	// ResourceRingBytes counts the segments that rings are carved from.
	ResourceRingBytes
	numResources
)

// String names the resource as error texts and metrics do.
func (r Resource) String() string {
	switch r {
	case ResourcePrograms:
		return "programs"
	case ResourcePDs:
		return "protection domains"
	case ResourceMRs:
		return "memory regions"
	case ResourceMWs:
		return "memory windows"
	case ResourceCQs:
		return "completion queues"
	case ResourceQPs:
		return "queue pairs"
	case ResourceChannels:
		return "completion channels"
	case ResourceAHs:
		return "address handles"
	case ResourceSRQs:
		return "shared receive queues"
	case ResourceMcast:
		return "multicast attachments"
	case ResourceCMIDs:
		return "connection identifiers"
	case ResourceCMChannels:
		return "connection event channels"
	case ResourceMappings:
		return "shared memory files"
	case ResourceRegisteredBytes:
		return "registered bytes"
	case ResourceMappedBytes:
		return "mapped bytes"
	case ResourceRingBytes:
		return "ring bytes"
	case numResources:
	}
	return fmt.Sprintf("resource %d", uint8(r))
}

// Label is the resource as a metric's label: its name with underscores.
func (r Resource) Label() string { return strings.ReplaceAll(r.String(), " ", "_") }

// Quota bounds one holder's use of each resource. A zero field means the
// default of its level.
type Quota struct {
	Programs        uint64 // open connections
	PDs             uint64 // protection domains
	MRs             uint64 // memory regions
	MWs             uint64 // memory windows
	CQs             uint64 // completion queues
	QPs             uint64 // queue pairs; a program has at most MaxProgramQPs
	Channels        uint64 // completion channels, a pipe each
	AHs             uint64 // address handles; a program has at most MaxProgramAHs
	SRQs            uint64 // shared receive queues
	Mcast           uint64 // multicast attachments, and groups that identifiers joined
	CMIDs           uint64 // identifiers of the connection manager
	CMChannels      uint64 // event channels of the connection manager, a pipe each
	Mappings        uint64 // memory files mapped by the adapter
	RegisteredBytes uint64 // bytes of memory regions of either kind
	MappedBytes     uint64 // bytes of memory files mapped by the adapter
	RingBytes       uint64 // bytes of ring segments, made by the adapter
}

// field returns the quota's own value for r.
func (q *Quota) field(r Resource) *uint64 {
	switch r {
	case ResourcePrograms:
		return &q.Programs
	case ResourcePDs:
		return &q.PDs
	case ResourceMRs:
		return &q.MRs
	case ResourceMWs:
		return &q.MWs
	case ResourceCQs:
		return &q.CQs
	case ResourceQPs:
		return &q.QPs
	case ResourceChannels:
		return &q.Channels
	case ResourceAHs:
		return &q.AHs
	case ResourceSRQs:
		return &q.SRQs
	case ResourceMcast:
		return &q.Mcast
	case ResourceCMIDs:
		return &q.CMIDs
	case ResourceCMChannels:
		return &q.CMChannels
	case ResourceMappings:
		return &q.Mappings
	case ResourceRegisteredBytes:
		return &q.RegisteredBytes
	case ResourceMappedBytes:
		return &q.MappedBytes
	case ResourceRingBytes:
		return &q.RingBytes
	case numResources:
	}
	panic("nic: no such resource")
}

// withDefaults fills the zero fields of q from d.
func (q Quota) withDefaults(d *Quota) Quota {
	for r := range numResources {
		if f := q.field(r); *f == 0 {
			*f = *d.field(r)
		}
	}
	return q
}

// Limits bounds what is used on one adapter. The zero value means the
// defaults throughout.
type Limits struct {
	Adapter Quota // all programs together
	User    Quota // all programs of one user (by the peer credentials' uid)
	Program Quota // one connection
	// MaxSendWR, MaxRecvWR, MaxSGE, MaxInline (bytes) and MaxCQE bound one
	// queue; zero means 32768, 32768, 32, 1024 and 1<<20.
	MaxSendWR, MaxRecvWR, MaxSGE, MaxInline, MaxCQE uint32
	// MaxRDAtomic bounds READs and atomics outstanding on one QP, in either
	// direction; zero means 128, the most is 255.
	MaxRDAtomic uint8
}

// Set sets one quota from text of the form LEVEL:RESOURCE=NUMBER, as
// "user:queue_pairs=100": the level is adapter, user or program, the resource is
// named by its Label. Errors name what is allowed.
func (l *Limits) Set(text string) error {
	name, number, _ := strings.Cut(text, "=")
	level, label, ok := strings.Cut(name, ":")
	v, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil || v == 0 {
		return fmt.Errorf("nic: limit %q: want LEVEL:RESOURCE=NUMBER, the number 1 or more", text)
	}
	var q *Quota
	switch level {
	case "adapter":
		q = &l.Adapter
	case "user":
		q = &l.User
	case "program":
		q = &l.Program
	default:
		return fmt.Errorf("nic: limit %q: level %q is none of adapter, user, program", text, level)
	}
	var labels []string
	for r := range numResources {
		if r.Label() == label {
			*q.field(r) = v
			return nil
		}
		labels = append(labels, r.Label())
	}
	return fmt.Errorf("nic: limit %q: resource %q is none of %s", text, label, strings.Join(labels, ", "))
}

// MaxProgramQPs is the number of QP indices in a program's doorbell area.
const MaxProgramQPs = uapi.DoorbellIndices

// Our own tuning: the defaults of each level. They bound damage, not use: a
// program that needs more is configured.
var (
	defaultAdapterQuota = Quota{
		Programs: 4096, PDs: 65536, MRs: 1 << 17, MWs: 1 << 17, CQs: 1 << 18, QPs: 1 << 18, Channels: 16384,
		AHs: 1 << 20, SRQs: 65536, Mcast: 65536, CMIDs: 1 << 18, CMChannels: 16384,
		Mappings: 32768, RegisteredBytes: 1 << 42, MappedBytes: 1 << 42, RingBytes: 16 << 30,
	}
	defaultUserQuota = Quota{
		Programs: 1024, PDs: 32768, MRs: 1 << 17, MWs: 1 << 17, CQs: 1 << 18, QPs: 1 << 18, Channels: 8192,
		AHs: 1 << 19, SRQs: 65536, Mcast: 65536, CMIDs: 1 << 17, CMChannels: 8192,
		Mappings: 16384, RegisteredBytes: 1 << 42, MappedBytes: 1 << 42, RingBytes: 8 << 30,
	}
	defaultProgramQuota = Quota{
		Programs: 1, PDs: 4096, MRs: 65536, MWs: 65536, CQs: 65536, QPs: MaxProgramQPs, Channels: 1024,
		AHs: 65536, SRQs: 16384, Mcast: 16384, CMIDs: 65536, CMChannels: 1024,
		Mappings: 8192, RegisteredBytes: 1 << 41, MappedBytes: 1 << 41, RingBytes: 4 << 30,
	}
)

// withDefaults returns l with every zero filled in.
func (l Limits) withDefaults() Limits {
	l.Adapter = l.Adapter.withDefaults(&defaultAdapterQuota)
	l.User = l.User.withDefaults(&defaultUserQuota)
	l.Program = l.Program.withDefaults(&defaultProgramQuota)
	l.Program.QPs = min(l.Program.QPs, MaxProgramQPs)
	l.Program.AHs = min(l.Program.AHs, MaxProgramAHs)
	for _, f := range []struct {
		v *uint32
		d uint32
	}{{&l.MaxSendWR, 32768}, {&l.MaxRecvWR, 32768}, {&l.MaxSGE, 32}, {&l.MaxInline, 1024}, {&l.MaxCQE, 1 << 20}} {
		if *f.v == 0 {
			*f.v = f.d
		}
	}
	if l.MaxRDAtomic == 0 {
		l.MaxRDAtomic = 128
	}
	return l
}

// Validate reports the first limit that the ring layouts cannot carry.
func (l *Limits) Validate() error {
	for _, f := range []struct {
		name   string
		v, max uint32
	}{
		{"MaxSendWR", l.MaxSendWR, 1 << 20},
		{"MaxRecvWR", l.MaxRecvWR, 1 << 20},
		{"MaxSGE", l.MaxSGE, 256},
		{"MaxInline", l.MaxInline, 4096},
		{"MaxCQE", l.MaxCQE, 1 << 22},
	} {
		if f.v > f.max {
			return fmt.Errorf("nic: limits: %s is %d, at most %d", f.name, f.v, f.max)
		}
	}
	return nil
}

// A holder is one level's account: the adapter, a user or a program.
type holder struct {
	name  string // "this adapter", "user 1000", "this program"
	quota Quota
	used  [numResources]uint64
}

// A ledger books the use of every resource at the three levels. Safe for
// concurrent use.
type ledger struct {
	mu      sync.Mutex
	limits  Limits
	adapter holder
	users   map[uint32]*userHolder
}

type userHolder struct {
	holder
	programs int // accounts open
}

func newLedger(l Limits) *ledger {
	return &ledger{
		limits:  l,
		adapter: holder{name: "this adapter", quota: l.Adapter},
		users:   make(map[uint32]*userHolder),
	}
}

// An account is what one program charges its use to.
type account struct {
	ledger  *ledger
	uid     uint32
	user    *userHolder
	program holder
}

// open starts the account of one program of user uid. It fails when a limit
// of programs is reached.
func (l *ledger) open(uid uint32) (*account, error) {
	l.mu.Lock()
	u := l.users[uid]
	if u == nil {
		u = &userHolder{holder: holder{name: fmt.Sprintf("user %d", uid), quota: l.limits.User}}
		l.users[uid] = u
	}
	u.programs++
	l.mu.Unlock()
	a := &account{ledger: l, uid: uid, user: u, program: holder{name: "this program", quota: l.limits.Program}}
	if err := a.charge(ResourcePrograms, 1); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

// charge books n of r at every level or at none. The error names the level
// and the limit and is ENOMEM.
func (a *account) charge(r Resource, n uint64) error {
	l := a.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	levels := [...]*holder{&a.program, &a.user.holder, &l.adapter}
	for _, h := range levels {
		limit := *h.quota.field(r)
		if used := h.used[r]; n > limit || used > limit-n {
			return refuse(syscall.ENOMEM, "limit of %s of %s reached: %d in use, %d more asked for, limit %d",
				r, h.name, used, n, limit)
		}
	}
	for _, h := range levels {
		h.used[r] += n
	}
	return nil
}

// release takes back what charge booked.
func (a *account) release(r Resource, n uint64) {
	l := a.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range [...]*holder{&a.program, &a.user.holder, &l.adapter} {
		h.used[r] -= n
	}
}

// left returns how much of r may still be charged.
func (a *account) left(r Resource) uint64 {
	l := a.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	n := ^uint64(0)
	for _, h := range [...]*holder{&a.program, &a.user.holder, &l.adapter} {
		n = min(n, *h.quota.field(r)-h.used[r])
	}
	return n
}

// close takes back whatever the program still has booked and ends the
// account.
func (a *account) close() {
	l := a.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for r := range numResources {
		n := a.program.used[r]
		a.program.used[r] = 0
		a.user.used[r] -= n
		l.adapter.used[r] -= n
	}
	a.user.programs--
	if a.user.programs == 0 {
		delete(l.users, a.uid)
	}
}

// usage returns the adapter's total use of each resource.
func (l *ledger) usage() (used [numResources]uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.adapter.used
}

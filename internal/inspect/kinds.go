package inspect

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/softroce/softroce/pkg/verbs"
)

// Kind is a kind of object under its short name.
type Kind struct {
	Name    string // as rdma-resource(8) has it
	What    string
	kind    verbs.ResourceKind
	columns []column
}

// Kinds are all kinds, in the order of the summary.
var Kinds = []Kind{
	{"ctx", "programs that use the adapter", verbs.ResourceProgram, columns(
		number("CTX", "ctxn", program), number("QPS", "qps", users),
	)},
	{"pd", "protection domains", verbs.ResourcePD, ofProgram(
		number("PDN", "pdn", handle), number("USERS", "users", users),
	)},
	{"cq", "completion queues", verbs.ResourceCQ, ofProgram(
		number("CQN", "cqn", handle), number("CQE", "cqe", func(r *verbs.Resource) uint64 { return uint64(r.CQE) }),
		number("USERS", "users", users), number("WORKER", "worker", worker),
	)},
	{"qp", "queue pairs", verbs.ResourceQP, ofProgram(
		hex24("LQPN", "lqpn", func(r *verbs.Resource) (uint32, bool) { return r.Number, true }),
		text("TYPE", "type", func(r *verbs.Resource) string { return r.Type }),
		text("STATE", "state", func(r *verbs.Resource) string { return r.State }),
		hex24("RQPN", "rqpn", func(r *verbs.Resource) (uint32, bool) { return r.PeerQPN, r.Peer != "" }),
		peer,
		optional("MTU", "path_mtu", func(r *verbs.Resource) uint64 { return uint64(r.PathMTU) }),
		hex24("SQ-PSN", "sq_psn", func(r *verbs.Resource) (uint32, bool) { return r.SQPSN, ready(r, "RTS", "SQD", "SQE") }),
		hex24("RQ-PSN", "rq_psn", func(r *verbs.Resource) (uint32, bool) {
			return r.RQPSN, r.Type != "UD" && ready(r, "RTR", "RTS", "SQD", "SQE")
		}),
		number("WAIT", "sends_waiting", func(r *verbs.Resource) uint64 { return uint64(r.SendQueued) }),
		domain, number("SCQ", "send_cqn", func(r *verbs.Resource) uint64 { return uint64(r.SendCQ) }),
		number("RCQ", "recv_cqn", func(r *verbs.Resource) uint64 { return uint64(r.RecvCQ) }),
		optional("SRQ", "srqn", func(r *verbs.Resource) uint64 { return uint64(r.SRQ) }),
	)},
	{"mr", "memory regions", verbs.ResourceMR, ofProgram(
		number("MRN", "mrn", handle), domain, length, iova,
		hex32("LKEY", "lkey", func(r *verbs.Resource) uint32 { return r.LKey }), rkey, access,
	)},
	{"mw", "memory windows", verbs.ResourceMW, ofProgram(
		number("MWN", "mwn", handle), text("TYPE", "type", func(r *verbs.Resource) string { return r.Type }),
		domain, length, iova, rkey, access,
	)},
	{"srq", "shared receive queues", verbs.ResourceSRQ, ofProgram(
		number("SRQN", "srqn", handle), domain,
		number("MAX-WR", "max_wr", func(r *verbs.Resource) uint64 { return uint64(r.MaxWR) }),
		number("MAX-SGE", "max_sge", func(r *verbs.Resource) uint64 { return uint64(r.MaxSGE) }),
		optional("LIMIT", "limit", func(r *verbs.Resource) uint64 { return uint64(r.Limit) }),
		number("USERS", "users", users), number("WORKER", "worker", worker),
	)},
	{"ah", "address handles", verbs.ResourceAH, ofProgram(number("AHN", "ahn", handle), domain, peer)},
	{"cm_id", "identifiers of the connection manager", verbs.ResourceCMID, ofProgram(
		number("CM-IDN", "cm-idn", handle),
		text("PS", "ps", func(r *verbs.Resource) string { return r.Type }),
		text("STATE", "state", func(r *verbs.Resource) string { return r.State }),
		hex24("LQPN", "lqpn", func(r *verbs.Resource) (uint32, bool) { return r.QPN, r.QPN != 0 }),
		text("SRC-ADDR", "src-addr", func(r *verbs.Resource) string { return r.From }),
		text("DST-ADDR", "dst-addr", func(r *verbs.Resource) string { return r.To }),
	)},
}

// KindOf finds a kind by its name.
func KindOf(name string) (Kind, bool) {
	for _, k := range Kinds {
		if k.Name == name {
			return k, true
		}
	}
	return Kind{}, false
}

// column is one column of a table and one key of its JSON. value is nil where
// the object has none.
type column struct {
	title, key string
	value      func(*verbs.Resource) any
	show       func(any) string
}

// columns adds to the columns of a kind whose program it is.
func columns(own ...column) []column {
	return append(own,
		column{"PID", "pid", func(r *verbs.Resource) any {
			if r.PID == 0 {
				return nil // of another PID namespace
			}
			return r.PID
		}, plain},
		text("COMM", "comm", func(r *verbs.Resource) string { return r.Name }))
}

// ofProgram is columns for what has its number in its program only.
func ofProgram(own ...column) []column {
	own = append(own, number("CTX", "ctxn", program))
	return columns(own...)
}

func program(r *verbs.Resource) uint64 { return uint64(r.Program) }
func handle(r *verbs.Resource) uint64  { return uint64(r.Number) }
func users(r *verbs.Resource) uint64   { return uint64(r.Users) }
func worker(r *verbs.Resource) uint64  { return uint64(r.Worker) }

var (
	domain = number("PDN", "pdn", func(r *verbs.Resource) uint64 { return uint64(r.PD) })
	length = number("LENGTH", "length", func(r *verbs.Resource) uint64 { return r.Length })
	iova   = column{"IOVA", "iova", func(r *verbs.Resource) any { return r.IOVA }, func(v any) string { return fmt.Sprintf("%#x", v) }}
	rkey   = hex32("RKEY", "rkey", func(r *verbs.Resource) uint32 { return r.RKey })
	access = column{"ACCESS", "access", func(r *verbs.Resource) any { return rights(verbs.Access(r.Access)) }, func(v any) string {
		return strings.Join(v.([]string), ",")
	}}
	peer = column{"PEER", "peer_gid", func(r *verbs.Resource) any {
		if r.Peer == "" {
			return nil
		}
		return r.Peer
	}, address}
)

// plain shows a value as it is.
func plain(v any) string { return fmt.Sprint(v) }

func number(title, key string, f func(*verbs.Resource) uint64) column {
	return column{title, key, func(r *verbs.Resource) any { return f(r) }, plain}
}

// optional is a number whose 0 says that there is none.
func optional(title, key string, f func(*verbs.Resource) uint64) column {
	return column{title, key, func(r *verbs.Resource) any {
		if n := f(r); n != 0 {
			return n
		}
		return nil
	}, plain}
}

// hex24 is a queue pair number or a PSN; f says, too, whether there is one.
func hex24(title, key string, f func(*verbs.Resource) (uint32, bool)) column {
	return column{title, key, func(r *verbs.Resource) any {
		if n, ok := f(r); ok {
			return n
		}
		return nil
	}, func(v any) string { return fmt.Sprintf("0x%06x", v) }}
}

// hex32 is a key; 0 is one that the asker may not see, or that is not valid.
func hex32(title, key string, f func(*verbs.Resource) uint32) column {
	return column{title, key, func(r *verbs.Resource) any {
		if n := f(r); n != 0 {
			return n
		}
		return nil
	}, func(v any) string { return fmt.Sprintf("0x%08x", v) }}
}

// text is a text that a program may have chosen.
func text(title, key string, f func(*verbs.Resource) string) column {
	return column{title, key, func(r *verbs.Resource) any {
		if s := f(r); s != "" {
			return s
		}
		return nil
	}, func(v any) string { return clean(v.(string)) }}
}

// ready says whether a queue pair's state is one of those.
func ready(r *verbs.Resource, states ...string) bool {
	for _, s := range states {
		if r.State == s {
			return true
		}
	}
	return false
}

// address shows a GID as people write it.
func address(v any) string {
	a, err := netip.ParseAddr(v.(string))
	if err != nil {
		return clean(v.(string))
	}
	return a.Unmap().String()
}

// rights names the bits of an access, in the manual's words.
func rights(a verbs.Access) []string {
	out := []string{}
	for _, r := range []struct {
		bit  verbs.Access
		name string
	}{
		{verbs.AccessLocalWrite, "local_write"},
		{verbs.AccessRemoteWrite, "remote_write"},
		{verbs.AccessRemoteRead, "remote_read"},
		{verbs.AccessRemoteAtomic, "remote_atomic"},
		{verbs.AccessMWBind, "mw_bind"},
		{verbs.AccessZeroBased, "zero_based"},
		{verbs.AccessOnDemand, "on_demand"},
		{verbs.AccessHugeTLB, "hugetlb"},
		{verbs.AccessRelaxedOrdering, "relaxed_ordering"},
	} {
		if a&r.bit != 0 {
			out = append(out, r.name)
			a &^= r.bit
		}
	}
	if a != 0 {
		out = append(out, fmt.Sprintf("%#x", uint32(a)))
	}
	return out
}

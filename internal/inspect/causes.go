package inspect

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/verbs"
)

// Statuses is the number of statuses that the verbs have.
const Statuses = int(cq.TMRndvIncomplete) + 1

// A remedy names the attributes that a status usually comes of, and what to do.
type remedy struct{ attrs, change []string }

// remedies are those of the statuses that softroce gives.
var remedies = map[cq.Status]remedy{
	cq.LocLenErr: {
		[]string{"the length of the posted receive (datagrams: and 40 bytes more)", "path_mtu, where the two ends have different ones", "the length of a datagram: one packet of the address handle's MTU"},
		[]string{"post receives as long as the longest message", "set the same path_mtu at both ends"},
	},
	cq.LocQPOpErr: {
		[]string{"max_rd_atomic = 0 with a READ or an atomic", "an address handle that is destroyed or of another protection domain", "an invalidated key that cannot be"},
		[]string{"set max_rd_atomic at RTS", "keep address handles until their datagrams completed"},
	},
	cq.LocProtErr: {
		[]string{"lkey, addr and length of the request's buffers", "IBV_ACCESS_LOCAL_WRITE of a region that is written to", "the protection domain of region and queue pair"},
		[]string{"compare them with the region; do not deregister it before the request completed"},
	},
	cq.WRFlushErr: {
		[]string{"the first completion in error before this one, on either queue", "a modify to ERR, or a disconnect, by this end"},
		[]string{"look for the first completion that is not this one; softroce explain --last tells of it"},
	},
	cq.MWBindErr: {
		[]string{"IBV_ACCESS_MW_BIND of the region", "the range of the bind", "the window's new key and type"},
		[]string{"register the region with mw_bind, and bind inside it"},
	},
	cq.BadRespErr: {
		[]string{"path_mtu, where a READ's answers have another size", "two connections with one queue pair number"},
		[]string{"set the same path_mtu at both ends"},
	},
	cq.LocAccessErr: {
		[]string{"rkey, remote_addr and length that the peer sent", "qp_access_flags and the region's access here"},
		[]string{"tell the peer the right rkey and address"},
	},
	cq.RemInvReqErr: {
		[]string{"path_mtu of the two ends", "qp_access_flags of the peer", "the length of the peer's receives", "max_rd_atomic here above max_dest_rd_atomic there", "remote_addr of an atomic: a multiple of 8"},
		[]string{"set the same path_mtu at both ends", "run softroce explain at the peer, which knows which it was"},
	},
	cq.RemAccessErr: {
		[]string{"rkey, remote_addr and length of the request", "access flags of the peer's region: remote_write, remote_read, remote_atomic", "the peer's protection domain"},
		[]string{"compare them with what the peer registered; it must be registered still"},
	},
	cq.RemOpErr: {
		[]string{"lkey and range of the peer's receive"},
		[]string{"look at how the peer posts its receives"},
	},
	cq.RetryExcErr: {
		[]string{"retry_cnt and timeout (4.096µs x 2^timeout; 0 waits for ever)", "dest_qp_num, dgid and sgid_index", "rq_psn of the peer and sq_psn here", "path_mtu, where a link on the way takes less"},
		[]string{"see that the peer is in RTR and alive, and that nothing stops UDP port 4791", "raise timeout or retry_cnt"},
	},
	cq.RNRRetryExcErr: {
		[]string{"rnr_retry (7 waits for ever)", "min_rnr_timer of the peer: 0 stands for 655.36 ms, 1 for 0.01 ms"},
		[]string{"let the peer post receives before this end sends", "set rnr_retry to 7, or raise min_rnr_timer"},
	},
	cq.FatalErr: {
		[]string{"the daemon, which stopped", "cqe of a completion queue that overflowed"},
		[]string{"look into the daemon's log"},
	},
	cq.GeneralErr: {nil, []string{"look into the daemon's log"}},
}

// ExplainStatus explains a completion status.
func ExplainStatus(s cq.Status) Explanation {
	e := Explanation{Subject: "completion status", Meaning: s.Explain(), Seen: []string{}, Cause: []string{}, Change: []string{}}
	e.setStatus(s)
	r := remedies[s]
	e.Cause = append(e.Cause, r.attrs...)
	e.Change = append(e.Change, r.change...)
	return e
}

// errnoText says when calls give an errno.
type errnoText struct {
	name, meaning string
	remedy
}

// errnos are those that calls give.
var errnos = []errnoText{
	{"EINVAL", "The call was given something that cannot be: an attribute out of range or missing, a handle of another device, a transition that there is not.", remedy{
		[]string{"sgid_index without an entry in the GID table", "an attribute that the transition needs, or does not take", "path_mtu above active_mtu", "port_num that is not 1"},
		[]string{"read the error's text: it names the attribute, its value and the limit", "softroce gids lists the valid indices"},
	}},
	{"ENOMEM", "A queue or a table has no room: a work queue is full, or a limit of the program, its user or the adapter is reached.", remedy{
		[]string{"max_send_wr, max_recv_wr or cqe, when a post fails", "the limit that the error names, when a create fails"},
		[]string{"poll completions before posting more", "raise the limit (docs/operations.md, limits)"},
	}},
	{"EBUSY", "The object is in use: a protection domain with objects, a completion queue with queue pairs, a queue pair in a multicast group, a region with windows.", remedy{
		nil, []string{"destroy what uses it first; softroce resource lists the users"},
	}},
	{"ENETUNREACH", "The host knows no way to the address of the peer.", remedy{
		[]string{"dgid", "sgid_index: the address that is sent from"}, []string{"look at ip route get ADDRESS from ADDRESS, and at softroce gids"},
	}},
	{"EACCES", "The daemon's socket may not be used.", remedy{
		[]string{"--socket-mode and --socket-group of the daemon"}, []string{"join the group, or start the daemon with another mode"},
	}},
	{"EPERM", "A privilege is missing: a Q_Key of the privileged half, or memory that may not be reached.", remedy{
		[]string{"qkey with its highest bit set"}, []string{"use a Q_Key below 0x80000000"},
	}},
	{"ENOENT", "No daemon serves the socket.", remedy{
		[]string{"--socket, SOFTROCE_SOCKET"}, []string{"start softroce daemon, or name its socket"},
	}},
	{"ECONNREFUSED", "The socket is there, but no daemon behind it.", remedy{nil, []string{"start softroce daemon"}}},
	{"EPROTO", "Program and daemon do not understand one another.", remedy{nil, []string{"build both from one release"}}},
	{"EPROTONOSUPPORT", "Program and daemon are of different versions.", remedy{nil, []string{"build both from one release"}}},
	{"EOPNOTSUPP", "softroce does not have the operation, or this daemon is too old for it.", remedy{nil, []string{"see docs/features.md"}}},
	{"EIO", "The adapter is gone, or the queue pair was ended with a memory fault.", remedy{nil, []string{"look into the daemon's log, and open the device again"}}},
	{"EADDRINUSE", "UDP port 4791 of the address is taken.", remedy{
		nil, []string{"read the error: it names the holder; unload rdma_rxe, or give the adapter another address"},
	}},
	{"EADDRNOTAVAIL", "The address is on no interface of this host, or not yet.", remedy{nil, []string{"softroce gids says why"}}},
}

// ExplainErrno explains the errno of a call by its name; false: it is not known.
func ExplainErrno(name string) (Explanation, bool) {
	for _, n := range errnos {
		if n.name == strings.ToUpper(name) {
			return Explanation{
				Subject: "errno " + n.name, Meaning: n.meaning, Seen: []string{},
				Cause: append([]string{}, n.attrs...), Change: append([]string{}, n.change...),
			}, true
		}
	}
	return Explanation{}, false
}

// Asked is what an argument of explain names: exactly one of its fields is set.
type Asked struct {
	Status *cq.Status
	QPN    verbs.QPN
	Errno  string
}

// ParseAsked reads an argument: a status by name or number, the name of an errno,
// or a queue pair number above the statuses or after 0x.
func ParseAsked(arg string) (Asked, error) {
	up := strings.ToUpper(arg)
	for s := cq.Status(0); int(s) < Statuses; s++ {
		if name := s.String(); up == name || up == strings.TrimPrefix(name, "IBV_WC_") || up == strings.TrimPrefix(name, "IBV_") {
			return Asked{Status: &s}, nil
		}
	}
	if n, err := strconv.ParseUint(arg, 10, 8); err == nil && int(n) < Statuses {
		s := cq.Status(n)
		return Asked{Status: &s}, nil
	}
	if n, err := strconv.ParseUint(arg, 0, 24); err == nil && n > 0 {
		return Asked{QPN: verbs.QPN(n)}, nil
	}
	if slices.ContainsFunc(errnos, func(e errnoText) bool { return e.name == up }) {
		return Asked{Errno: up}, nil
	}
	return Asked{}, fmt.Errorf("%q is neither a completion status (0 to %d, or a name as IBV_WC_RETRY_EXC_ERR), nor a queue pair number (0x11), nor an errno of a call (EINVAL)",
		arg, Statuses-1)
}

// StatusTable is the table of docs/troubleshooting.md: every status with its
// meaning, what it usually comes of, and what to do.
func StatusTable() []string {
	out := []string{"| status | name | meaning | look at |", "|---|---|---|---|"}
	for s := cq.Status(0); int(s) < Statuses; s++ {
		look := "-"
		if r := remedies[s]; len(r.attrs)+len(r.change) > 0 {
			look = strings.Join(append(slices.Clone(r.attrs), r.change...), "; ")
		}
		out = append(out, fmt.Sprintf("| %d | `%v` | %s | %s |", uint8(s), s, s.Explain(), look))
	}
	return out
}

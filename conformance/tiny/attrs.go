package tiny

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/pkg/bth"
)

// transitions lists, by type, the attributes that a change of state needs and those that it may have (IBTA Vol 1 §10.3.1
// and the verbs' table): "required | optional".
var transitions = map[string]map[string]string{
	"RC": {
		"RESET>INIT": "pkey_index port access |",
		"INIT>INIT":  "| pkey_index port access",
		"INIT>RTR":   "path path_mtu dest_qpn rq_psn max_dest_rd_atomic min_rnr_timer | access pkey_index",
		"RTR>RTS":    "timeout retry_cnt rnr_retry sq_psn max_rd_atomic | cur_state access min_rnr_timer",
		"RTS>RTS":    "| cur_state access min_rnr_timer",
		"RTS>SQD":    "| en_sqd_async_notify",
		"SQD>RTS":    "| cur_state access min_rnr_timer",
		"SQD>SQD": "| port path timeout retry_cnt rnr_retry max_rd_atomic max_dest_rd_atomic access pkey_index " +
			"min_rnr_timer",
	},
	"UC": {
		"RESET>INIT": "pkey_index port access |",
		"INIT>INIT":  "| pkey_index port access",
		"INIT>RTR":   "path path_mtu dest_qpn rq_psn | access pkey_index",
		"RTR>RTS":    "sq_psn | cur_state access",
		"RTS>RTS":    "| cur_state access",
		"RTS>SQD":    "| en_sqd_async_notify",
		"SQD>RTS":    "| cur_state access",
		"SQD>SQD":    "| path access pkey_index",
		"SQE>RTS":    "| cur_state access",
	},
	"UD": {
		"RESET>INIT": "pkey_index port qkey |",
		"INIT>INIT":  "| pkey_index port qkey",
		"INIT>RTR":   "| pkey_index qkey",
		"RTR>RTS":    "sq_psn | cur_state qkey",
		"RTS>RTS":    "| cur_state qkey",
		"RTS>SQD":    "| en_sqd_async_notify",
		"SQD>RTS":    "| cur_state qkey",
		"SQD>SQD":    "| pkey_index qkey",
		"SQE>RTS":    "| cur_state qkey",
	},
}

// names lists the attributes that are there, but for the state.
func names(a *agent.Attrs) (out []string) {
	for _, x := range []struct {
		name string
		set  bool
	}{
		{"cur_state", a.CurState != nil},
		{"path_mtu", a.PathMTU != nil},
		{"qkey", a.QKey != nil},
		{"rq_psn", a.RQPSN != nil},
		{"sq_psn", a.SQPSN != nil},
		{"dest_qpn", a.DestQPN != nil},
		{"access", a.Access != nil},
		{"pkey_index", a.PKeyIndex != nil},
		{"port", a.Port != nil},
		{"path", a.Path != nil},
		{"timeout", a.Timeout != nil},
		{"retry_cnt", a.RetryCnt != nil},
		{"rnr_retry", a.RNRRetry != nil},
		{"min_rnr_timer", a.MinRNRTimer != nil},
		{"max_rd_atomic", a.MaxRDAtomic != nil},
		{"max_dest_rd_atomic", a.MaxDestRDAtomic != nil},
		{"en_sqd_async_notify", a.EnSQDAsyncNotify != nil},
	} {
		if x.set {
			out = append(out, x.name)
		}
	}
	return out
}

// modify changes attributes and state, all or nothing.
func (q *qp) modify(a *agent.Attrs) error {
	from, to := q.state, q.state
	if a.State != nil {
		to = *a.State
	}
	if err := q.checkTransition(from, to, a); err != nil {
		if q.t.broken("refused-modify-applies") {
			q.apply(a)
		}
		if !q.tolerated(from, to) {
			return err
		}
	}
	if err := q.checkValues(a); err != nil && !q.t.broken("modify-checks-nothing") {
		return err
	}
	q.apply(a)
	if a.State == nil {
		return nil
	}
	q.enter(from, to)
	return nil
}

// tolerated says which refusals a break passes over.
func (q *qp) tolerated(from, to string) bool {
	switch {
	case q.t.broken("modify-checks-nothing"):
		return true
	case q.t.broken("reset-to-rtr"):
		return from == "RESET" && to == "RTR"
	case q.t.broken("reset-to-err"):
		return from == "RESET" && to == "ERR"
	}
	return false
}

func (q *qp) checkTransition(from, to string, a *agent.Attrs) error {
	have := names(a)
	if to == "RESET" || to == "ERR" && from != "RESET" {
		return nil
	}
	typ := q.typ
	if typ == "GSI" {
		typ = "UD"
	}
	row, ok := transitions[typ][from+">"+to]
	if !ok {
		return fmt.Errorf("no transition of a %s queue pair from %s to %s", q.typ, from, to)
	}
	req, opt, _ := strings.Cut(row, "|")
	required, optional := strings.Fields(req), strings.Fields(opt)
	for _, r := range required {
		if !slices.Contains(have, r) && !(q.typ == "GSI" && r != "sq_psn") && !q.t.broken("modify-needs-nothing") {
			return fmt.Errorf("%s to %s needs %s", from, to, r)
		}
	}
	for _, h := range have {
		if !slices.Contains(required, h) && !slices.Contains(optional, h) && !q.t.broken("modify-takes-all") {
			return fmt.Errorf("%s to %s does not take %s", from, to, h)
		}
	}
	return nil
}

// checkValues checks the range of each attribute.
func (q *qp) checkValues(a *agent.Attrs) error {
	in := func(name string, v *int, most int) error {
		if v != nil && (*v < 0 || *v > most) {
			return fmt.Errorf("%s %d: at most %d", name, *v, most)
		}
		return nil
	}
	for _, err := range []error{
		in("timeout", a.Timeout, 31), in("retry_cnt", a.RetryCnt, 7), in("rnr_retry", a.RNRRetry, 7),
		in("min_rnr_timer", a.MinRNRTimer, 31), in("max_rd_atomic", a.MaxRDAtomic, maxRDAtomic),
		in("max_dest_rd_atomic", a.MaxDestRDAtomic, maxRDAtomic), in("pkey_index", a.PKeyIndex, 0), in("port", a.Port, 1),
	} {
		if err != nil {
			return err
		}
	}
	if a.PathMTU != nil {
		if _, ok := bth.MTUFromBytes(*a.PathMTU); !ok {
			return fmt.Errorf("path_mtu %d is none", *a.PathMTU)
		}
	}
	if a.Path != nil {
		if _, err := netip.ParseAddr(a.Path.Addr); err != nil || a.Path.GIDIndex != 0 {
			return fmt.Errorf("path to %q by GID %d: not an address, or no such GID", a.Path.Addr, a.Path.GIDIndex)
		}
	}
	if a.Access != nil {
		if _, err := parseAccess(*a.Access); err != nil {
			return err
		}
	}
	if a.CurState != nil && *a.CurState != q.state {
		return fmt.Errorf("cur_state %s: it is %s", *a.CurState, q.state)
	}
	return nil
}

func set[T any](dst *T, src *T) {
	if src != nil {
		*dst = *src
	}
}

// apply stores the attributes.
func (q *qp) apply(a *agent.Attrs) {
	set(&q.mtu, a.PathMTU)
	if q.t.broken("mtu-1024-only") {
		q.mtu = 1024
	}
	set(&q.qkey, a.QKey)
	set(&q.timeout, a.Timeout)
	set(&q.retryCnt, a.RetryCnt)
	set(&q.rnrRetry, a.RNRRetry)
	set(&q.minRNR, a.MinRNRTimer)
	set(&q.maxRD, a.MaxRDAtomic)
	set(&q.maxDest, a.MaxDestRDAtomic)
	set(&q.drainNotify, a.EnSQDAsyncNotify)
	if a.RQPSN != nil {
		q.rqPSN = bth.PSN(*a.RQPSN) & bth.PSNMask
	}
	if a.SQPSN != nil {
		q.sqPSN = bth.PSN(*a.SQPSN) & bth.PSNMask
	}
	if a.DestQPN != nil {
		q.dest = bth.QPN(*a.DestQPN) & bth.QPNMask
	}
	if a.Access != nil && !(q.t.broken("access-change-ignored") && q.state == "RTS") {
		q.access, _ = parseAccess(*a.Access)
	}
	if a.Path != nil {
		q.path = *a.Path
		q.remote, _ = netip.ParseAddr(a.Path.Addr)
	}
}

// enter takes the queue pair from one state to another, as allowed before.
func (q *qp) enter(from, to string) {
	switch to {
	case "ERR":
		q.toError()
		return
	case "RESET":
		q.toReset()
		return
	case "RTR":
		if from != "RTR" {
			q.startResponder()
		}
	case "RTS":
		if from == "RTR" {
			q.startRequester()
		}
	case "SQD":
		q.drained = false
	}
	q.state = to
	if q.t.broken("sqd-for-good") && from == "SQD" && to == "RTS" {
		return
	}
	q.pump()
	q.finish()
}

// toReset empties the queues without a completion.
func (q *qp) toReset() {
	old := *q
	q.oldPSN = q.epsn
	q.responder, q.requester = responder{}, requester{}
	if q.t.broken("reset-keeps-queues") {
		q.rq = q.flushed
	}
	if q.t.broken("reset-keeps-msn") {
		q.msn = old.msn
	}
	q.commEst, q.drained, q.access = false, false, 0
	q.state = "RESET"
	q.recvCQ.forget(q.num)
	q.sendCQ.forget(q.num)
	if q.t.broken("reset-flushes") {
		q.rq = q.flushed
		q.flushRQ()
	}
	q.flushed = nil
}

// attrs answers a query.
func (q *qp) attrs() *agent.Attrs {
	psn, sq, dest, mtu := uint32(q.rqPSN), uint32(q.sqPSN), uint32(q.dest), q.mtu
	state, path, zero, one := q.state, q.path, 0, 1
	acc := q.access.names()
	a := &agent.Attrs{
		State: &state, CurState: &state, PathMTU: &mtu, QKey: &q.qkey, RQPSN: &psn, SQPSN: &sq, DestQPN: &dest, Access: &acc,
		PKeyIndex: &zero, Port: &one, Timeout: ptr(q.timeout), RetryCnt: ptr(q.retryCnt), RNRRetry: ptr(q.rnrRetry),
		MinRNRTimer: ptr(q.minRNR), MaxRDAtomic: ptr(q.maxRD), MaxDestRDAtomic: ptr(q.maxDest),
	}
	a.QKey = ptr(q.qkey)
	if path.Addr != "" {
		a.Path = &path
	}
	return a
}

func ptr[T any](v T) *T { return &v }

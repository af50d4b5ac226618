package qpstate

import (
	"strconv"

	"github.com/softroce/softroce/pkg/bth"
)

// Legal values (specification values: the attributes' field widths, and what
// RoCE has one of).
const (
	maxTimeout  = 31
	maxRetry    = 7
	maxRNRTimer = 31
	maxMigState = 2
	onlyPort    = 1
	onlyPKey    = 0
)

// rangeRule is the legal range of one attribute.
type rangeRule struct {
	bit       Mask
	field     string
	value     func(a *Attr) uint64
	low, high uint64
}

// rangeRules is the one table of ranges that hold on every adapter.
var rangeRules = []rangeRule{
	{MaskPathMTU, "path_mtu", func(a *Attr) uint64 { return uint64(a.PathMTU) }, uint64(bth.MTU256), uint64(bth.MTU4096)},
	{MaskTimeout, "timeout", func(a *Attr) uint64 { return uint64(a.Timeout) }, 0, maxTimeout},
	{MaskRetryCnt, "retry_cnt", func(a *Attr) uint64 { return uint64(a.RetryCnt) }, 0, maxRetry},
	{MaskRNRRetry, "rnr_retry", func(a *Attr) uint64 { return uint64(a.RNRRetry) }, 0, maxRetry},
	{MaskMinRNRTimer, "min_rnr_timer", func(a *Attr) uint64 { return uint64(a.MinRNRTimer) }, 0, maxRNRTimer},
	{MaskPort, "port_num", func(a *Attr) uint64 { return uint64(a.PortNum) }, onlyPort, onlyPort},
	{MaskPKeyIndex, "pkey_index", func(a *Attr) uint64 { return uint64(a.PKeyIndex) }, onlyPKey, onlyPKey},
	{MaskPathMigState, "path_mig_state", func(a *Attr) uint64 { return uint64(a.PathMigState) }, 0, maxMigState},
	{MaskAV, "ah_attr.port_num", func(a *Attr) uint64 { return uint64(a.AH.PortNum) }, onlyPort, onlyPort},
}

func (l Limits) checkRanges(a *Attr, m Mask) error {
	if m&MaskAV != 0 && !a.AH.IsGlobal {
		return &AttrError{"ah_attr.is_global", 0, "must be 1: RoCE has no address but the GRH's"}
	}
	for i := range rangeRules {
		r := &rangeRules[i]
		if m&r.bit == 0 {
			continue
		}
		if v := r.value(a); v < r.low || v > r.high {
			return &AttrError{r.field, v, rangeText(r.low, r.high)}
		}
	}
	return l.check(a, m)
}

// check holds the attributes against the adapter's own limits.
func (l Limits) check(a *Attr, m Mask) error {
	switch {
	case l.MaxMTU != 0 && m&MaskPathMTU != 0 && a.PathMTU > l.MaxMTU:
		return &AttrError{"path_mtu", uint64(a.PathMTU), "the port's MTU is " + l.MaxMTU.String()}
	case l.GIDs != 0 && m&MaskAV != 0 && int(a.AH.SGIDIndex) >= l.GIDs:
		return &AttrError{"ah_attr.grh.sgid_index", uint64(a.AH.SGIDIndex), "the GID table has " + strconv.Itoa(l.GIDs) + " entries"}
	case l.MaxRDAtomic != 0 && m&MaskMaxQPRDAtomic != 0 && a.MaxRDAtomic > l.MaxRDAtomic:
		return &AttrError{"max_rd_atomic", uint64(a.MaxRDAtomic), "must be at most " + strconv.Itoa(int(l.MaxRDAtomic))}
	case l.MaxDestRDAtomic != 0 && m&MaskMaxDestRDAtomic != 0 && a.MaxDestRDAtomic > l.MaxDestRDAtomic:
		return &AttrError{"max_dest_rd_atomic", uint64(a.MaxDestRDAtomic), "must be at most " + strconv.Itoa(int(l.MaxDestRDAtomic))}
	default:
		return nil
	}
}

func rangeText(low, high uint64) string {
	if low == high {
		return "must be " + strconv.FormatUint(low, 10)
	}
	return "must be " + strconv.FormatUint(low, 10) + " to " + strconv.FormatUint(high, 10)
}

package qpstate

import (
	"strconv"
	"strings"
)

// Mask is a set of attributes, with the values of ibv_qp_attr_mask.
type Mask uint32

// Attributes (specification values: ibv_qp_attr_mask).
const (
	MaskState            Mask = 1 << 0
	MaskCurState         Mask = 1 << 1
	MaskEnSQDAsyncNotify Mask = 1 << 2
	MaskAccessFlags      Mask = 1 << 3
	MaskPKeyIndex        Mask = 1 << 4
	MaskPort             Mask = 1 << 5
	MaskQKey             Mask = 1 << 6
	MaskAV               Mask = 1 << 7
	MaskPathMTU          Mask = 1 << 8
	MaskTimeout          Mask = 1 << 9
	MaskRetryCnt         Mask = 1 << 10
	MaskRNRRetry         Mask = 1 << 11
	MaskRQPSN            Mask = 1 << 12
	MaskMaxQPRDAtomic    Mask = 1 << 13
	MaskAltPath          Mask = 1 << 14
	MaskMinRNRTimer      Mask = 1 << 15
	MaskSQPSN            Mask = 1 << 16
	MaskMaxDestRDAtomic  Mask = 1 << 17
	MaskPathMigState     Mask = 1 << 18
	MaskCap              Mask = 1 << 19
	MaskDestQPN          Mask = 1 << 20
	MaskRateLimit        Mask = 1 << 25
)

// maskNames are the attributes' names on the verbs API, in the order of their
// bits.
var maskNames = []struct {
	bit  Mask
	name string
}{
	{MaskState, "qp_state"},
	{MaskCurState, "cur_qp_state"},
	{MaskEnSQDAsyncNotify, "en_sqd_async_notify"},
	{MaskAccessFlags, "qp_access_flags"},
	{MaskPKeyIndex, "pkey_index"},
	{MaskPort, "port_num"},
	{MaskQKey, "qkey"},
	{MaskAV, "ah_attr"},
	{MaskPathMTU, "path_mtu"},
	{MaskTimeout, "timeout"},
	{MaskRetryCnt, "retry_cnt"},
	{MaskRNRRetry, "rnr_retry"},
	{MaskRQPSN, "rq_psn"},
	{MaskMaxQPRDAtomic, "max_rd_atomic"},
	{MaskAltPath, "alt_ah_attr"},
	{MaskMinRNRTimer, "min_rnr_timer"},
	{MaskSQPSN, "sq_psn"},
	{MaskMaxDestRDAtomic, "max_dest_rd_atomic"},
	{MaskPathMigState, "path_mig_state"},
	{MaskCap, "cap"},
	{MaskDestQPN, "dest_qp_num"},
	{MaskRateLimit, "rate_limit"},
}

// String is the attributes' verbs names, separated by ", ".
func (m Mask) String() string {
	var names []string
	for _, e := range maskNames {
		if m&e.bit != 0 {
			names = append(names, e.name)
			m &^= e.bit
		}
	}
	if m != 0 {
		names = append(names, "unknown bits 0x"+strconv.FormatUint(uint64(m), 16))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

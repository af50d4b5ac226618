package verbsagent

import (
	"fmt"

	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/verbs"
)

// The protocol's names: the verbs manual's, without their prefixes.
var (
	qpTypes = named(qpstate.GSI, verbs.RC, verbs.UC, verbs.UD)
	states  = named(verbs.StateReset, verbs.StateInit, verbs.StateRTR, verbs.StateRTS, verbs.StateSQD, verbs.StateSQE, verbs.StateErr)
	mwTypes = map[string]verbs.WindowType{"1": verbs.MWType1, "2": verbs.MWType2}

	// ops has two operations that pkg/verbs does not know, with the verbs' numbers, so that it is asked and refuses.
	ops = with(named(verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm, verbs.WRSend, verbs.WRSendWithImm, verbs.WRRDMARead,
		verbs.WRAtomicCmpAndSwp, verbs.WRAtomicFetchAdd, verbs.WRLocalInv, verbs.WRBindMW, verbs.WRSendWithInv),
		map[string]verbs.WROpcode{"FLUSH": 14, "ATOMIC_WRITE": 15})

	sendFlags = map[string]verbs.SendFlags{
		"FENCE": verbs.SendFence, "SIGNALED": verbs.SendSignaled, "SOLICITED": verbs.SendSolicited, "INLINE": verbs.SendInline,
	}

	// accessFlags has those of flushing, too: the adapter refuses them.
	accessFlags = map[string]verbs.Access{
		"LOCAL_WRITE": verbs.AccessLocalWrite, "REMOTE_WRITE": verbs.AccessRemoteWrite, "REMOTE_READ": verbs.AccessRemoteRead,
		"REMOTE_ATOMIC": verbs.AccessRemoteAtomic, "MW_BIND": verbs.AccessMWBind, "ZERO_BASED": verbs.AccessZeroBased,
		"ON_DEMAND": verbs.AccessOnDemand, "HUGETLB": verbs.AccessHugeTLB, "FLUSH_GLOBAL": 1 << 8, "FLUSH_PERSISTENT": 1 << 9,
		"RELAXED_ORDERING": verbs.AccessRelaxedOrdering,
	}

	eventNames = map[verbs.EventType]string{
		verbs.EventCQErr: "CQ_ERR", verbs.EventQPFatal: "QP_FATAL", verbs.EventQPReqErr: "QP_REQ_ERR",
		verbs.EventQPAccessErr: "QP_ACCESS_ERR", verbs.EventCommEst: "COMM_EST", verbs.EventSQDrained: "SQ_DRAINED",
		verbs.EventDeviceFatal: "DEVICE_FATAL", verbs.EventPortActive: "PORT_ACTIVE", verbs.EventPortErr: "PORT_ERR",
		verbs.EventSRQErr: "SRQ_ERR", verbs.EventSRQLimitReached: "SRQ_LIMIT_REACHED",
		verbs.EventQPLastWQE: "QP_LAST_WQE_REACHED", verbs.EventGIDChange: "GID_CHANGE",
	}
)

// named are values by the names that they say themselves.
func named[T fmt.Stringer](values ...T) map[string]T {
	m := map[string]T{}
	for _, v := range values {
		m[v.String()] = v
	}
	return m
}

func with[T any](m, more map[string]T) map[string]T {
	for k, v := range more {
		m[k] = v
	}
	return m
}

// value is what a name means.
func value[T any](m map[string]T, kind, name string) (T, error) {
	v, ok := m[name]
	if !ok {
		return v, invalid("there is no %s %q", kind, name)
	}
	return v, nil
}

// setOf are the bits that names mean.
func setOf[T ~uint32](m map[string]T, kind string, names []string) (set T, err error) {
	for _, n := range names {
		bit, err := value(m, kind, n)
		if err != nil {
			return 0, err
		}
		set |= bit
	}
	return set, nil
}

func accessOf(names []string) (verbs.Access, error) { return setOf(accessFlags, "access flag", names) }

// accessNames are the names of the bits, in the order of their values.
func accessNames(a verbs.Access) []string {
	names := []string{}
	for bit := verbs.Access(1); bit != 0; bit <<= 1 {
		for n, v := range accessFlags {
			if v == bit && a&bit != 0 {
				names = append(names, n)
			}
		}
	}
	return names
}

func eventName(t verbs.EventType) string {
	if n, ok := eventNames[t]; ok {
		return n
	}
	return fmt.Sprintf("EVENT_%d", uint32(t))
}

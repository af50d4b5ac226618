package verbsagent

import (
	"context"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

// modify sets the attributes that are there.
func (s *Session) modify(_ context.Context, r *agent.Request) (*agent.Answer, error) {
	qp, err := find(s.qps, "qp", r.QP)
	if err != nil {
		return nil, err
	}
	if r.Attrs == nil {
		r.Attrs = &agent.Attrs{}
	}
	at, mask, err := attrsOf(r.Attrs)
	if err != nil {
		return nil, err
	}
	return nil, qp.Modify(&at, mask)
}

// attrsOf are the attributes in the verbs' terms, and which are there.
func attrsOf(a *agent.Attrs) (at verbs.QPAttr, mask verbs.QPAttrMask, err error) {
	if err = words(a, &at, &mask); err != nil {
		return at, mask, err
	}
	for _, f := range []struct {
		to   *uint8
		from *int
		bit  verbs.QPAttrMask
		name string
	}{
		{&at.PortNum, a.Port, verbs.QPPortMask, "port"},
		{&at.Timeout, a.Timeout, verbs.QPTimeoutMask, "timeout"},
		{&at.RetryCnt, a.RetryCnt, verbs.QPRetryCntMask, "retry_cnt"},
		{&at.RNRRetry, a.RNRRetry, verbs.QPRNRRetryMask, "rnr_retry"},
		{&at.MinRNRTimer, a.MinRNRTimer, verbs.QPMinRNRTimerMask, "min_rnr_timer"},
		{&at.MaxRDAtomic, a.MaxRDAtomic, verbs.QPMaxQPRDAtomicMask, "max_rd_atomic"},
		{&at.MaxDestRDAtomic, a.MaxDestRDAtomic, verbs.QPMaxDestRDAtomicMask, "max_dest_rd_atomic"},
	} {
		if f.from == nil {
			continue
		}
		mask |= f.bit
		if *f.to, err = octet(f.name, *f.from); err != nil {
			return at, mask, err
		}
	}
	if a.PKeyIndex != nil {
		mask |= verbs.QPPKeyIndexMask
		if *a.PKeyIndex < 0 || *a.PKeyIndex > 0xFFFF {
			return at, mask, invalid("pkey_index %d", *a.PKeyIndex)
		}
		at.PKeyIndex = uint16(*a.PKeyIndex)
	}
	numbers(a, &at, &mask)
	return at, mask, nil
}

// words are the attributes that have names or addresses.
func words(a *agent.Attrs, at *verbs.QPAttr, mask *verbs.QPAttrMask) (err error) {
	if a.State != nil {
		*mask |= verbs.QPStateMask
		if at.State, err = value(states, "state", *a.State); err != nil {
			return err
		}
	}
	if a.CurState != nil {
		*mask |= verbs.QPCurStateMask
		if at.CurState, err = value(states, "state", *a.CurState); err != nil {
			return err
		}
	}
	if a.Access != nil {
		*mask |= verbs.QPAccessFlagsMask
		access, err := accessOf(*a.Access)
		if err != nil {
			return err
		}
		at.AccessFlags = uint32(access)
	}
	if a.PathMTU != nil {
		*mask |= verbs.QPPathMTUMask
		var ok bool
		if at.PathMTU, ok = bth.MTUFromBytes(*a.PathMTU); !ok {
			return invalid("there is no path MTU of %d bytes", *a.PathMTU)
		}
	}
	if a.Path != nil {
		*mask |= verbs.QPAVMask
		at.AH, err = pathOf(a.Path)
	}
	return err
}

// numbers are the attributes that any number fits.
func numbers(a *agent.Attrs, at *verbs.QPAttr, mask *verbs.QPAttrMask) {
	if a.QKey != nil {
		at.QKey = verbs.QKey(*a.QKey)
		*mask |= verbs.QPQKeyMask
	}
	if a.RQPSN != nil {
		at.RQPSN = verbs.PSN(*a.RQPSN)
		*mask |= verbs.QPRQPSNMask
	}
	if a.SQPSN != nil {
		at.SQPSN = verbs.PSN(*a.SQPSN)
		*mask |= verbs.QPSQPSNMask
	}
	if a.DestQPN != nil {
		at.DestQPN = verbs.QPN(*a.DestQPN)
		*mask |= verbs.QPDestQPNMask
	}
	if a.EnSQDAsyncNotify != nil {
		at.EnSQDAsyncNotify = *a.EnSQDAsyncNotify
		*mask |= verbs.QPEnSQDAsyncNotifyMask
	}
}

func octet(name string, n int) (uint8, error) {
	if n < 0 || n > 0xFF {
		return 0, invalid("%s %d", name, n)
	}
	return uint8(n), nil
}

// pathOf is an address vector.
func pathOf(p *agent.Path) (verbs.AHAttr, error) {
	at := verbs.AHAttr{IsGlobal: true, PortNum: 1, HopLimit: 64}
	if p == nil {
		return at, invalid("no path")
	}
	var err error
	if at.DGID, err = gidOf(p.Addr); err != nil {
		return at, err
	}
	if at.SGIDIndex, err = octet("gid_index", p.GIDIndex); err != nil {
		return at, err
	}
	if at.TrafficClass, err = octet("tclass", p.TClass); err != nil {
		return at, err
	}
	if p.HopLimit != 0 {
		at.HopLimit, err = octet("hop_limit", p.HopLimit)
	}
	return at, err
}

// query tells every attribute.
func (s *Session) query(_ context.Context, r *agent.Request) (*agent.Answer, error) {
	qp, err := find(s.qps, "qp", r.QP)
	if err != nil {
		return nil, err
	}
	at, err := qp.Query()
	if err != nil {
		return nil, err
	}
	access := accessNames(verbs.Access(at.AccessFlags))
	return &agent.Answer{Attrs: &agent.Attrs{
		State: new(at.State.String()), CurState: new(at.CurState.String()), PathMTU: new(at.PathMTU.Bytes()),
		QKey: new(uint32(at.QKey)), RQPSN: new(uint32(at.RQPSN)), SQPSN: new(uint32(at.SQPSN)),
		DestQPN: new(uint32(at.DestQPN)), Access: &access, PKeyIndex: new(int(at.PKeyIndex)), Port: new(int(at.PortNum)),
		Path: &agent.Path{
			Addr: at.AH.DGID.Addr().String(), GIDIndex: int(at.AH.SGIDIndex), HopLimit: int(at.AH.HopLimit),
			TClass: int(at.AH.TrafficClass),
		},
		Timeout: new(int(at.Timeout)), RetryCnt: new(int(at.RetryCnt)), RNRRetry: new(int(at.RNRRetry)),
		MinRNRTimer: new(int(at.MinRNRTimer)), MaxRDAtomic: new(int(at.MaxRDAtomic)),
		MaxDestRDAtomic: new(int(at.MaxDestRDAtomic)), EnSQDAsyncNotify: new(at.EnSQDAsyncNotify),
	}}, nil
}

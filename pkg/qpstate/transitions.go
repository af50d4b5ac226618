package qpstate

// perType holds one value for each service type.
type perType struct {
	rc, uc, ud, gsi attrs
}

// attrs are the attributes of one transition, besides MaskState.
type attrs struct {
	required, optional Mask
}

func (p *perType) of(t Type) attrs {
	switch t {
	case RC:
		return p.rc
	case UC:
		return p.uc
	case UD:
		return p.ud
	case GSI:
		return p.gsi
	default:
		return attrs{}
	}
}

// Groups of attributes that appear in several rows.
const (
	maskInit      = MaskPKeyIndex | MaskPort | MaskAccessFlags
	maskConnect   = MaskAV | MaskPathMTU | MaskDestQPN | MaskRQPSN
	maskResponder = MaskMaxDestRDAtomic | MaskMinRNRTimer
	maskRetry     = MaskTimeout | MaskRetryCnt | MaskRNRRetry
	maskRTR       = MaskAltPath | MaskAccessFlags | MaskPKeyIndex
	maskRunUC     = MaskCurState | MaskAltPath | MaskAccessFlags | MaskPathMigState
	maskRunRC     = maskRunUC | MaskMinRNRTimer
	maskRunUD     = MaskCurState | MaskQKey
	maskUDKeys    = MaskPKeyIndex | MaskQKey
	maskDrainUC   = MaskAV | MaskAltPath | MaskAccessFlags | MaskPKeyIndex | MaskPathMigState
	maskDrainRC   = maskDrainUC | maskRetry | maskResponder | MaskPort | MaskMaxQPRDAtomic
)

// edge is one transition.
type edge struct {
	from, to State
}

// transitions is the one table of legal transitions (IBTA Vol 1 §11.2.5.2,
// as the kernel's verbs core holds it). To RESET from every state
// and to ERR from every state but RESET no attribute is needed or allowed; a
// pair that is not listed does not exist.
var transitions = map[edge]perType{
	{Reset, Init}: {
		rc:  attrs{required: maskInit},
		uc:  attrs{required: maskInit},
		ud:  attrs{required: MaskPKeyIndex | MaskPort | MaskQKey},
		gsi: attrs{required: maskUDKeys},
	},
	{Init, Init}: {
		rc:  attrs{optional: maskInit},
		uc:  attrs{optional: maskInit},
		ud:  attrs{optional: MaskPKeyIndex | MaskPort | MaskQKey},
		gsi: attrs{optional: maskUDKeys},
	},
	{Init, RTR}: {
		rc:  attrs{required: maskConnect | maskResponder, optional: maskRTR},
		uc:  attrs{required: maskConnect, optional: maskRTR},
		ud:  attrs{optional: maskUDKeys},
		gsi: attrs{optional: maskUDKeys},
	},
	{RTR, RTS}: {
		rc:  attrs{required: maskRetry | MaskSQPSN | MaskMaxQPRDAtomic, optional: maskRunRC},
		uc:  attrs{required: MaskSQPSN, optional: maskRunUC},
		ud:  attrs{required: MaskSQPSN, optional: maskRunUD},
		gsi: attrs{required: MaskSQPSN, optional: maskRunUD},
	},
	{RTS, RTS}: {
		rc:  attrs{optional: maskRunRC},
		uc:  attrs{optional: maskRunUC},
		ud:  attrs{optional: maskRunUD},
		gsi: attrs{optional: maskRunUD},
	},
	{RTS, SQD}: {
		rc:  attrs{optional: MaskEnSQDAsyncNotify},
		uc:  attrs{optional: MaskEnSQDAsyncNotify},
		ud:  attrs{optional: MaskEnSQDAsyncNotify},
		gsi: attrs{optional: MaskEnSQDAsyncNotify},
	},
	{SQD, RTS}: {
		rc:  attrs{optional: maskRunRC},
		uc:  attrs{optional: maskRunUC},
		ud:  attrs{optional: maskRunUD},
		gsi: attrs{optional: maskRunUD},
	},
	{SQD, SQD}: {
		rc:  attrs{optional: maskDrainRC},
		uc:  attrs{optional: maskDrainUC},
		ud:  attrs{optional: maskUDKeys},
		gsi: attrs{optional: maskUDKeys},
	},
	// RC never enters SQE by itself; the pair exists all the same.
	{SQE, RTS}: {
		uc:  attrs{optional: MaskCurState | MaskAccessFlags},
		ud:  attrs{optional: maskRunUD},
		gsi: attrs{optional: maskRunUD},
	},
	{Reset, Reset}: {},
	{Init, Reset}:  {},
	{RTR, Reset}:   {},
	{RTS, Reset}:   {},
	{SQD, Reset}:   {},
	{SQE, Reset}:   {},
	{Err, Reset}:   {},
	{Init, Err}:    {},
	{RTR, Err}:     {},
	{RTS, Err}:     {},
	{SQD, Err}:     {},
	{SQE, Err}:     {},
	{Err, Err}:     {},
}

// Transition is what a modify from one state to another needs and allows for
// a type, besides MaskState; ok is false when there is no such transition.
func Transition(t Type, from, to State) (required, optional Mask, ok bool) {
	p, ok := transitions[edge{from, to}]
	if !ok || !t.Valid() {
		return 0, 0, false
	}
	a := p.of(t)
	return a.required, a.optional, true
}

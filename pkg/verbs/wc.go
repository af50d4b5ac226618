package verbs

import (
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/qpstate"
)

// Statuses of completions (ibv_wc_status). WCStatus.Explain says what each
// means and what usually causes it.
const (
	WCSuccess        = cq.Success
	WCLocLenErr      = cq.LocLenErr
	WCLocQPOpErr     = cq.LocQPOpErr
	WCLocProtErr     = cq.LocProtErr
	WCWRFlushErr     = cq.WRFlushErr
	WCMWBindErr      = cq.MWBindErr
	WCBadRespErr     = cq.BadRespErr
	WCLocAccessErr   = cq.LocAccessErr
	WCRemInvReqErr   = cq.RemInvReqErr
	WCRemAccessErr   = cq.RemAccessErr
	WCRemOpErr       = cq.RemOpErr
	WCRetryExcErr    = cq.RetryExcErr
	WCRNRRetryExcErr = cq.RNRRetryExcErr
	WCFatalErr       = cq.FatalErr
	WCGeneralErr     = cq.GeneralErr
)

// Operations of completions (ibv_wc_opcode).
const (
	WCSend            = cq.Send
	WCRDMAWrite       = cq.RDMAWrite
	WCRDMARead        = cq.RDMARead
	WCCompSwap        = cq.CompSwap
	WCFetchAdd        = cq.FetchAdd
	WCBindMW          = cq.BindMW
	WCLocalInv        = cq.LocalInv
	WCRegMR           = cq.RegMR
	WCRecv            = cq.Recv
	WCRecvRDMAWithImm = cq.RecvRDMAWithImm
)

// Flags of completions (ibv_wc_flags).
const (
	WCGRH     = cq.GRH
	WCWithImm = cq.WithImm
	WCWithInv = cq.WithInv
)

// Attributes that a modify sets (ibv_qp_attr_mask).
const (
	QPStateMask            = qpstate.MaskState
	QPCurStateMask         = qpstate.MaskCurState
	QPEnSQDAsyncNotifyMask = qpstate.MaskEnSQDAsyncNotify
	QPAccessFlagsMask      = qpstate.MaskAccessFlags
	QPPKeyIndexMask        = qpstate.MaskPKeyIndex
	QPPortMask             = qpstate.MaskPort
	QPQKeyMask             = qpstate.MaskQKey
	QPAVMask               = qpstate.MaskAV
	QPPathMTUMask          = qpstate.MaskPathMTU
	QPTimeoutMask          = qpstate.MaskTimeout
	QPRetryCntMask         = qpstate.MaskRetryCnt
	QPRNRRetryMask         = qpstate.MaskRNRRetry
	QPRQPSNMask            = qpstate.MaskRQPSN
	QPMaxQPRDAtomicMask    = qpstate.MaskMaxQPRDAtomic
	QPMinRNRTimerMask      = qpstate.MaskMinRNRTimer
	QPSQPSNMask            = qpstate.MaskSQPSN
	QPMaxDestRDAtomicMask  = qpstate.MaskMaxDestRDAtomic
	QPDestQPNMask          = qpstate.MaskDestQPN
)

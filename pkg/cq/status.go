package cq

// Status is a completion's outcome, with the values of ibv_wc_status.
type Status uint8

// Statuses (specification values: ibv_wc_status).
const (
	Success          Status = 0
	LocLenErr        Status = 1
	LocQPOpErr       Status = 2
	LocEECOpErr      Status = 3
	LocProtErr       Status = 4
	WRFlushErr       Status = 5
	MWBindErr        Status = 6
	BadRespErr       Status = 7
	LocAccessErr     Status = 8
	RemInvReqErr     Status = 9
	RemAccessErr     Status = 10
	RemOpErr         Status = 11
	RetryExcErr      Status = 12
	RNRRetryExcErr   Status = 13
	LocRDDViolErr    Status = 14
	RemInvRDReqErr   Status = 15
	RemAbortErr      Status = 16
	InvEECNErr       Status = 17
	InvEECStateErr   Status = 18
	FatalErr         Status = 19
	RespTimeoutErr   Status = 20
	GeneralErr       Status = 21
	TMErr            Status = 22
	TMRndvIncomplete Status = 23
)

// statusText is a status's verbs name, what it means and what usually causes
// it.
type statusText struct {
	name, explain string
}

var statusTexts = [...]statusText{
	Success:          {"IBV_WC_SUCCESS", "The request completed."},
	LocLenErr:        {"IBV_WC_LOC_LEN_ERR", "A local buffer did not fit the message: usually a receive posted with less room than the peer sent, a peer with another path MTU (the adapter's log names both), or a request longer than the port or the path MTU (UD) allows."},
	LocQPOpErr:       {"IBV_WC_LOC_QP_OP_ERR", "The queue pair could not execute the request: usually a malformed request, or one that its type or state does not support."},
	LocEECOpErr:      {"IBV_WC_LOC_EEC_OP_ERR", "An end-to-end context failed locally: belongs to reliable datagrams, which softroce does not have."},
	LocProtErr:       {"IBV_WC_LOC_PROT_ERR", "A local buffer may not be used so: usually a wrong or deregistered lkey, an address outside its region, another protection domain, or a region without local write that was to be written."},
	WRFlushErr:       {"IBV_WC_WR_FLUSH_ERR", "The request was not executed because the queue pair was in the error state: look at the first completion in error before this one, or at who moved the queue pair to ERR."},
	MWBindErr:        {"IBV_WC_MW_BIND_ERR", "A memory window could not be bound: usually a region without the bind right, a range outside the region, or a window that is bound already."},
	BadRespErr:       {"IBV_WC_BAD_RESP_ERR", "The peer answered with something that does not belong to the request: usually a faulty peer, or two connections using one queue pair number."},
	LocAccessErr:     {"IBV_WC_LOC_ACCESS_ERR", "An incoming RDMA write with immediate data was refused by this side's memory: usually the peer used a wrong rkey or address."},
	RemInvReqErr:     {"IBV_WC_REM_INV_REQ_ERR", "The peer refused the request as invalid: usually the two ends have different path MTUs, its receive buffer was too small, the operation is not enabled in its qp_access_flags, or its max_dest_rd_atomic is lower than this side's max_rd_atomic."},
	RemAccessErr:     {"IBV_WC_REM_ACCESS_ERR", "The peer's memory refused the access: usually a wrong or deregistered rkey, an address outside its region, a right that the region was not registered with, or another protection domain."},
	RemOpErr:         {"IBV_WC_REM_OP_ERR", "The peer could not finish the operation: usually a receive buffer of the peer whose lkey or range is wrong."},
	RetryExcErr:      {"IBV_WC_RETRY_EXC_ERR", "The peer did not answer after every retry: usually a wrong address or queue pair number, a peer that is gone or not yet in RTR, a firewall on UDP port 4791, a path that drops packets of this size, or a timeout that is too short."},
	RNRRetryExcErr:   {"IBV_WC_RNR_RETRY_EXC_ERR", "The peer had no receive posted in time: post receives before the peer sends, or raise rnr_retry (7 waits for ever) or the peer's min_rnr_timer, whose 0 stands for the longest wait (655 ms)."},
	LocRDDViolErr:    {"IBV_WC_LOC_RDD_VIOL_ERR", "A reliable datagram domain did not match: belongs to reliable datagrams, which softroce does not have."},
	RemInvRDReqErr:   {"IBV_WC_REM_INV_RD_REQ_ERR", "The peer refused a reliable datagram: belongs to reliable datagrams, which softroce does not have."},
	RemAbortErr:      {"IBV_WC_REM_ABORT_ERR", "The operation was aborted by the peer."},
	InvEECNErr:       {"IBV_WC_INV_EECN_ERR", "An end-to-end context number is invalid: belongs to reliable datagrams, which softroce does not have."},
	InvEECStateErr:   {"IBV_WC_INV_EEC_STATE_ERR", "An end-to-end context is in the wrong state: belongs to reliable datagrams, which softroce does not have."},
	FatalErr:         {"IBV_WC_FATAL_ERR", "The adapter failed: usually it stopped, or the program's own shared memory was damaged."},
	RespTimeoutErr:   {"IBV_WC_RESP_TIMEOUT_ERR", "A response did not come in time."},
	GeneralErr:       {"IBV_WC_GENERAL_ERR", "An error that no other status describes."},
	TMErr:            {"IBV_WC_TM_ERR", "Tag matching failed: a feature that softroce does not have."},
	TMRndvIncomplete: {"IBV_WC_TM_RNDV_INCOMPLETE", "A tag-matching rendezvous is incomplete: a feature that softroce does not have."},
}

// String is the verbs name of the status.
func (s Status) String() string {
	if int(s) < len(statusTexts) {
		return statusTexts[s].name
	}
	return "IBV_WC_STATUS_" + decimal(uint8(s))
}

// Explain says in one sentence what the status means and what usually causes
// it.
func (s Status) Explain() string {
	if int(s) < len(statusTexts) {
		return statusTexts[s].explain
	}
	return "A status that the verbs do not define."
}

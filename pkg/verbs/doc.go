// Package verbs is the program's side of a softroce adapter, in the terms of
// the verbs manual: Device, PD, MR, MW, AH, CQ, CompChannel, SRQ and QP, work
// requests and completions.
//
// A Device is one open connection to an adapter: to a daemon's, found by
// [Open], or to one in the same process (package adapter). Posting and polling
// work on memory shared with the adapter; neither makes a system call while
// the adapter's worker is awake. Everything else is a request to the adapter,
// answered with an errno and a text that says why.
//
// Errors are of type [*Error]; errors.Is finds the errno that the manual page
// of the call gives, as in errors.Is(err, unix.EINVAL).
//
// Calls on one object are serialised by the library, so all of them may be
// made from several goroutines. When the adapter dies, every call returns an
// error, posted requests complete as flushed, and an EventDeviceFatal is
// delivered; a program that wants to go on opens a new Device. Requests in a
// shared receive queue make no completions then, as no queue pair has taken them.
//
// # From the manual's names
//
// A call is a method of the object that is its first argument, without the
// object's name in it: ibv_modify_qp is [QP.Modify], ibv_dereg_mr [MR.Dereg],
// ibv_attach_mcast [QP.AttachMcast]. What makes an object is a method of what the
// object belongs to: [PD.CreateQP], [Device.CreateCQ]. Values keep their names
// without IBV_: WCSuccess, AccessRemoteWrite, EventSRQLimitReached; those of
// requests and queue pairs have WR, Send, QP and State in front. Besides:
//
//   - ibv_reg_mr, ibv_reg_mr_iova: [PD.RegMR], [PD.RegMRIova], and [PD.AllocMR] for
//     memory that adapter and program share; from address 0 on for SIZE_MAX bytes:
//     [PD.RegImplicit]; ib_alloc_mr and IB_WR_REG_MR: [PD.AllocFastMR], [MR.RegWR]
//   - ibv_post_send, ibv_post_recv, ibv_post_srq_recv take several requests, and
//     return how many were posted in place of bad_wr
//   - ibv_get_cq_event: [CompChannel.Get], [CompChannel.TryGet] where the descriptor
//     has O_NONBLOCK, [CompChannel.SyscallConn] for the descriptor;
//     ibv_get_async_event: [Device.AsyncEvent], [Device.TryAsyncEvent],
//     [Device.AsyncConn], and [AsyncEvent.Ack]
//   - ibv_create_cq_ex: [Device.CreateCQEx]; ibv_wc_read_x: [CQ.ReadWRID] and its like
//   - ibv_wr_start: [QP.WRStart]; ibv_wr_x: the methods of [Batch]
//   - ibv_bind_mw: [QP.BindMW] for windows of type 1; [MW.BindWR] makes the request
//     for those of type 2
//
// Many types are those of the packages below: the fields of [SendWR] and
// [RecvWR] are shown by go doc of pkg/wq, those of [WC] by pkg/cq, those of
// [QPAttr] and [QPCap] by pkg/qpstate. [WCStatus] explains itself.
//
// The package refuses to know any packet, and never retries a request.
package verbs

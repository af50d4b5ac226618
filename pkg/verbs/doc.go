// Package verbs is the program's side of a softroce adapter, in the terms of
// the verbs manual: Device, PD, MR, CQ, CompChannel and QP, work requests and
// completions.
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
// delivered; a program that wants to go on opens a new Device.
//
// Many types are those of the packages below: the fields of [SendWR] and
// [RecvWR] are shown by go doc of pkg/wq, those of [WC] by pkg/cq, those of
// [QPAttr] and [QPCap] by pkg/qpstate. [WCStatus] explains itself.
//
// The package refuses to know any packet, and never retries a request.
package verbs

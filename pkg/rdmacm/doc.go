// Package rdmacm connects programs by address: identifiers and event channels as
// those of librdmacm, and Dial, Listen and Accept with a context on top of them.
// Peers may be of any kind that speaks the InfiniBand connection manager over
// RoCEv2, Linux' rdma_cm among them.
//
// # Dial and Listen
//
// Most programs want a connected queue pair and nothing else:
//
//	conn, err := rdmacm.Dial(ctx, dev, netip.MustParseAddrPort("192.0.2.1:7471"), &rdmacm.Config{
//		QP: verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: limits},
//		Prepare: func(id *rdmacm.ID) error { // before the peer can send
//			_, err := id.QP().PostRecv(recv)
//			return err
//		},
//	})
//
// [Conn.QP] is then in RTS; [Conn.Done] tells of the connection's end. The other
// side is [Listen] and [Listener.Accept], or [Listener.Request] where the private
// data decides about the answer. Package rdmanet makes a net.Conn of it.
//
// # Identifiers and events
//
// An [ID] is an rdma_cm_id, an [EventChannel] where its events come. Calls that
// take time return at once, and an event says how they ended, in librdmacm's
// order:
//
//	client  ResolveAddr → ADDR_RESOLVED, ResolveRoute → ROUTE_RESOLVED, CreateQP,
//	        Connect → ESTABLISHED … DISCONNECTED, TIMEWAIT_EXIT
//	server  Bind, Listen → CONNECT_REQUEST with a new ID, CreateQP on it,
//	        Accept → ESTABLISHED …
//
// When the adapter dies, each identifier gets DEVICE_REMOVAL, after the events
// that it had, and [EventChannel.Get] fails from then on; identifiers are to be
// destroyed as ever. ADDR_CHANGE is never told: kernels tell it when a bond
// fails over to another card, which an adapter in software does not notice.
//
// Every event must be acknowledged ([Event.Ack]); [ID.Destroy] and [ID.Migrate]
// wait for those that were returned. A queue pair of [ID.CreateQP] is moved to
// RTR and RTS by this package, within [EventChannel.Get] at the client and within
// [ID.Accept] at the server, and to ERR by [ID.Disconnect]. A program with a
// queue pair of its own names it in ConnParam.QPN, sees CONNECT_RESPONSE in place
// of ESTABLISHED, modifies it with what [ID.InitQPAttr] says, and calls
// [ID.Establish].
//
// The calls have librdmacm's names without rdma_ and id: rdma_resolve_addr is
// [ID.ResolveAddr]. There is no synchronous mode (an identifier without a
// channel): that is what Dial and Listen are for. Errors are of type
// [*verbs.Error] with the errno that librdmacm sets; those of events are in
// [Event.Err].
//
// The package refuses to know a message's layout, and posts nothing to a queue
// pair.
package rdmacm

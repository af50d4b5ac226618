// Package udp4791 moves batches of RoCEv2 datagrams over UDP port 4791 and
// tells the IP facts around them. It owns the sockets of an adapter: which
// addresses it holds and that nobody else holds them, which worker a datagram
// goes to, which source port it leaves from, and what the kernel puts into the
// IP header. It refuses everything above UDP: of the RoCE header it knows one
// byte, the low byte of the destination QPN, because the steering filter reads
// it (IBTA Vol 1 §9.2, BTH byte 7). It builds no header and checks no ICRC.
//
// # Identification
//
// The ICRC of RoCEv2 covers the IPv4 identification and the flags (Annex
// A17.3.3). Every datagram sent from here has identification 0 and
// don't-fragment set: the sockets are unconnected and use
// IP_PMTUDISC_PROBE. A connected socket would count from a random start.
// PROBE rather than DO, so that a forged ICMP "fragmentation needed" cannot
// lower the MTU. A plain UDP socket does not show the identification of what
// it receives: RecvMeta.IDKnown is false there.
//
// # Backends
//
// A Group of UDP sockets is one Net of three. BackendPacket receives by packet
// sockets beside the group's, and BackendTUN sends and receives whole IP packets
// on a TUN link, with addresses that the host does not have. Both show the
// identification (RecvMeta.IDKnown) and what is wrong with a header
// (RecvMeta.Fault). OpenNet opens any of them.
//
// # Multicast
//
// A multicast group has one receive socket, joined on the interfaces of the
// adapter's addresses, on whatever endpoint listens to it. A datagram to a group
// leaves by the interface of the flow's local address, with a TTL of DefaultTTL
// unless its slot says otherwise, and comes back to the group's sockets on this
// host.
//
// # Who may call what
//
// A Group is opened and closed as a whole. An Endpoint belongs to one
// goroutine, the worker's; none of its methods may run at the same time as
// another one, or as Group.Close. All data-path calls are non-blocking raw
// system calls, so that the goroutine stays on its thread, and they do not
// allocate.
package udp4791

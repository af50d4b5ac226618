// Package rawudp measures what the kernel's UDP path carries between two
// threads that do nothing else: the floors beside which softroce is measured.
// It has sockets of its own and shares no code with the adapter's, so that a
// change there moves a ratio and not its base.
//
//   - Stream: segmented sends (UDP_SEGMENT) into a socket that takes merged
//     buffers (UDP_GRO), with recvmsg or recvmmsg;
//   - Batches: sendmmsg and recvmmsg of single datagrams;
//   - PingPong: one small datagram there and back, spinning or blocking;
//   - Memcpy: one core that copies memory.
//
// Packets are prepared once, their bytes are not looked at, and nothing is
// acknowledged: a counter that both threads share bounds what is on the way.
// It refuses to know what is in a packet.
package rawudp

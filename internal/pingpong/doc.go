// Package pingpong is a program that sends a message to and fro over each of the
// transport services, with the very TCP exchange of rdma-core's ibv_rc_pingpong,
// ibv_uc_pingpong, ibv_ud_pingpong and ibv_srq_pingpong, so that either end can
// be that program. It is what `softroce pingpong` runs. It refuses to know any
// packet, and to print.
//
// # The exchange
//
// The server listens on TCP port 18515. The endpoint of a queue pair is one
// message of 52 bytes: the text LID:QPN:PSN:GID as %04x:%06x:%06x:%032x and a
// NUL. The client sends its own first; the server makes its queue pairs ready,
// then answers with its own; the client confirms with the 5 bytes "done" and NUL.
// With a shared receive queue each side sends 256 endpoints, whatever the number
// of its queue pairs, the others all zero; the first queue pair of one side is the
// peer of the other's first, and so on. rdma-core's programs close the TCP
// connection then. This package leaves it open until the run has ended, and takes
// a later hang-up as a sign that the peer may be gone.
//
// # The message
//
// Each queue pair's message goes to and fro by itself; with a shared receive
// queue the exchanges of all of them are counted together, and the run ends when
// both directions have enough. A datagram puts 40 bytes of header in front of the
// message, in the receive buffer and in the completion's length. Its Q_Key is
// 0x11111111, and it goes to where an address handle says.
package pingpong

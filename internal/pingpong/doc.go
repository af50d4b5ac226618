// Package pingpong is a program that sends a message to and fro over a
// reliable connection, with the very TCP exchange of rdma-core's
// ibv_rc_pingpong, so that either end can be that program. It is what
// `softroce pingpong` runs. It refuses to know any packet, and to print.
//
// # The exchange
//
// The server listens on TCP port 18515. Each side's endpoint is one message of
// 52 bytes: the text LID:QPN:PSN:GID as %04x:%06x:%06x:%032x and a NUL. The
// client sends its own first; the server connects its queue pair, then
// answers with its own; the client confirms with the 5 bytes "done" and NUL.
// ibv_rc_pingpong closes the TCP connection then. This package leaves it open
// until the run has ended, and takes a later hang-up as a sign that the peer
// may be gone.
package pingpong

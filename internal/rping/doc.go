// Package rping is rdma-core's rping over pkg/rdmacm: it connects by address and
// passes a buffer to and fro. Either end can be that program.
//
// # The exchange
//
// One ping is the client's, and goes like this:
//
//	client  SEND of where its source buffer is
//	server  RDMA READ of that buffer, then SEND: go on
//	client  SEND of where its sink buffer is
//	server  RDMA WRITE of what it read into that buffer, then SEND: done
//
// Each SEND is of 16 bytes, big-endian: the buffer's address (8), its key (4) and
// its size (4). Those of the server say nothing but that they came. The connection
// ends when the client hangs up.
//
// The package refuses to know a flag, or how a connection is made.
package rping

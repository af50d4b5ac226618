// Package cmtime measures how long the steps of connecting and disconnecting take,
// as rdma-core's cmtime does over pkg/rdmacm. Either end can be that program.
//
// The client makes all its identifiers, then resolves all addresses, and so on:
// each step of all connections before the next one. No byte of data is sent.
//
// The package refuses to know a flag, or how a connection is made.
package cmtime

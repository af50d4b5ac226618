// Package uapi is the language between a program and the adapter: the control
// messages on the socket, the layout of the rings, doorbells and the status
// page in shared memory, and the records on the event pipes. A program's side
// and an adapter's side stand next to each other in one file per object, over
// one set of offsets.
//
// Everything is of fixed size and little-endian, for C will read it too, but
// for the words that both sides access atomically (indices, arm word, flags,
// doorbell bits): those are in the host's byte order, as both ends run on one
// host. Golden files under testdata hold every layout; a change of one is a
// change of Version. What goes as JSON may gain fields without one.
//
// The package does no I/O and takes no decision. It works on memory through
// Memory, which *shm.Segment is.
//
// # Trust
//
// A type of the adapter's side (SQConsumer, RQConsumer, CQRing,
// AdapterDoorbell) takes nothing from shared memory on trust: its own indices
// are private, the other side's are range-checked, and a slot is copied once
// and only the copy is decoded. A program that scribbles over its memory gets
// errors for itself. The program's side trusts the adapter, which could read
// and write its memory anyway, but never indexes outside of a ring either.
//
// Decoders take any bytes: they return ErrMalformed, never panic, and allocate
// no more than the message is long.
package uapi

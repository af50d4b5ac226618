// Package nic is the adapter: the one shell around the pure packages that has
// sockets, clocks, goroutines and other people's memory.
//
// The data plane is a few workers. A worker owns a receive socket and the
// queue pairs steered to it, and goes round in turns: packets in, doorbells,
// deadlines, packets out, completions (worker.go, turn.go). What it owns it
// alone touches; others reach it by commands that it runs between two turns.
//
// The control plane is one goroutine for each program (server.go,
// dispatch.go). It keeps the program's objects by handle, books what they use
// against limits, cuts rings out of the program's few shared segments, and
// takes everything back when the program ends or dies (cleanup.go). Whatever
// ends a life marks it first, lets every worker pass a turn's boundary, and
// only then frees memory.
//
// Queue pair 1 is the adapter's own (gsi.go): one worker has it, and behind it
// the connection manager of all programs. Their identifiers and event channels
// live on that worker's goroutine (objects_cm.go, cmevents.go).
//
// It refuses to know a header's byte or a protocol rule: those are bth's and
// transport's. Everything from a program, messages and shared memory alike,
// is hostile: it gets an errno and a sentence, or ends that program's queue
// pairs, never the adapter.
package nic

// Package cq says what came of a work request: completions, arming and
// overflow (IBTA Vol 1 §10.2.6 completion queues, §11.4.2 completion
// operations). It owns the work completion, its statuses and the producer's
// side of a completion queue over a small ring interface.
//
// It refuses transport rules (which status a fault gives is pkg/transport's)
// and memory: the ring belongs to its user.
package cq

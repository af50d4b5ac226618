// Package qpstate says which state a queue pair is in, what each state
// allows, and which modify is legal: one table of transitions with required
// and optional attributes (IBTA Vol 1 §10.3 QP states, §11.2.5.2 modify queue
// pair).
//
// It refuses timers and packets, and it holds no queue pair: [Check] judges a
// modify, the caller carries it out.
package qpstate

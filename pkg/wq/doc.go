// Package wq says what was asked: work requests, their scatter/gather
// elements, and the queues they wait in (IBTA Vol 1 §10.8 work requests,
// §11.4.1 posting).
//
// It refuses PSNs and everything else a transport makes of a request; a queue
// entry has opaque words for them.
//
// Copies of requests in flight live in a worker's [Slab]: an empty queue holds
// no block of it, and nothing is allocated in steady state. Nothing here is
// safe for concurrent use: a slab and its queues belong to one worker.
package wq

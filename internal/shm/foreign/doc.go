// Package foreign reaches memory of another process: regions that a program
// registered wherever its memory lies, read and written with process_vm_readv
// and process_vm_writev.
//
// It also holds what makes that lawful: the check that the adapter gains no
// power over a process that the process's user does not have anyway (Allowed).
// The library's part, where Yama restricts tracing, is shm.AllowTracer.
//
// Atomics are a read and a write under a lock that all workers share: atomic
// among the RDMA atomics of this process's adapters, not against the program's
// own stores (IBV_ATOMIC_HCA) and not against atomics on the same pages through
// a shared region.
package foreign

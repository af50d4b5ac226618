// Package rdmatest makes adapters for a test, and the faults that its program is
// to survive: packets lost, late, doubled, changed or out of order, chosen by
// number, queue pair, opcode, direction or chance; adapters that do not reach one
// another for a while; adapters that die and come back. The program under test is
// written on pkg/verbs, pkg/rdmacm or pkg/rdmanet and runs unchanged, on the
// device that Adapter.Open gives it.
//
//	net := rdmatest.New(t, rdmatest.Config{Seed: 7})
//	a, b := net.Adapter("a"), net.Adapter("b")
//	net.Drop(rdmatest.Sent(b), rdmatest.Opcode("ACK"), rdmatest.Nth(3))
//	run(a.Open(), b.Open(), b.Addr())
//
// It owns the adapters, the rules on them and what a test needs to know of both,
// and refuses to be another data path: the adapters are those of pkg/adapter, on
// loopback addresses that no other test of this host uses, with UDP sockets and
// real timers. A test that waits for retries to end sets short timeouts; why the
// time is not virtual is in docs/adr/0013-rdmatest-real-time.md.
//
// With one worker an adapter (the default) its packets are counted in one order,
// and what a rule does to the packets of one queue pair is the same in each run.
// Everything ends with the test. docs/rdmatest.md is the guide.
package rdmatest

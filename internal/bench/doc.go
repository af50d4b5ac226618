// Package bench measures softroce beside what limits it, in one interleaved
// run: the raw UDP floor (sendmmsg and recvmmsg of the same packets, nothing
// looked at) and kernel TCP. It runs the daemons and the perf command as a
// user does, in processes of their own, over loopback and over a veth pair
// between two network namespaces. `make bench` runs it and writes the table of
// docs/performance.md.
//
// Figures of a shared machine swing; what counts are ratios of medians within
// one run. It refuses to be a test: nothing here fails for being slow.
package bench

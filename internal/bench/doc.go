// Package bench measures softroce beside what limits it, in one interleaved
// run: raw UDP with and without segmentation offload, kernel TCP by iperf3, and
// the copying of memory. It runs the daemons and the perf command as a user
// does, in processes of their own: over loopback, over veth pairs between two
// network namespaces, and inside one adapter. `make bench` runs it and writes
// the tables of docs/performance.md, docs/bench.json and the charts.
//
// Each round measures everything once, in an order of its own; what counts are
// ratios of medians within one run, since figures of a shared machine swing.
// It refuses to be a test: nothing here fails for being slow. The package holds
// what is done with the figures; the measuring itself is in its tests, as a
// benchmark.
package bench

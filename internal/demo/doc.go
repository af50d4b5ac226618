// Package demo shows every verb once between two adapters of one process that
// share no state and meet over UDP only, checks the data, and times a little.
// It is what `softroce demo` runs. It refuses to be a benchmark: softroce perf
// is one.
package demo

// Package scenario runs a queue pair from a text, for tests: calls and packets go
// in line by line, and what the queue pair sends, completes, raises and becomes
// stands below the line that led to it, on virtual time. docs/scenarios.md has
// the grammar.
//
// A scenario is at once its own expectation: [Run] gives the text with the
// outputs that were found, and [Check] names the first line that differs. The
// adapter around the queue pairs is the least that they need: a key table, memory
// of a fixed pattern, receive queues. The peer is the script, so that it may break
// every rule.
//
// It refuses files, clocks and goroutines.
package scenario

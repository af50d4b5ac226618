// Package impair says what becomes of packets when a network is made bad on
// purpose: which are dropped, delayed, doubled, changed, put behind others,
// held to a rate, or stopped between two adapters. It owns the rules, their
// text, and what they decide about a packet. It refuses sockets, clocks and
// dice: time is an argument, chance comes from a rule's seed, and carrying a
// verdict out is the caller's.
//
// Equal rules and equal packets at equal times give equal verdicts. Chance is
// decided by the seed and by how many packets the rule matched before, so it
// does not depend on time, or on packets that do not match.
//
// A Set and a Queue are for one caller at a time.
package impair

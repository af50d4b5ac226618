//go:build !race

// Package raceorder tells the race detector what a datagram orders: all that its sender did before comes before all that
// its receiver does with it. Two ends in one process are ordered by the network, which the detector does not see. In other
// builds it is nothing.
//
// It owns that one order. It refuses to order anything else.
package raceorder

// Send comes before a datagram is sent.
func Send() {}

// Receive comes after one was received.
func Receive() {}

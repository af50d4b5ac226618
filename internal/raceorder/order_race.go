//go:build race

// Package raceorder tells the race detector what a datagram orders: see order.go.
package raceorder

import "sync/atomic"

var network atomic.Uint64

// Send comes before a datagram is sent.
func Send() { network.Add(1) }

// Receive comes after one was received.
func Receive() { network.Load() }

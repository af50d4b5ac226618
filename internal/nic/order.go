//go:build !race

package nic

// wireSend and wireReceive mark what a datagram orders: all that the sender
// did before it sent comes before all that the receiver does with it. Only the
// race detector has to be told (order_race.go).
func wireSend()    {}
func wireReceive() {}

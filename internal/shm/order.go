//go:build !race

package shm

// sent and received mark what a message orders: all that the sender did before
// comes before all that the receiver does after it, such as using memory again
// that the other side gave up. Only the race detector has to be told
// (order_race.go).
func sent()     {}
func received() {}

// Package e2e has tests of whole processes: the daemon as it is built, client
// programs, and what happens when one of them is killed. It owns no code but
// its tests.
package e2e

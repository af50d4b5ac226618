//go:build race

package uapi

// patience divides how often a race is tried where each try is slow.
const patience = 10

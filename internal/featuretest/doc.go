// Package featuretest is the list of what softroce offers, as tests: one case
// for each feature, run on the in-process adapter and on the daemon alike, so
// that docs/features.md says of each row what shows it. It owns the cases and
// nothing of an adapter; the caller opens the devices.
package featuretest

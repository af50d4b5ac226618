package cm

// TableSizes is the number of entries in the tables of peers' numbers, timers
// and backlogs.
func TableSizes(m *Machine) int {
	n := len(m.remotes) + len(m.qpns) + len(m.asked) + len(m.timers.heap)
	for _, l := range m.listeners.byID {
		n += len(l.waiting)
	}
	return n
}

// AckTimeoutCode is ackTimeoutCode.
var AckTimeoutCode = ackTimeoutCode

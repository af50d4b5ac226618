package cm

// TableSizes is the number of entries in the tables of peers' numbers, timers,
// backlogs and half-open requests.
func TableSizes(m *Machine) int {
	n := len(m.remotes) + len(m.qpns) + len(m.asked) + len(m.timers.heap) + len(m.peerHalf)
	for _, l := range m.listeners.byID {
		n += len(l.waiting)
	}
	return n
}

// AckTimeoutCode is ackTimeoutCode.
var AckTimeoutCode = ackTimeoutCode

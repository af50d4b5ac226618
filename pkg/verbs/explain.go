package verbs

import "github.com/softroce/softroce/internal/uapi"

// Story is what the adapter remembers of a queue pair: state, counters, attributes,
// what went wrong first, and the last NAKs and odd packets on the wire.
// `softroce explain` says it in words.
type Story = uapi.Story

// Trouble is what went wrong with a queue pair.
type Trouble = uapi.Trouble

// NAK is the last refusal that a queue pair sent or received.
type NAK = uapi.NAK

// OddPacket is a packet that was received and not simply accepted.
type OddPacket = uapi.Odd

// GIDStatus is an address of the adapter and whether it can be used.
type GIDStatus = uapi.GIDStatus

// Explain returns what the adapter remembers of a queue pair: as it is now, when it
// is there, then as it was at its failures, the newest first. With 0 those are the
// last failures of all queue pairs, which may be gone. Who sees what is as with
// Resources.
func (d *Device) Explain(qpn QPN) ([]Story, error) {
	var rep uapi.ExplainQPReply
	err := d.ctl.do("explain QP", uapi.OpExplainQP, &uapi.ExplainQPRequest{QPN: uint32(qpn)}, &rep)
	return rep.Stories, err
}

// GIDStatus returns every address that the adapter has or should have, also those
// that cannot be used now, and why not.
func (d *Device) GIDStatus() ([]GIDStatus, error) {
	var rep uapi.ListGIDsReply
	err := d.ctl.do("list GIDs", uapi.OpListGIDs, &uapi.ListGIDsRequest{}, &rep)
	return rep.GIDs, err
}

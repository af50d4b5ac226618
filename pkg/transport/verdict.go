package transport

import "strconv"

// A Verdict says what became of a received packet.
type Verdict uint8

// Verdicts. Those named Drop are silent drops (fault class D); the others had an
// effect or were answered.
const (
	Accepted        Verdict = iota // executed, or progress for the requester
	Duplicate                      // seen before: answered again, or a stale response
	OutOfSequence                  // a gap before it
	NotReady                       // no receive posted: RNR NAK
	Refused                        // a request answered with a fatal NAK
	DropMalformed                  // not parsed
	DropState                      // the state does not take such packets
	DropOpcodeClass                // another service's opcode
	DropOpcode                     // an opcode that this service has no use for
	DropAddress                    // not from the peer or not to this end
	DropPKey                       // no matching partition key
	DropQKey                       // wrong queue key
	DropStale                      // a response to nothing that was asked
	DropDuplicate                  // a duplicate that matches nothing remembered
	DropLength                     // a length that the path MTU or buffer forbids
	DropNoRecv                     // no receive posted, unacknowledged service
	DropResource                   // no memory for a replay record
	DropWaiting                    // behind a gap or an RNR NAK that was answered already
	DropMessage                    // of a message that lost a packet or was refused, UC
	DropAccess                     // a key, a range or a right forbids it, UC

	// VerdictCount is the number of verdicts.
	VerdictCount
)

var verdictNames = [VerdictCount]string{
	"accepted", "duplicate", "out_of_sequence", "not_ready", "refused", "drop_malformed",
	"drop_state", "drop_opcode_class", "drop_opcode", "drop_address", "drop_pkey", "drop_qkey",
	"drop_stale", "drop_duplicate", "drop_length", "drop_no_recv", "drop_resource", "drop_waiting",
	"drop_message", "drop_access",
}

// String gives the verdict as a counter's name: lower case, underscores.
func (v Verdict) String() string {
	if v < VerdictCount {
		return verdictNames[v]
	}
	return "verdict_" + strconv.Itoa(int(v))
}

// Dropped says whether the packet had no effect and no answer.
func (v Verdict) Dropped() bool { return v >= DropMalformed }

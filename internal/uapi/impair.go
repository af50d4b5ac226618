package uapi

// ImpairMode says what is to happen to the rules that impair packets.
type ImpairMode uint32

// The modes.
const (
	ImpairReplace ImpairMode = 0 // by those of the request, which may be none
	ImpairAdd     ImpairMode = 1
	ImpairRemove  ImpairMode = 2 // the one of the request's number
)

// ImpairRequest changes the rules that impair the adapter's packets, as JSON. The
// adapter takes it from root and its own user only: EPERM for others.
type ImpairRequest struct {
	Mode  ImpairMode `json:"mode"`
	ID    int        `json:"id,omitempty"`
	Rules string     `json:"rules,omitempty"` // one a line, as internal/impair reads them
}

// Append encodes the request.
func (m *ImpairRequest) Append(b []byte) []byte { return appendJSON(b, m) }

// Decode reads the request. Error: ErrMalformed.
func (m *ImpairRequest) Decode(b []byte) error {
	r := reader{b: b}
	*m = ImpairRequest{}
	r.json(m)
	if m.Mode > ImpairRemove {
		r.fail("mode %d", m.Mode)
	}
	return r.end()
}

// ImpairReply answers it with the numbers of new rules, as JSON.
type ImpairReply struct{ IDs []int }

// Append encodes the reply.
func (m *ImpairReply) Append(b []byte) []byte { return appendJSON(b, m.IDs) }

// Decode reads the reply. Error: ErrMalformed.
func (m *ImpairReply) Decode(b []byte) error {
	r := reader{b: b}
	m.IDs = nil
	r.json(&m.IDs)
	return r.end()
}

// ImpairRule is a rule in place.
type ImpairRule struct {
	ID      int    `json:"id"`
	Rule    string `json:"rule"`
	Matched uint64 `json:"matched"` // packets that it is about
	Hit     uint64 `json:"hit"`     // those that it did something to
	Over    bool   `json:"over"`    // its time has passed
}

// ListImpairRequest asks for the rules in place. It has no body.
type ListImpairRequest struct{ Empty }

// ListImpairReply answers it, as JSON.
type ListImpairReply struct{ Rules []ImpairRule }

// Append encodes the reply.
func (m *ListImpairReply) Append(b []byte) []byte { return appendJSON(b, m.Rules) }

// Decode reads the reply. Error: ErrMalformed.
func (m *ListImpairReply) Decode(b []byte) error {
	r := reader{b: b}
	m.Rules = nil
	r.json(&m.Rules)
	return r.end()
}

package cm

import "strconv"

// RejectReason is why a REJ was sent (IBTA Vol 1 §12.6.7.2).
type RejectReason uint16

// Reasons (specification values).
const (
	RejNoQP                  RejectReason = 1
	RejNoEEC                 RejectReason = 2
	RejNoResources           RejectReason = 3
	RejTimeout               RejectReason = 4
	RejUnsupported           RejectReason = 5
	RejInvalidCommID         RejectReason = 6
	RejInvalidCommInstance   RejectReason = 7
	RejInvalidServiceID      RejectReason = 8
	RejInvalidTransport      RejectReason = 9
	RejStaleConnection       RejectReason = 10
	RejNoRDC                 RejectReason = 11
	RejInvalidGID            RejectReason = 12
	RejInvalidLID            RejectReason = 13
	RejInvalidSL             RejectReason = 14
	RejInvalidTrafficClass   RejectReason = 15
	RejInvalidHopLimit       RejectReason = 16
	RejInvalidRate           RejectReason = 17
	RejInvalidAltGID         RejectReason = 18
	RejInvalidAltLID         RejectReason = 19
	RejInvalidAltSL          RejectReason = 20
	RejInvalidAltTraffic     RejectReason = 21
	RejInvalidAltHopLimit    RejectReason = 22
	RejInvalidAltRate        RejectReason = 23
	RejPortAndCMRedirect     RejectReason = 24
	RejPortRedirect          RejectReason = 25
	RejInvalidMTU            RejectReason = 26
	RejFewResponderResources RejectReason = 27
	RejConsumer              RejectReason = 28
	RejInvalidRNRRetry       RejectReason = 29
	RejDuplicateCommID       RejectReason = 30
	RejInvalidClassVersion   RejectReason = 31
	RejInvalidFlowLabel      RejectReason = 32
	RejInvalidAltFlowLabel   RejectReason = 33
	RejVendorOption          RejectReason = 35
)

var reasonTexts = [...]string{
	RejNoQP:                  "no queue pair",
	RejNoEEC:                 "no end-to-end context",
	RejNoResources:           "no resources",
	RejTimeout:               "timeout",
	RejUnsupported:           "unsupported request",
	RejInvalidCommID:         "invalid communication id",
	RejInvalidCommInstance:   "invalid communication instance",
	RejInvalidServiceID:      "invalid service id: nobody listens there",
	RejInvalidTransport:      "invalid transport service type",
	RejStaleConnection:       "stale connection",
	RejNoRDC:                 "no such reliable datagram channel",
	RejInvalidGID:            "invalid GID",
	RejInvalidLID:            "invalid LID",
	RejInvalidSL:             "invalid service level",
	RejInvalidTrafficClass:   "invalid traffic class",
	RejInvalidHopLimit:       "invalid hop limit",
	RejInvalidRate:           "invalid packet rate",
	RejInvalidAltGID:         "invalid alternate GID",
	RejInvalidAltLID:         "invalid alternate LID",
	RejInvalidAltSL:          "invalid alternate service level",
	RejInvalidAltTraffic:     "invalid alternate traffic class",
	RejInvalidAltHopLimit:    "invalid alternate hop limit",
	RejInvalidAltRate:        "invalid alternate packet rate",
	RejPortAndCMRedirect:     "redirected to another port and connection manager",
	RejPortRedirect:          "redirected to another port",
	RejInvalidMTU:            "invalid path MTU",
	RejFewResponderResources: "insufficient responder resources",
	RejConsumer:              "refused by the program",
	RejInvalidRNRRetry:       "invalid RNR retry count",
	RejDuplicateCommID:       "duplicate local communication id",
	RejInvalidClassVersion:   "invalid class version",
	RejInvalidFlowLabel:      "invalid flow label",
	RejInvalidAltFlowLabel:   "invalid alternate flow label",
	RejVendorOption:          "vendor option not supported",
}

// String is the reason in words.
func (r RejectReason) String() string { return word(reasonTexts[:], uint(r), "reject reason ") }

// SIDRStatus is the answer of a SIDR_REP (IBTA Vol 1 §12.11.2.1).
type SIDRStatus uint8

// Statuses (specification values).
const (
	SIDRSuccess     SIDRStatus = 0
	SIDRUnsupported SIDRStatus = 1 // nobody listens there
	SIDRReject      SIDRStatus = 2
	SIDRNoQP        SIDRStatus = 3
	SIDRRedirect    SIDRStatus = 4
	SIDRVersion     SIDRStatus = 5
)

var sidrTexts = [...]string{
	SIDRSuccess:     "success",
	SIDRUnsupported: "service id not supported: nobody listens there",
	SIDRReject:      "refused by the program",
	SIDRNoQP:        "no queue pair",
	SIDRRedirect:    "redirected",
	SIDRVersion:     "unsupported version",
}

// String is the status in words.
func (s SIDRStatus) String() string { return word(sidrTexts[:], uint(s), "SIDR status ") }

// APStatus is the answer of an APR (IBTA Vol 1 §12.8.2.1).
type APStatus uint8

// Statuses (specification values).
const (
	APLoaded        APStatus = 0
	APInvalidCommID APStatus = 1
	APUnsupported   APStatus = 2
	APRejected      APStatus = 3
	APRedirect      APStatus = 4
	APIsCurrent     APStatus = 5
)

var apTexts = [...]string{
	APLoaded:        "loaded",
	APInvalidCommID: "invalid communication id",
	APUnsupported:   "alternate paths are not supported",
	APRejected:      "refused",
	APRedirect:      "redirected",
	APIsCurrent:     "the path is the current one",
}

// String is the status in words.
func (s APStatus) String() string { return word(apTexts[:], uint(s), "APR status ") }

// word is texts[v], or kind and the number when there is none.
func word(texts []string, v uint, kind string) string {
	if v < uint(len(texts)) && texts[v] != "" {
		return texts[v]
	}
	return kind + strconv.FormatUint(uint64(v), 10)
}

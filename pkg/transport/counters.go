package transport

import "time"

// Counters are what the queue pairs of one worker count together, with plain
// increments. Where kernel rxe has a hw_counter of that kind the field has its
// name.
type Counters struct {
	SentPkts, SentBytes uint64 // built by PollTransmit or PollMiddles; bytes of UDP payload
	RcvdPkts, RcvdBytes uint64 // given to HandlePacket, or taken by HandleMiddles

	DuplicateRequest     uint64 // requests that were executed before
	OutOfSeqRequest      uint64 // requests beyond the expected PSN
	RcvdRNRErr           uint64 // RNR NAKs received
	SendRNRErr           uint64 // RNR NAKs sent
	RcvdSeqErr           uint64 // NAKs of a PSN sequence error received
	SendSeqErr           uint64 // NAKs of a PSN sequence error sent
	RetryExceededErr     uint64 // requests that ended with RETRY_EXC_ERR
	RetryRNRExceededErr  uint64 // requests that ended with RNR_RETRY_EXC_ERR
	CompleterRetryErr    uint64 // retries that a response gave the reason for
	LocalAckTimeoutErr   uint64 // expiries of the local ACK timer
	AckDeferred          uint64 // expiries put off, own packets waiting to leave
	PacketSeqErr         uint64 // responses beyond the expected PSN
	Retransmits          uint64 // request packets sent again
	Replays              uint64 // response packets sent again
	RDMASends, RDMARecvs uint64 // SENDs started; receives completed
	DroppedMessages      uint64 // messages begun and dropped, UC

	RcvdNAKs [32]uint64 // fatal and sequence NAKs received, by code
	SentNAKs [32]uint64 // likewise sent
	Verdicts [VerdictCount]uint64
}

// Stats are what one queue pair counts.
type Stats struct {
	SentPkts, SentBytes uint64
	RcvdPkts, RcvdBytes uint64
	SentMsgs, RcvdMsgs  uint64 // requests completed with success; messages, READs and atomics taken
	Retransmits         uint64 // request packets sent again
	Timeouts            uint64 // expiries of the local ACK timer
	RNRNAKsRcvd         uint64
	RNRNAKsSent         uint64
	SeqNAKsRcvd         uint64
	SeqNAKsSent         uint64
	Duplicates          uint64        // requests received that had been taken before
	OutOfSequence       uint64        // packets received behind a gap
	RNRWait             time.Duration // time asked for by RNR NAKs in all
}

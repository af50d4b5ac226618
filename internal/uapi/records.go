package uapi

import "encoding/binary"

// Lengths of the records on the event pipes, in bytes. A read of a whole number
// of records is never split by the kernel.
const (
	// ChannelRecordSize is a completion event's: cq handle u32, zero u32.
	ChannelRecordSize = 8
	// AsyncRecordSize is an async event's: event type u32, element kind u32,
	// handle u32, zero u32.
	AsyncRecordSize = 16
)

// AppendChannelRecord appends the record of a completion event of a CQ.
func AppendChannelRecord(b []byte, cq uint32) []byte {
	b = binary.LittleEndian.AppendUint32(b, cq)
	return append(b, 0, 0, 0, 0)
}

// DecodeChannelRecord returns the handle of the CQ that has an event; 0, which
// is none, for bytes that are no record.
func DecodeChannelRecord(b []byte) (cq uint32) {
	if len(b) != ChannelRecordSize {
		return 0
	}
	return binary.LittleEndian.Uint32(b)
}

// AsyncEvent is the kind of an async event, with the values of ibv_event_type.
type AsyncEvent uint32

// Async events (specification values: ibv_event_type).
const (
	EventCQErr             AsyncEvent = 0
	EventQPFatal           AsyncEvent = 1
	EventQPReqErr          AsyncEvent = 2
	EventQPAccessErr       AsyncEvent = 3
	EventCommEst           AsyncEvent = 4
	EventSQDrained         AsyncEvent = 5
	EventPathMig           AsyncEvent = 6
	EventPathMigErr        AsyncEvent = 7
	EventDeviceFatal       AsyncEvent = 8
	EventPortActive        AsyncEvent = 9
	EventPortErr           AsyncEvent = 10
	EventLIDChange         AsyncEvent = 11
	EventPKeyChange        AsyncEvent = 12
	EventSMChange          AsyncEvent = 13
	EventSRQErr            AsyncEvent = 14
	EventSRQLimitReached   AsyncEvent = 15
	EventQPLastWQEReached  AsyncEvent = 16
	EventClientReregister  AsyncEvent = 17
	EventGIDChange         AsyncEvent = 18
	EventWQFatal           AsyncEvent = 19
	EventDeviceSpeedChange AsyncEvent = 20
)

// Element says what an async event is about.
type Element uint32

// Elements, with what the record's handle is then.
const (
	ElementPort Element = 0 // the port number, or 0: the device
	ElementCQ   Element = 1
	ElementQP   Element = 2
	ElementSRQ  Element = 3
)

// AsyncRecord is one async event.
type AsyncRecord struct {
	Event  AsyncEvent
	Kind   Element
	Handle uint32
}

// Append appends the record.
func (r *AsyncRecord) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(r.Event))
	b = binary.LittleEndian.AppendUint32(b, uint32(r.Kind))
	b = binary.LittleEndian.AppendUint32(b, r.Handle)
	return append(b, 0, 0, 0, 0)
}

// DecodeAsyncRecord reads a record. Bytes that are no record are a device that
// cannot be understood any more: EventDeviceFatal.
func DecodeAsyncRecord(b []byte) AsyncRecord {
	if len(b) != AsyncRecordSize {
		return AsyncRecord{Event: EventDeviceFatal}
	}
	le := binary.LittleEndian
	return AsyncRecord{Event: AsyncEvent(le.Uint32(b)), Kind: Element(le.Uint32(b[4:])), Handle: le.Uint32(b[8:])}
}

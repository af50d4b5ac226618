package verbs

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// CQWCFlags are the fields of completions that a program reads by extended
// polling (ibv_create_cq_wc_flags).
type CQWCFlags uint64

// Fields of completions (specification values: ibv_create_cq_wc_flags).
const (
	WCExWithByteLen                      CQWCFlags = 1 << 0
	WCExWithImm                          CQWCFlags = 1 << 1
	WCExWithQPNum                        CQWCFlags = 1 << 2
	WCExWithSrcQP                        CQWCFlags = 1 << 3
	WCExWithSLID                         CQWCFlags = 1 << 4
	WCExWithSL                           CQWCFlags = 1 << 5
	WCExWithDLIDPathBits                 CQWCFlags = 1 << 6
	WCExWithCompletionTimestamp          CQWCFlags = 1 << 7
	WCExWithCVLAN                        CQWCFlags = 1 << 8
	WCExWithFlowTag                      CQWCFlags = 1 << 9
	WCExWithTMInfo                       CQWCFlags = 1 << 10
	WCExWithCompletionTimestampWallclock CQWCFlags = 1 << 11

	wcExStandard   = WCExWithCompletionTimestamp - 1
	wcExTimestamps = WCExWithCompletionTimestamp | WCExWithCompletionTimestampWallclock
	wcExOthers     = WCExWithCVLAN | WCExWithFlowTag | WCExWithTMInfo
)

// CQInitAttrEx says what completion queue to make (ibv_cq_init_attr_ex).
type CQInitAttrEx struct {
	CQE        int
	Channel    *CompChannel // may be nil
	CompVector int
	WCFlags    CQWCFlags // what will be read
}

// extended is the state of extended polling, guarded by the queue's mu but for
// open.
type extended struct {
	flags CQWCFlags
	on    bool        // made by CreateCQEx
	open  atomic.Bool // between StartPoll and EndPoll, whose caller holds mu
	wc    [1]WC
	wall  int64 // wall-clock nanoseconds less those of completions, 0: not taken
}

// CreateCQEx makes a completion queue for extended polling (ibv_create_cq_ex);
// Poll works on it, too. EOPNOTSUPP: fields that the adapter's completions do not
// have, timestamps included when the device's completion_timestamp_mask is 0;
// EINVAL: unknown ones; others as for CreateCQ.
func (d *Device) CreateCQEx(attr *CQInitAttrEx) (*CQ, error) {
	const op = "create CQ"
	if u := attr.WCFlags &^ (wcExStandard | wcExTimestamps | wcExOthers); u != 0 {
		return nil, invalid(op, "unknown completion fields %#x", uint64(u))
	}
	no := attr.WCFlags & wcExOthers
	if t := attr.WCFlags & wcExTimestamps; t != 0 {
		dev, err := d.Query()
		if err != nil {
			return nil, err
		}
		if dev.CompletionTimestampMask == 0 {
			no |= t
		}
	}
	if no != 0 {
		return nil, &Error{Op: op, Errno: unix.EOPNOTSUPP, Text: fmt.Sprintf("completions do not have the fields %#x", uint64(no))}
	}
	c, err := d.CreateCQ(attr.CQE, attr.Channel, attr.CompVector)
	if err != nil {
		return nil, err
	}
	c.ext.on, c.ext.flags = true, attr.WCFlags
	return c, nil
}

// errPollEmpty is what extended polling returns when nothing is there.
var errPollEmpty = &Error{Op: "poll CQ", Errno: unix.ENOENT, Text: "no completion is there"}

// StartPoll takes the first completion for the Read methods (ibv_start_poll).
// After success, NextPoll takes the further ones and EndPoll must follow; until
// then no other call on the queue may be made by this goroutine, and others wait.
// ENOENT: no completion is there; EINVAL: the queue was not made by CreateCQEx.
// After an error, EndPoll must not follow.
func (c *CQ) StartPoll() error {
	const op = "poll CQ"
	c.mu.Lock()
	switch {
	case !c.ext.on:
		c.mu.Unlock()
		return invalid(op, "the queue was not made for extended polling")
	case c.closed:
		c.mu.Unlock()
		return invalid(op, "the queue is destroyed")
	}
	c.ext.wall = 0
	if n, err := c.poll(c.ext.wc[:]); n == 0 {
		c.mu.Unlock()
		if err != nil {
			return err
		}
		return errPollEmpty
	}
	c.ext.open.Store(true)
	return nil
}

// NextPoll takes the next completion (ibv_next_poll). ENOENT: no more is there,
// and the Read methods still give the one before; EndPoll must follow in any
// case.
func (c *CQ) NextPoll() error {
	if !c.ext.open.Load() {
		return invalid("poll CQ", "no poll was started")
	}
	var next [1]WC
	n := c.ring.Poll(next[:])
	if n == 0 {
		return errPollEmpty
	}
	c.ext.wc = next
	c.take(c.ext.wc[:])
	return nil
}

// EndPoll ends what StartPoll began (ibv_end_poll).
func (c *CQ) EndPoll() {
	if c.ext.open.CompareAndSwap(true, false) {
		c.mu.Unlock()
	}
}

// The Read methods give the fields of the completion that StartPoll or NextPoll
// took (ibv_wc_read_*); WRID and Status are ibv_cq_ex's fields of those names.
// A field that was not asked for when the queue was made is 0.

// ReadWRID is the request's own mark.
func (c *CQ) ReadWRID() uint64 { return c.ext.wc[0].WRID }

// ReadStatus is the outcome.
func (c *CQ) ReadStatus() WCStatus { return c.ext.wc[0].Status }

// ReadOpcode is the operation.
func (c *CQ) ReadOpcode() WCOpcode { return c.ext.wc[0].Opcode }

// ReadVendorErr is 0, or a code of softroce's own.
func (c *CQ) ReadVendorErr() uint32 { return c.ext.wc[0].VendorErr }

// ReadWCFlags tells which optional fields are valid.
func (c *CQ) ReadWCFlags() WCFlags { return c.ext.wc[0].Flags }

// ReadByteLen is the length in bytes, as WC.ByteLen.
func (c *CQ) ReadByteLen() uint32 { return field(c, WCExWithByteLen, c.ext.wc[0].ByteLen) }

// ReadImmData is the immediate data, a host value.
func (c *CQ) ReadImmData() uint32 { return field(c, WCExWithImm, c.ext.wc[0].ImmData) }

// ReadInvalidatedRKey is the key that the peer invalidated.
func (c *CQ) ReadInvalidatedRKey() RKey {
	return field(c, WCExWithImm, RKey(c.ext.wc[0].InvalidatedRKey))
}

// ReadQPNum is the number of the queue pair.
func (c *CQ) ReadQPNum() QPN { return field(c, WCExWithQPNum, c.ext.wc[0].QPN) }

// ReadSrcQP is the number of the queue pair that sent the datagram.
func (c *CQ) ReadSrcQP() QPN { return field(c, WCExWithSrcQP, c.ext.wc[0].SrcQP) }

// ReadSLID is 0: RoCE has no LIDs.
func (c *CQ) ReadSLID() uint32 { return 0 }

// ReadSL is 0: the VLAN priority is not seen.
func (c *CQ) ReadSL() uint8 { return 0 }

// ReadDLIDPathBits is 0: RoCE has no LIDs.
func (c *CQ) ReadDLIDPathBits() uint8 { return 0 }

// ReadCompletionTS is when the adapter completed the request, in nanoseconds of
// the clock CLOCK_MONOTONIC; hca_core_clock of the device tells its rate.
func (c *CQ) ReadCompletionTS() uint64 {
	return field(c, WCExWithCompletionTimestamp, c.ext.wc[0].Timestamp)
}

// ReadCompletionWallclockNS is when the adapter completed the request, in
// nanoseconds since 1970 (CLOCK_REALTIME, as it is when the poll was started).
func (c *CQ) ReadCompletionWallclockNS() uint64 {
	if c.ext.flags&WCExWithCompletionTimestampWallclock == 0 || c.ext.wc[0].Timestamp == 0 {
		return 0
	}
	if c.ext.wall == 0 {
		var mono unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono); err != nil {
			return 0
		}
		c.ext.wall = time.Now().UnixNano() - mono.Nano()
	}
	return uint64(int64(c.ext.wc[0].Timestamp) + c.ext.wall)
}

// field is v, or 0 when the field was not asked for.
func field[T ~uint32 | ~uint64](c *CQ, flag CQWCFlags, v T) T {
	if c.ext.flags&flag == 0 {
		return 0
	}
	return v
}

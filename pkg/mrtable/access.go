package mrtable

import (
	"errors"
	"fmt"
)

// LKey is a local key: it names a region in a scatter/gather element.
// The upper 24 bits choose the slot, the low 8 are the variant byte.
type LKey uint32

// RKey is a remote key: it travels in RETH, AtomicETH and IETH. A region's
// RKey has the value of its LKey.
type RKey uint32

// WindowType is the type of a memory window (ibv_mw_type).
type WindowType uint32

// Types of windows (specification values: ibv_mw_type). Type 2 is 2B here: bound
// to a domain and a queue pair (IBTA Vol 1 §10.6.7).
const (
	WindowType1 WindowType = 1
	WindowType2 WindowType = 2
)

// PD is the number of a protection domain, unique in an adapter and never 0.
type PD uint32

// Access is a set of rights, with the values of ibv_access_flags. Local read
// is always granted and has no bit.
type Access uint32

// Rights (specification values: ibv_access_flags).
const (
	AccessLocalWrite      Access = 1 << 0
	AccessRemoteWrite     Access = 1 << 1
	AccessRemoteRead      Access = 1 << 2
	AccessRemoteAtomic    Access = 1 << 3
	AccessMWBind          Access = 1 << 4
	AccessZeroBased       Access = 1 << 5
	AccessOnDemand        Access = 1 << 6
	AccessHugeTLB         Access = 1 << 7
	AccessRelaxedOrdering Access = 1 << 20

	// accessOptional are the bits that a program may set and an adapter may
	// ignore without knowing them (IBV_ACCESS_OPTIONAL_RANGE).
	accessOptional Access = 0x3FF << 20

	accessRemote = AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic
	accessKnown  = AccessLocalWrite | accessRemote | AccessMWBind | AccessZeroBased |
		AccessOnDemand | AccessHugeTLB | accessOptional
)

// Errors that callers branch on. The look-up errors come back unwrapped, so
// that a refusal allocates nothing.
var (
	// ErrKey: no live region or window has this key.
	ErrKey = errors.New("mrtable: no memory region has this key")
	// ErrPD: the region belongs to another protection domain.
	ErrPD = errors.New("mrtable: key belongs to another protection domain")
	// ErrAccess: the region does not grant the access.
	ErrAccess = errors.New("mrtable: key does not grant this access")
	// ErrBounds: the range is not wholly inside the region or segment.
	ErrBounds = errors.New("mrtable: range reaches outside the region")
	// ErrAlign: an atomic's address is not a multiple of 8.
	ErrAlign = errors.New("mrtable: atomic address is not 8-byte aligned")
	// ErrFull: every slot of the table is in use.
	ErrFull = errors.New("mrtable: no free region slot")
	// ErrAccessFlags: the set of rights is not one a region may have.
	ErrAccessFlags = errors.New("mrtable: invalid access flags")
	// ErrLength: address plus length does not fit in 64 bits.
	ErrLength = errors.New("mrtable: region wraps the address space")
	// ErrPDZero: protection domain 0 does not exist.
	ErrPDZero = errors.New("mrtable: protection domain 0")
	// ErrNoMemory: registration without memory.
	ErrNoMemory = errors.New("mrtable: region without memory")
	// ErrNotRegistered: the region or window does not (or no longer) exist here.
	ErrNotRegistered = errors.New("mrtable: region is not registered")
	// ErrWindowType: there are windows of type 1 and 2.
	ErrWindowType = errors.New("mrtable: no such window type")
	// ErrQP: a window of type 2 is bound to another queue pair.
	ErrQP = errors.New("mrtable: window belongs to another queue pair")
	// ErrBound: windows are bound to the region.
	ErrBound = errors.New("mrtable: windows are bound to the region")
	// ErrInUse: a window of type 2 is bound already, or a region registered
	// already, and has to be invalidated first.
	ErrInUse = errors.New("mrtable: key has to be invalidated first")
	// ErrInvalidate: such a key cannot be invalidated by a request.
	ErrInvalidate = errors.New("mrtable: key cannot be invalidated")
	// ErrPages: a list of pages that cannot be registered as it is.
	ErrPages = errors.New("mrtable: invalid page list")
	// ErrPageMemory: a page's own memory may not be used so.
	ErrPageMemory = errors.New("mrtable: memory of a page may not be used so")
)

// Check says whether a region may be registered with these rights: remote
// write and remote atomic need local write, unknown bits outside the optional
// range are refused (IBTA Vol 1 §10.6.3.1). Errors wrap [ErrAccessFlags].
func (a Access) Check() error {
	if u := a &^ accessKnown; u != 0 {
		return fmt.Errorf("%w: unknown bits %#x", ErrAccessFlags, uint32(u))
	}
	if a&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && a&AccessLocalWrite == 0 {
		return fmt.Errorf("%w: %#x: remote write and remote atomic need local write", ErrAccessFlags, uint32(a))
	}
	return nil
}

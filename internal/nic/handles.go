package nic

// handles maps a program's handles to its objects of one kind. A handle is
// never 0 and comes back only after 2^32 others, so that a late event record
// names nothing rather than a stranger. The program's lock guards it.
type handles[T any] struct {
	byHandle map[uint32]T
	last     uint32
}

// reserve returns the next unused handle; put uses it.
func (h *handles[T]) reserve() uint32 {
	for {
		h.last++
		if _, used := h.byHandle[h.last]; !used && h.last != 0 {
			return h.last
		}
	}
}

func (h *handles[T]) put(handle uint32, v T) {
	if h.byHandle == nil {
		h.byHandle = make(map[uint32]T)
	}
	h.byHandle[handle] = v
}

func (h *handles[T]) add(v T) uint32 {
	n := h.reserve()
	h.put(n, v)
	return n
}

func (h *handles[T]) lookup(handle uint32) (T, bool) {
	v, ok := h.byHandle[handle]
	return v, ok
}

func (h *handles[T]) remove(handle uint32) { delete(h.byHandle, handle) }

// indices hands out small numbers, a freed one again before a new one, so
// that tables over them stay as short as the most ever in use.
type indices struct {
	free []uint32
	next uint32
}

// take returns an unused number below limit; false when there is none.
func (x *indices) take(limit uint32) (uint32, bool) {
	if n := len(x.free); n > 0 {
		i := x.free[n-1]
		x.free = x.free[:n-1]
		return i, true
	}
	if x.next >= limit {
		return 0, false
	}
	x.next++
	return x.next - 1, true
}

func (x *indices) give(i uint32) { x.free = append(x.free, i) }

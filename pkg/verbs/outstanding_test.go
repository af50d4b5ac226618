package verbs

import "testing"

// An entry of the send queue is free when a completion that covers it was
// polled: its own, or a later one's when it is unsignaled.
func TestOutstandingRetire(t *testing.T) {
	post := func(marks ...int) *outstanding { // negative: unsignaled
		var o outstanding
		o.init(8)
		for _, m := range marks {
			if m < 0 {
				o.push(uint64(-m), WRSend, false)
			} else {
				o.push(uint64(m), WRSend, true)
			}
		}
		return &o
	}
	for _, tc := range []struct {
		name   string
		posts  []int
		polls  []uint64
		failed bool
		left   uint32
	}{
		{"signaled one by one", []int{1, 2, 3}, []uint64{1, 2}, false, 1},
		{"unsignaled wait for a later completion", []int{-1, -2, 3, 4}, []uint64{3}, false, 1},
		{"an unsignaled one that failed frees up to itself", []int{-1, -2, 3}, []uint64{1}, true, 2},
		{"a mark behind a signaled one is not this completion", []int{1, 2}, []uint64{2}, false, 2},
		{"an unknown mark frees nothing", []int{-1, 2}, []uint64{9}, false, 2},
		{"the same mark for all frees the oldest", []int{7, 7, 7}, []uint64{7}, false, 2},
		{"the same mark for a batch frees the batch", []int{-7, -7, 7, -7, 7}, []uint64{7}, false, 2},
		{"the same mark for a batch that failed frees the oldest", []int{-7, -7, 7}, []uint64{7}, true, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := post(tc.posts...)
			for _, m := range tc.polls {
				o.retire(m, tc.failed)
			}
			if o.n() != tc.left {
				t.Errorf("outstanding after polling %v of %v: got %d, want %d", tc.polls, tc.posts, o.n(), tc.left)
			}
		})
	}
}

// The limit is max_send_wr, not the power of two behind it, and indices wrap.
func TestOutstandingLimit(t *testing.T) {
	var o outstanding
	o.init(5)
	o.head, o.tail = 1<<32-3, 1<<32-3
	for i := range 5 {
		if o.full() {
			t.Fatalf("full after %d of 5", i)
		}
		o.push(uint64(i), WRSend, true)
	}
	if !o.full() {
		t.Error("not full after 5 of 5")
	}
	for i := range 5 {
		if p := o.pop(); p.wrid != uint64(i) {
			t.Errorf("pop %d: got mark %d", i, p.wrid)
		}
	}
	if o.n() != 0 {
		t.Errorf("left: got %d, want 0", o.n())
	}
}

package mrtable

import "testing"

// TestScrambleIsPermutation: unscramble is the inverse, hence no two numbers
// share a scrambled one.
func TestScrambleIsPermutation(t *testing.T) {
	for _, secret := range []uint64{0, 1, 0xDEADBEEFCAFEF00D} {
		s := newScrambler(secret)
		for v := uint32(0); v <= fieldMask; v += 61 {
			x := s.scramble(v)
			if x > fieldMask {
				t.Fatalf("scramble(%#x) = %#x: wider than 24 bits", v, x)
			}
			if got := s.unscramble(x); got != v {
				t.Fatalf("secret %#x: unscramble(scramble(%#x)) = %#x", secret, v, got)
			}
		}
	}
}

// keysOf registers and frees n times and gives the keys.
func keysOf(t *testing.T, cfg Config, n int, salt func(i int) uint32) []RKey {
	t.Helper()
	tab := New(cfg)
	mem := HeapMemory(make([]byte, 8))
	keys := make([]RKey, n)
	for i := range keys {
		r, err := tab.Register(1, mem, 0, 8, 0, salt(i))
		if err != nil {
			t.Fatal(err)
		}
		keys[i] = r.RKey()
		if err := tab.Mark(r); err != nil {
			t.Fatal(err)
		}
		tab.Free(r)
	}
	return keys
}

// TestKeysNotSoonReused: no key comes twice in 200,000 registrations,
// also in a table whose one slot is used again each time and with salts that
// skip the most.
func TestKeysNotSoonReused(t *testing.T) {
	for _, tt := range []struct {
		name string
		max  int
		salt uint32
	}{
		{"one slot", 1, 0},
		{"one slot, widest skips", 1, saltSpread - 1},
		{"100 slots", 100, 17},
		{"65536 slots", 65536, 63},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const n = 200_000
			seen := make(map[RKey]int, n)
			for i, k := range keysOf(t, Config{MaxRegions: tt.max, Secret: 3}, n, func(int) uint32 { return tt.salt }) {
				if j, ok := seen[k]; ok {
					t.Fatalf("key %#x of registration %d came back at %d", k, j, i)
				}
				if k>>8 == 0 {
					t.Fatalf("registration %d: key %#x looks like none", i, k)
				}
				seen[k] = i
			}
		})
	}
}

// TestVariantContinuesGeneration: when a slot's generation has used up its
// part of the upper 24 bits, the variant byte goes on; all 256 values come
// before a key comes back.
func TestVariantContinuesGeneration(t *testing.T) {
	const slots = 1 << 16
	tab := New(Config{MaxRegions: slots, Secret: 21})
	const lap = 1 << fieldBits / slots
	for _, slot := range []uint32{0, 1, slots - 1} {
		seen := make(map[uint32]bool)
		for i := range uint64(256) {
			k := tab.key(slot, 5+i*lap)
			if k>>8 != tab.key(slot, 5)>>8 || tab.slotOf(k) != slot {
				t.Fatalf("slot %d, lap %d: key %#x is not of the same slot and generation bits", slot, i, k)
			}
			seen[k] = true
		}
		if len(seen) != 256 {
			t.Errorf("slot %d: %d different keys in 256 laps", slot, len(seen))
		}
		if tab.key(slot, 5+256*lap) != tab.key(slot, 5) {
			t.Errorf("slot %d: the key does not come back after 256 laps", slot)
		}
	}
}

// TestFreedSlotGoesToTheBack: with n slots, a slot is used again after the n-1
// others.
func TestFreedSlotGoesToTheBack(t *testing.T) {
	const slots = 5
	tab := New(Config{MaxRegions: slots})
	mem := HeapMemory(make([]byte, 8))
	for i := range 4 * slots {
		r := mustRegister(t, tab, 1, mem, 0, 8, 0)
		if r.h.slot != uint32(i%slots) {
			t.Fatalf("registration %d got slot %d, want %d", i, r.h.slot, i%slots)
		}
		if err := tab.Mark(r); err != nil {
			t.Fatal(err)
		}
		tab.Free(r)
	}
}

// TestKeysDependOnSecretAndSalt: another secret or salt gives other keys; the
// same give the same (the table draws nothing itself).
func TestKeysDependOnSecretAndSalt(t *testing.T) {
	const n = 1000
	zero := func(int) uint32 { return 0 }
	one := func(i int) uint32 { return uint32(i)*2654435761>>7 | 1 }
	base := keysOf(t, Config{MaxRegions: 64, Secret: 1}, n, zero)
	same := func(other []RKey) int {
		c := 0
		for i := range base {
			if base[i] == other[i] {
				c++
			}
		}
		return c
	}
	if c := same(keysOf(t, Config{MaxRegions: 64, Secret: 1}, n, zero)); c != n {
		t.Errorf("same secret and salts: %d of %d keys equal", c, n)
	}
	if c := same(keysOf(t, Config{MaxRegions: 64, Secret: 2}, n, zero)); c > 2 {
		t.Errorf("another secret: %d of %d keys equal", c, n)
	}
	if c := same(keysOf(t, Config{MaxRegions: 64, Secret: 1}, n, one)); c > n/10 {
		t.Errorf("other salts: %d of %d keys equal", c, n)
	}
}

// TestKeysShowNoStep: the difference from one key to the next is not one of a
// few values, as it would be if keys were counted up.
func TestKeysShowNoStep(t *testing.T) {
	const n = 2000
	steps := make(map[uint32]int)
	keys := keysOf(t, Config{MaxRegions: 256, Secret: 99}, n, func(int) uint32 { return 0 })
	for i := 1; i < n; i++ {
		steps[uint32(keys[i]>>8)-uint32(keys[i-1]>>8)]++
	}
	for d, c := range steps {
		if c > 3 {
			t.Errorf("step %#x from key to key came %d times in %d", d, c, n)
		}
	}
}

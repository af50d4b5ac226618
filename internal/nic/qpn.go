package nic

import (
	"sync"
	"syscall"

	"github.com/softroce/softroce/pkg/bth"
)

// Specification values (IBTA Vol 1 §10.2.4, §3.5.3): a QPN has 24 bits; 0
// and 1 are management QPs, 0xFFFFFF is the multicast QPN.
const (
	qpnBits  = 24
	firstQPN = 2
)

// steerBits is the number of low bits of a QPN that name its steering key
// (worker = (QPN & 7) mod N).
const (
	steerBits = 3
	steerKeys = 1 << steerBits
)

// qpnAllocator hands out QPNs that an onlooker cannot guess from others and
// that come back only after every other number of their key was used: a
// counter per key, run through a secret permutation of the remaining bits.
// Safe for concurrent use.
type qpnAllocator struct {
	mu     sync.Mutex
	secret uint64
	bits   uint              // of a number without its key: 21, fewer in tests
	next   [steerKeys]uint32 // counters, modulo 1<<bits
	used   map[bth.QPN]struct{}
	load   [steerKeys]int
}

func newQPNAllocator(secret uint64) *qpnAllocator {
	a := &qpnAllocator{secret: secret, bits: qpnBits - steerBits, used: make(map[bth.QPN]struct{})}
	for i := range a.next {
		a.next[i] = uint32(mix(secret + uint64(i)))
	}
	return a
}

func (a *qpnAllocator) mask() uint32 { return 1<<a.bits - 1 }

// mix is a 64-bit finaliser (the one of SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// permute maps 0..2^bits-1 onto itself, one to one: a four-round Feistel
// network on the next even number of bits, walked until it lands inside.
func (a *qpnAllocator) permute(key int, x uint32) uint32 {
	half := (a.bits + 1) / 2
	halfMask := uint32(1)<<half - 1
	for {
		l, r := x>>half, x&halfMask
		for round := range uint64(4) {
			f := mix(a.secret ^ uint64(key)<<56 ^ round<<48 ^ uint64(r))
			l, r = r, l^uint32(f)&halfMask
		}
		x = l<<half | r
		if x <= a.mask() {
			return x
		}
	}
}

// alloc returns an unused QPN that steers to worker of workers, on the key
// with the fewest QPs among that worker's.
func (a *qpnAllocator) alloc(worker, workers int) (bth.QPN, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := -1
	for k := worker; k < steerKeys; k += workers {
		if key < 0 || a.load[k] < a.load[key] {
			key = k
		}
	}
	if key < 0 {
		return 0, refuse(syscall.EINVAL, "no QPN steers to worker %d of %d", worker, workers)
	}
	for range a.mask() + 1 {
		x := a.permute(key, a.next[key]&a.mask())
		a.next[key]++
		q := bth.QPN(x<<steerBits | uint32(key))
		if q < firstQPN || q == bth.MulticastQPN {
			continue
		}
		if _, taken := a.used[q]; taken {
			continue
		}
		a.used[q] = struct{}{}
		a.load[key]++
		return q, nil
	}
	return 0, refuse(syscall.ENOMEM, "all %d QPNs of steering key %d are in use", a.mask()+1, key)
}

// free gives q back.
func (a *qpnAllocator) free(q bth.QPN) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.used[q]; ok {
		delete(a.used, q)
		a.load[q&(steerKeys-1)]--
	}
}

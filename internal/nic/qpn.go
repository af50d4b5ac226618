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
// (DESIGN: worker = (QPN & 7) mod N).
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
	next   [steerKeys]uint32 // counters, modulo 1<<21
	used   map[bth.QPN]struct{}
	load   [steerKeys]int
}

func newQPNAllocator(secret uint64) *qpnAllocator {
	a := &qpnAllocator{secret: secret, used: make(map[bth.QPN]struct{})}
	for i := range a.next {
		a.next[i] = uint32(mix(secret+uint64(i))) & qpnIndexMask
	}
	return a
}

const (
	qpnIndexBits = qpnBits - steerBits // 21
	qpnIndexMask = 1<<qpnIndexBits - 1
	halfBits     = (qpnIndexBits + 1) / 2 // 11: the permutation works on 22 bits
	halfMask     = 1<<halfBits - 1
)

// mix is a 64-bit finaliser (the one of SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// permute maps 0..2^21-1 onto itself, one to one: a four-round Feistel
// network on 22 bits, walked until it lands inside.
func (a *qpnAllocator) permute(key int, x uint32) uint32 {
	for {
		l, r := x>>halfBits, x&halfMask
		for round := range uint64(4) {
			f := mix(a.secret ^ uint64(key)<<56 ^ round<<48 ^ uint64(r))
			l, r = r, l^uint32(f)&halfMask
		}
		x = l<<halfBits | r
		if x <= qpnIndexMask {
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
		return 0, refuse(syscall.EINVAL, "create QP: no QPN steers to worker %d of %d", worker, workers)
	}
	for range qpnIndexMask + 1 {
		x := a.permute(key, a.next[key])
		a.next[key] = (a.next[key] + 1) & qpnIndexMask
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
	return 0, refuse(syscall.ENOMEM, "create QP: all %d QPNs of steering key %d are in use", qpnIndexMask+1, key)
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

package bth

import (
	"hash/crc32"
	"strconv"
	"testing"
)

// eachCRC runs a benchmark for each way to compute the CRC that there is here.
func eachCRC(b *testing.B, name string, f func()) {
	for _, way := range CRCPaths() {
		b.Run(name+"/"+way, func(b *testing.B) {
			useCRC(b, way)
			for b.Loop() {
				f()
			}
		})
	}
}

// BenchmarkCRC times each way to compute the CRC of a buffer in the cache. The
// table and the library are there as they are, without our bounds.
func BenchmarkCRC(b *testing.B) {
	for _, n := range []int{16, 20, 32, 48, 64, 96, 128, 256, 512, 1024, 4096} {
		buf, size := make([]byte, n), strconv.Itoa(n)
		eachCRC(b, size, func() { sink = UpdateCRC(sink, buf) })
		b.Run(size+"/table", func(b *testing.B) {
			for b.Loop() {
				sink = updateShort(sink, buf)
			}
		})
		b.Run(size+"/library", func(b *testing.B) {
			for b.Loop() {
				sink = ^crc32.Update(^sink, crc32.IEEETable, buf)
			}
		})
	}
}

// BenchmarkCopy times a copy with the CRC, in one pass and in two, and the copy
// alone, all in the cache.
func BenchmarkCopy(b *testing.B) {
	for _, n := range []int{64, 256, 1024, 4096} {
		dst, src, size := make([]byte, n), make([]byte, n), strconv.Itoa(n)
		b.Run(size+"/copy", func(b *testing.B) {
			for b.Loop() {
				copy(dst, src)
			}
		})
		eachCRC(b, size+"/fused", func() { sink = CopyICRC(sink, dst, src) })
		eachCRC(b, size+"/two passes", func() { sink = UpdateCRC(sink, dst[:copy(dst, src)]) })
	}
}

// BenchmarkMemory does the same to 64 MiB, a packet's payload at a time, which
// is more than the cache holds. One run is the whole.
func BenchmarkMemory(b *testing.B) {
	const memory = 64 << 20
	src, dst := make([]byte, memory), make([]byte, memory)
	for i := range src {
		src[i], dst[i] = byte(i), byte(i)
	}
	for _, n := range []int{1024, 4096} {
		size := strconv.Itoa(n)
		walk := func(f func(dst, src []byte)) func() {
			return func() {
				for off := 0; off < memory; off += n {
					f(dst[off:off+n], src[off:off+n])
				}
			}
		}
		b.Run(size+"/copy", func(b *testing.B) {
			for b.Loop() {
				walk(func(dst, src []byte) { copy(dst, src) })()
			}
		})
		eachCRC(b, size+"/CRC", walk(func(_, src []byte) { sink = UpdateCRC(sink, src) }))
		eachCRC(b, size+"/fused", walk(func(dst, src []byte) { sink = CopyICRC(sink, dst, src) }))
		eachCRC(b, size+"/two passes", walk(func(dst, src []byte) { sink = UpdateCRC(sink, dst[:copy(dst, src)]) }))
	}
}

// BenchmarkHeader times the registers after headers: a BTH alone, one with a
// RETH, and the IP and UDP headers of both kinds.
func BenchmarkHeader(b *testing.B) {
	hdr := make([]byte, BTHLen+RETHLen)
	four, six := vectors[3].net, vectors[2].net
	eachCRC(b, "BTH", func() { sink = HeaderState(sink, hdr[:BTHLen]) })
	eachCRC(b, "BTH and RETH", func() { sink = HeaderState(sink, hdr) })
	eachCRC(b, "IPv4", func() { sink += four.Seed(4128) })
	eachCRC(b, "IPv6", func() { sink += six.Seed(4128) })
}

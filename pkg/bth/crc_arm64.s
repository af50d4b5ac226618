//go:build gc && linux && !purego && !race && !msan && !asan

#include "textflag.h"

// The CRC by the CRC32 instructions of ARMv8.1, whose polynomial is Ethernet's.
// R0 is written, R1 read, R2 counts the bytes left and R3 is the register. A byte
// is read once: the CRC takes the register that was stored.

// func crcARM64(state uint32, p *byte, n int) uint32
TEXT ·crcARM64(SB), NOSPLIT, $0-28
	MOVWU state+0(FP), R3
	MOVD p+8(FP), R1
	MOVD n+16(FP), R2
	CMP $32, R2
	BLT less32
by32:
	LDP.P 16(R1), (R4, R5)
	LDP.P 16(R1), (R6, R7)
	CRC32X R4, R3
	CRC32X R5, R3
	CRC32X R6, R3
	CRC32X R7, R3
	SUB $32, R2
	CMP $32, R2
	BGE by32
less32:
	TBZ $4, R2, less16
	LDP.P 16(R1), (R4, R5)
	CRC32X R4, R3
	CRC32X R5, R3
less16:
	TBZ $3, R2, less8
	MOVD.P 8(R1), R4
	CRC32X R4, R3
less8:
	TBZ $2, R2, less4
	MOVWU.P 4(R1), R4
	CRC32W R4, R3
less4:
	TBZ $1, R2, less2
	MOVHU.P 2(R1), R4
	CRC32H R4, R3
less2:
	TBZ $0, R2, done
	MOVBU (R1), R4
	CRC32B R4, R3
done:
	MOVW R3, ret+24(FP)
	RET

// func copyARM64(state uint32, dst, src *byte, n int) (crc uint32, ok bool)
TEXT ·copyARM64(SB), NOSPLIT, $0-37
	MOVWU state+0(FP), R3
	MOVD dst+8(FP), R0
	MOVD src+16(FP), R1
	MOVD n+24(FP), R2
	// A copy in rising order is wrong when it would overwrite bytes before
	// they are read: that is left to the caller.
	SUB R1, R0, R4
	CMP R2, R4
	BLO overlap
	CMP $32, R2
	BLT less32
by32:
	LDP.P 16(R1), (R4, R5)
	LDP.P 16(R1), (R6, R7)
	STP.P (R4, R5), 16(R0)
	STP.P (R6, R7), 16(R0)
	CRC32X R4, R3
	CRC32X R5, R3
	CRC32X R6, R3
	CRC32X R7, R3
	SUB $32, R2
	CMP $32, R2
	BGE by32
less32:
	TBZ $4, R2, less16
	LDP.P 16(R1), (R4, R5)
	STP.P (R4, R5), 16(R0)
	CRC32X R4, R3
	CRC32X R5, R3
less16:
	TBZ $3, R2, less8
	MOVD.P 8(R1), R4
	MOVD.P R4, 8(R0)
	CRC32X R4, R3
less8:
	TBZ $2, R2, less4
	MOVWU.P 4(R1), R4
	MOVW.P R4, 4(R0)
	CRC32W R4, R3
less4:
	TBZ $1, R2, less2
	MOVHU.P 2(R1), R4
	MOVH.P R4, 2(R0)
	CRC32H R4, R3
less2:
	TBZ $0, R2, done
	MOVBU (R1), R4
	MOVB R4, (R0)
	CRC32B R4, R3
done:
	MOVW R3, crc+32(FP)
	MOVD $1, R4
	MOVB R4, ok+36(FP)
	RET
overlap:
	MOVB ZR, ok+36(FP)
	RET

// func hwcap() uint
TEXT ·hwcap(SB), NOSPLIT, $0-8
	MOVD internal∕cpu·HWCap(SB), R0
	MOVD R0, ret+0(FP)
	RET

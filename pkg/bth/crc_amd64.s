//go:build gc && !purego && !race && !msan && !asan

#include "textflag.h"

// The CRC by carry-less multiplication. An accumulator of 128 bits stands for
// all bytes so far: folding multiplies it by a power of x, modulo the
// polynomial, which moves it to where the next bytes are. Bits are reflected:
// the first byte's lowest bit, bit 0 here, is the highest power. crcConst holds
// the factors, and says how they come about.
//
// The registers are the same throughout: SI what is read, DI what is written,
// CX bytes left, X0 the accumulator, AX and BX scratch. A byte is read once: what
// is folded is the register that was stored.

// Offsets into crcConst: folding by so many bits.
#define BY2048 ·crcConst+0(SB)
#define BY1536 ·crcConst+16(SB)
#define BY1024 ·crcConst+32(SB)
#define BY768 ·crcConst+48(SB)
#define BY512 ·crcConst+64(SB)
#define BY384 ·crcConst+80(SB)
#define BY256 ·crcConst+96(SB)
#define BY128 ·crcConst+112(SB)
#define LANES ·crcConst+80(SB) // 384, 256, 128, none
#define REDUCE1 ·crcConst+144(SB)
#define REDUCE2 ·crcConst+160(SB)

// crcShift+r(SB) shuffles r bytes to the end and zeros before them,
// crcShift+16+r(SB) drops r bytes and puts zeros behind.
DATA crcShift<>+0(SB)/8, $0x8080808080808080
DATA crcShift<>+8(SB)/8, $0x8080808080808080
DATA crcShift<>+16(SB)/8, $0x0706050403020100
DATA crcShift<>+24(SB)/8, $0x0F0E0D0C0B0A0908
DATA crcShift<>+32(SB)/8, $0x8080808080808080
DATA crcShift<>+40(SB)/8, $0x8080808080808080
GLOBL crcShift<>(SB), RODATA|NOPTR, $48

// What becomes of a register that was loaded, with its offset in the block.
#define NOSTORE(op, reg, off)
#define STORE(op, reg, off) op reg, off(DI)
#define NONEXT(n)
#define NEXT(n) ADDQ $n, DI

// FOLD multiplies acc by the factors in k; t is scratch.
#define FOLD(acc, k, t) \
	MOVO acc, t \
	PCLMULQDQ $0x00, k, acc \
	PCLMULQDQ $0x11, k, t \
	PXOR t, acc

// VFOLD is FOLD for any width.
#define VFOLD(acc, k, t) \
	VPCLMULQDQ $0x00, k, acc, t \
	VPCLMULQDQ $0x11, k, acc, acc \
	VPXOR t, acc, acc

// VFOLDZ folds and adds data. 0x96 is the exclusive or of three.
#define VFOLDZ(acc, k, t, data) \
	VPCLMULQDQ $0x00, k, acc, t \
	VPCLMULQDQ $0x11, k, acc, acc \
	VPTERNLOGQ $0x96, t, data, acc

// REST folds in what is left, less than 16 bytes a step, and leaves the register in AX.
#define REST(store, next) \
	MOVOU BY128, X1 \
	CMPQ CX, $16 \
	JB tail \
by16: \
	MOVOU (SI), X2 \
	store(MOVOU, X2, 0) \
	FOLD(X0, X1, X3) \
	PXOR X2, X0 \
	ADDQ $16, SI \
	next(16) \
	SUBQ $16, CX \
	CMPQ CX, $16 \
	JAE by16 \
tail: \
	TESTQ CX, CX \
	JZ reduce \
	TAIL(store, next) \
reduce: \
	REDUCE

// TAIL gathers the last 1 to 15 bytes at the end of X4, and folds what stands
// more than 16 bytes before the end of the buffer.
#define TAIL(store, next) \
	PXOR X4, X4 \
	TESTQ $8, CX \
	JZ tail4 \
	MOVQ (SI), AX \
	store(MOVQ, AX, 0) \
	PINSRQ $1, AX, X4 \
	ADDQ $8, SI \
	next(8) \
tail4: \
	TESTQ $4, CX \
	JZ tail2 \
	MOVL (SI), AX \
	store(MOVL, AX, 0) \
	PSRLDQ $4, X4 \
	PINSRD $3, AX, X4 \
	ADDQ $4, SI \
	next(4) \
tail2: \
	TESTQ $2, CX \
	JZ tail1 \
	MOVWLZX (SI), AX \
	store(MOVW, AX, 0) \
	PSRLDQ $2, X4 \
	PINSRW $7, AX, X4 \
	ADDQ $2, SI \
	next(2) \
tail1: \
	TESTQ $1, CX \
	JZ gathered \
	MOVBLZX (SI), AX \
	store(MOVB, AX, 0) \
	PSRLDQ $1, X4 \
	PINSRB $15, AX, X4 \
gathered: \
	LEAQ crcShift<>(SB), BX \
	MOVOU (BX)(CX*1), X5 \
	MOVOU 16(BX)(CX*1), X6 \
	MOVO X0, X2 \
	PSHUFB X5, X2 \
	PSHUFB X6, X0 \
	PXOR X4, X0 \
	FOLD(X2, X1, X3) \
	PXOR X2, X0

// REDUCE turns 128 bits into the register of 32 in AX: first 96 bits that are
// congruent to the accumulator times x^32, then Barrett's reduction, whose
// quotient has 64 bits.
#define REDUCE \
	MOVOU REDUCE1, X1 \
	MOVOU REDUCE2, X3 \
	MOVO X0, X2 \
	PCLMULQDQ $0x00, X1, X2 \
	PSRLDQ $8, X0 \
	PXOR X2, X0 \
	MOVO X0, X2 \
	PCLMULQDQ $0x10, X1, X2 \
	PCLMULQDQ $0x00, X3, X2 \
	PXOR X2, X0 \
	PEXTRD $2, X0, AX

// ONE reads the first 16 bytes, with the register before them in X3.
#define ONE(store, next) \
	MOVOU (SI), X0 \
	store(MOVOU, X0, 0) \
	PXOR X3, X0 \
	ADDQ $16, SI \
	next(16) \
	SUBQ $16, CX

// LOAD4 reads four registers' worth of bytes, w bytes each.
#define LOAD4(op, w, a, b, c, d, store, next) \
	op (SI), a \
	op w(SI), b \
	op 2*w(SI), c \
	op 3*w(SI), d \
	store(op, a, 0) \
	store(op, b, w) \
	store(op, c, 2*w) \
	store(op, d, 3*w) \
	ADDQ $(4*w), SI \
	next((4*w)) \
	SUBQ $(4*w), CX

// PCLMUL is the whole for 16-byte registers, from 16 bytes on.
#define PCLMUL(store, next) \
	CMPQ CX, $64 \
	JB one \
	LOAD4(MOVOU, 16, X0, X4, X5, X6, store, next) \
	PXOR X3, X0 \
	CMPQ CX, $64 \
	JB join \
	MOVOU BY512, X1 \
by64: \
	LOAD4(MOVOU, 16, X7, X8, X9, X10, store, next) \
	FOLD(X0, X1, X11) \
	FOLD(X4, X1, X12) \
	FOLD(X5, X1, X13) \
	FOLD(X6, X1, X14) \
	PXOR X7, X0 \
	PXOR X8, X4 \
	PXOR X9, X5 \
	PXOR X10, X6 \
	CMPQ CX, $64 \
	JAE by64 \
join: \
	MOVOU BY384, X1 \
	MOVOU BY256, X2 \
	MOVOU BY128, X3 \
	FOLD(X0, X1, X11) \
	FOLD(X4, X2, X12) \
	FOLD(X5, X3, X13) \
	PXOR X4, X0 \
	PXOR X6, X5 \
	PXOR X5, X0 \
	JMP rest \
one: \
	ONE(store, next) \
rest: \
	REST(store, next)

// AVX2 is the whole for 32-byte registers, from 128 bytes on.
#define AVX2(store, next) \
	LOAD4(VMOVDQU, 32, Y0, Y4, Y5, Y6, store, next) \
	VPXOR Y3, Y0, Y0 \
	CMPQ CX, $128 \
	JB join \
	VBROADCASTI128 BY1024, Y1 \
by128: \
	LOAD4(VMOVDQU, 32, Y7, Y8, Y9, Y10, store, next) \
	VFOLD(Y0, Y1, Y11) \
	VFOLD(Y4, Y1, Y12) \
	VFOLD(Y5, Y1, Y13) \
	VFOLD(Y6, Y1, Y14) \
	VPXOR Y7, Y0, Y0 \
	VPXOR Y8, Y4, Y4 \
	VPXOR Y9, Y5, Y5 \
	VPXOR Y10, Y6, Y6 \
	CMPQ CX, $128 \
	JAE by128 \
join: \
	VBROADCASTI128 BY768, Y1 \
	VBROADCASTI128 BY512, Y2 \
	VBROADCASTI128 BY256, Y3 \
	VFOLD(Y0, Y1, Y11) \
	VFOLD(Y4, Y2, Y12) \
	VFOLD(Y5, Y3, Y13) \
	VPXOR Y4, Y0, Y0 \
	VPXOR Y6, Y5, Y5 \
	VPXOR Y5, Y0, Y0 \
	CMPQ CX, $32 \
	JB lanes \
by32: \
	VMOVDQU (SI), Y2 \
	store(VMOVDQU, Y2, 0) \
	VFOLD(Y0, Y3, Y1) \
	VPXOR Y2, Y0, Y0 \
	ADDQ $32, SI \
	next(32) \
	SUBQ $32, CX \
	CMPQ CX, $32 \
	JAE by32 \
lanes: \
	VEXTRACTI128 $1, Y0, X2 \
	VMOVDQU BY128, X1 \
	VFOLD(X0, X1, X3) \
	VPXOR X2, X0, X0 \
	VZEROUPPER \
	REST(store, next)

// AVX512 is the whole for 64-byte registers, from 256 bytes on.
#define AVX512(store, next) \
	LOAD4(VMOVDQU64, 64, Z0, Z4, Z5, Z6, store, next) \
	VPXORQ Z3, Z0, Z0 \
	CMPQ CX, $256 \
	JB join \
	VBROADCASTI32X4 BY2048, Z1 \
by256: \
	LOAD4(VMOVDQU64, 64, Z7, Z8, Z9, Z10, store, next) \
	VFOLDZ(Z0, Z1, Z11, Z7) \
	VFOLDZ(Z4, Z1, Z12, Z8) \
	VFOLDZ(Z5, Z1, Z13, Z9) \
	VFOLDZ(Z6, Z1, Z14, Z10) \
	CMPQ CX, $256 \
	JAE by256 \
join: \
	VBROADCASTI32X4 BY1536, Z1 \
	VBROADCASTI32X4 BY1024, Z2 \
	VBROADCASTI32X4 BY512, Z3 \
	VFOLDZ(Z0, Z1, Z11, Z6) \
	VFOLDZ(Z4, Z2, Z12, Z0) \
	VFOLDZ(Z5, Z3, Z13, Z4) \
	VMOVDQA64 Z5, Z0 \
	CMPQ CX, $64 \
	JB lanes \
by64: \
	VMOVDQU64 (SI), Z2 \
	store(VMOVDQU64, Z2, 0) \
	VFOLDZ(Z0, Z3, Z1, Z2) \
	ADDQ $64, SI \
	next(64) \
	SUBQ $64, CX \
	CMPQ CX, $64 \
	JAE by64 \
lanes: \
	VMOVDQU64 LANES, Z1 \
	VEXTRACTI32X4 $3, Z0, X2 \
	VPCLMULQDQ $0x00, Z1, Z0, Z3 \
	VPCLMULQDQ $0x11, Z1, Z0, Z0 \
	VPXORQ Z3, Z0, Z0 \
	VEXTRACTI64X4 $1, Z0, Y1 \
	VPXOR Y1, Y0, Y0 \
	VEXTRACTI128 $1, Y0, X1 \
	VPTERNLOGQ $0x96, X1, X2, X0 \
	VZEROUPPER \
	REST(store, next)

// The arguments of a CRC, and of a copy. A copy in rising order is wrong when
// its end would overwrite bytes before they are read: that is left to the caller.
#define CRCARGS(op) \
	op state+0(FP), X3 \
	MOVQ p+8(FP), SI \
	MOVQ n+16(FP), CX

#define COPYARGS(op) \
	op state+0(FP), X3 \
	MOVQ dst+8(FP), DI \
	MOVQ src+16(FP), SI \
	MOVQ n+24(FP), CX \
	MOVQ DI, AX \
	SUBQ SI, AX \
	CMPQ AX, CX \
	JB overlap

// func crcPCLMUL(state uint32, p *byte, n int) uint32
TEXT ·crcPCLMUL(SB), NOSPLIT, $0-28
	CRCARGS(MOVL)
	PCLMUL(NOSTORE, NONEXT)
	MOVL AX, ret+24(FP)
	RET

// func copyPCLMUL(state uint32, dst, src *byte, n int) (crc uint32, ok bool)
TEXT ·copyPCLMUL(SB), NOSPLIT, $0-37
	COPYARGS(MOVL)
	PCLMUL(STORE, NEXT)
	MOVL AX, crc+32(FP)
	MOVB $1, ok+36(FP)
	RET
overlap:
	MOVB $0, ok+36(FP)
	RET

// func crcAVX2(state uint32, p *byte, n int) uint32
TEXT ·crcAVX2(SB), NOSPLIT, $0-28
	CRCARGS(VMOVD)
	AVX2(NOSTORE, NONEXT)
	MOVL AX, ret+24(FP)
	RET

// func copyAVX2(state uint32, dst, src *byte, n int) (crc uint32, ok bool)
TEXT ·copyAVX2(SB), NOSPLIT, $0-37
	COPYARGS(VMOVD)
	AVX2(STORE, NEXT)
	MOVL AX, crc+32(FP)
	MOVB $1, ok+36(FP)
	RET
overlap:
	MOVB $0, ok+36(FP)
	RET

// func crcAVX512(state uint32, p *byte, n int) uint32
TEXT ·crcAVX512(SB), NOSPLIT, $0-28
	CRCARGS(VMOVD)
	AVX512(NOSTORE, NONEXT)
	MOVL AX, ret+24(FP)
	RET

// func copyAVX512(state uint32, dst, src *byte, n int) (crc uint32, ok bool)
TEXT ·copyAVX512(SB), NOSPLIT, $0-37
	COPYARGS(VMOVD)
	AVX512(STORE, NEXT)
	MOVL AX, crc+32(FP)
	MOVB $1, ok+36(FP)
	RET
overlap:
	MOVB $0, ok+36(FP)
	RET

// func cpuid(leaf, sub uint32) (a, b, c uint32)
TEXT ·cpuid(SB), NOSPLIT, $0-20
	MOVL leaf+0(FP), AX
	MOVL sub+4(FP), CX
	CPUID
	MOVL AX, a+8(FP)
	MOVL BX, b+12(FP)
	MOVL CX, c+16(FP)
	RET

// func xgetbv() uint32
TEXT ·xgetbv(SB), NOSPLIT, $0-4
	XORL CX, CX
	XGETBV
	MOVL AX, ret+0(FP)
	RET

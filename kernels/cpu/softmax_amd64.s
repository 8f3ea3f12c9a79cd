#include "textflag.h"

// AVX-512 rows of attention. One ZMM holds 16 keys, a block of 64 keys is Z0-Z3. Constants of Exp2:
// Z24 ... Z30 its coefficients, Z22 the magic number, Z21 -126.

#define LOAD_EXP2(coeffs) \
	MOVQ coeffs, AX \
	VBROADCASTSS (AX), Z24 \
	VBROADCASTSS 4(AX), Z25 \
	VBROADCASTSS 8(AX), Z26 \
	VBROADCASTSS 12(AX), Z27 \
	VBROADCASTSS 16(AX), Z28 \
	VBROADCASTSS 20(AX), Z29 \
	VBROADCASTSS 24(AX), Z30 \
	MOVL $0x4b400000, AX \
	VPBROADCASTD AX, Z22 \
	MOVL $0xc2fc0000, AX \
	VPBROADCASTD AX, Z21

// x = Exp2(x), with scratch t, f, k; below -126 it is +0 and NaN stays.
#define EXP2(x, t, f, k) \
	VCMPPS $5, Z21, x, k \
	VADDPS Z22, x, t \
	VSUBPS Z22, t, f \
	VSUBPS f, x, f \
	VMOVAPS Z24, x \
	VFMADD213PS Z25, f, x \
	VFMADD213PS Z26, f, x \
	VFMADD213PS Z27, f, x \
	VFMADD213PS Z28, f, x \
	VFMADD213PS Z29, f, x \
	VFMADD213PS Z30, f, x \
	VPSLLD $23, t, t \
	VPADDD.Z t, x, k, x

// x rounded to bf16, ties to even, with scratch t; Z19 holds 1, Z18 0x7fff, Z17 0xffff0000 in each lane.
#define BF16(x, t) \
	VPSRLD $16, x, t \
	VPANDD Z19, t, t \
	VPADDD Z18, x, x \
	VPADDD t, x, x \
	VPANDD Z17, x, x

#define LOAD_BF16 \
	MOVL $1, AX \
	VPBROADCASTD AX, Z19 \
	MOVL $0x7fff, AX \
	VPBROADCASTD AX, Z18 \
	MOVL $0xffff0000, AX \
	VPBROADCASTD AX, Z17

#define MASKS(from) \
	MOVQ from, AX \
	KMOVW AX, K1 \
	SHRQ $16, AX \
	KMOVW AX, K2 \
	SHRQ $16, AX \
	KMOVW AX, K3 \
	SHRQ $16, AX \
	KMOVW AX, K4

// func softmaxBlock512(s *float32, ld, rows int, seen *uint64, width uint64, m, l, a *float32, c float32, bf16 bool,
// coeffs *float32)
TEXT ·softmaxBlock512(SB), NOSPLIT, $0-80
	LOAD_EXP2(coeffs+72(FP))
	LOAD_BF16
	MOVQ s+0(FP), SI
	MOVQ ld+8(FP), DX
	SHLQ $2, DX
	MOVQ rows+16(FP), CX
	MOVQ seen+24(FP), R8
	MOVQ width+32(FP), R9
	MOVQ m+40(FP), R10
	MOVQ l+48(FP), R11
	MOVQ a+56(FP), R12
	VBROADCASTSS c+64(FP), Z31
	MOVBLZX bf16+68(FP), BX
	MOVL $0xff800000, AX
	VPBROADCASTD AX, Z23
	MOVL $0x3f800000, DI
	TESTQ CX, CX
	JZ   done

row:
	MOVQ (R8), R13
	TESTQ R13, R13
	JZ   empty
	MASKS(R13)

	// u = dot*c, -Inf where masked; m' = max(m, u).
	VMULPS.Z (SI), Z31, K1, Z0
	VMULPS.Z 64(SI), Z31, K2, Z1
	VMULPS.Z 128(SI), Z31, K3, Z2
	VMULPS.Z 192(SI), Z31, K4, Z3
	VBLENDMPS Z0, Z23, K1, Z0
	VBLENDMPS Z1, Z23, K2, Z1
	VBLENDMPS Z2, Z23, K3, Z2
	VBLENDMPS Z3, Z23, K4, Z3
	VMAXPS Z0, Z1, Z4
	VMAXPS Z2, Z3, Z5
	VMAXPS Z4, Z5, Z4
	VEXTRACTF64X4 $1, Z4, Y5
	VMAXPS Y4, Y5, Y4
	VEXTRACTF128 $1, Y4, X5
	VMAXPS X4, X5, X4
	VMOVHLPS X4, X4, X5
	VMAXPS X4, X5, X4
	VMOVSHDUP X4, X5
	VMAXSS X4, X5, X4
	VMOVSS (R10), X8
	VMAXSS X8, X4, X4
	VMOVSS X4, (R10)
	VBROADCASTSS X4, Z9

	// a = Exp2(m-m'), p = Exp2(u-m'): a masked u is -Inf and its p +0.
	VSUBPS Z9, Z8, Z8
	VSUBPS Z9, Z0, Z0
	VSUBPS Z9, Z1, Z1
	VSUBPS Z9, Z2, Z2
	VSUBPS Z9, Z3, Z3
	EXP2(Z0, Z10, Z11, K5)
	EXP2(Z1, Z12, Z13, K6)
	EXP2(Z2, Z14, Z15, K5)
	EXP2(Z3, Z10, Z11, K6)
	EXP2(Z8, Z12, Z13, K5)

	// l = l*a + tree(p).
	VADDPS Z2, Z0, Z4
	VADDPS Z3, Z1, Z5
	VADDPS Z5, Z4, Z4
	VEXTRACTF64X4 $1, Z4, Y5
	VADDPS Y5, Y4, Y4
	VEXTRACTF128 $1, Y4, X5
	VADDPS X5, X4, X4
	VMOVHLPS X4, X4, X5
	VADDPS X5, X4, X4
	VMOVSHDUP X4, X5
	VADDSS X5, X4, X4
	VMULSS (R11), X8, X6
	VADDSS X4, X6, X6
	VMOVSS X6, (R11)
	VMOVSS X8, (R12)

	TESTL BX, BX
	JZ   store
	BF16(Z0, Z10)
	BF16(Z1, Z11)
	BF16(Z2, Z12)
	BF16(Z3, Z13)

store:
	MASKS(R9)
	VMOVUPS Z0, K1, (SI)
	VMOVUPS Z1, K2, 64(SI)
	VMOVUPS Z2, K3, 128(SI)
	VMOVUPS Z3, K4, 192(SI)

next:
	ADDQ DX, SI
	ADDQ $8, R8
	ADDQ $4, R10
	ADDQ $4, R11
	ADDQ $4, R12
	DECQ CX
	JNZ  row

done:
	VZEROUPPER
	RET

empty:
	MOVL DI, (R12)
	VPXORD Z0, Z0, Z0
	VMOVAPS Z0, Z1
	VMOVAPS Z0, Z2
	VMOVAPS Z0, Z3
	JMP  store

// func attentionGrad512(p, ds *float32, n int, c, lse, sum, scale float32, bf16 bool, coeffs *float32)
TEXT ·attentionGrad512(SB), NOSPLIT, $0-56
	LOAD_EXP2(coeffs+48(FP))
	LOAD_BF16
	MOVQ p+0(FP), SI
	MOVQ ds+8(FP), DI
	MOVQ n+16(FP), CX
	VBROADCASTSS c+24(FP), Z31
	VBROADCASTSS lse+28(FP), Z23
	VBROADCASTSS sum+32(FP), Z20
	VBROADCASTSS scale+36(FP), Z16
	MOVBLZX bf16+40(FP), BX
	VPXORD Z7, Z7, Z7
	MOVL $0xffff, AX
	KMOVW AX, K1

keys:
	CMPQ CX, $0
	JLE  end
	CMPQ CX, $16
	JGE  full
	MOVL $1, AX
	SHLL CX, AX
	DECL AX
	KMOVW AX, K1

full:
	VMULPS.Z (SI), Z31, K1, Z0
	VMOVUPS.Z (DI), K1, Z1
	VSUBPS Z23, Z0, Z0
	VMINPS Z0, Z7, Z0
	EXP2(Z0, Z10, Z11, K5)
	VSUBPS Z20, Z1, Z1
	VMULPS Z0, Z1, Z1
	VMULPS Z16, Z1, Z1
	TESTL BX, BX
	JZ   keep
	BF16(Z0, Z10)
	BF16(Z1, Z11)

keep:
	VMOVUPS Z0, K1, (SI)
	VMOVUPS Z1, K1, (DI)
	ADDQ $64, SI
	ADDQ $64, DI
	SUBQ $16, CX
	JMP  keys

end:
	VZEROUPPER
	RET

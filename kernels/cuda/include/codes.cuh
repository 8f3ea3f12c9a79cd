// Weights in codes (kernels.QuantizedWeight): the number of a code and of a scale, in fp32. Exact: the one rounding of
// code * scale is the caller's product.
#pragma once
#include "definition.cuh"

typedef unsigned char u8;

// The codes of quant.Code.
constexpr int kINT4 = 0, kE2M1 = 1, kE4M3 = 2, kNF4 = 3;

constexpr int bits_of(int code) { return code == kE4M3 ? 8 : 4; }

// nf4_values are the numbers of the codes of NF4.
__device__ const float nf4_values[16] = {
    -1.f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,
    -0.18477343022823334f, -0.09105003625154495f, 0.f, 0.07958029955625534f, 0.16093020141124725f,
    0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.f};

// code_value is the number of a code in the low bits of x, of other formats than NF4. The bits of E2M1 and E4M3 are
// those of an fp32 of a smaller exponent: subnormals too.
template <int CODE>
__device__ inline float code_value(u32 x) {
  if (CODE == kINT4) return (float)((int)(x & 15) - 8);
  if (CODE == kE2M1) return __uint_as_float((x & 7) << 22 | (x & 8) << 28) * 0x1p126f;
  return (x & 0x7f) == 0x7f ? __uint_as_float(0x7fc00000)
                            : __uint_as_float((x & 0x7f) << 20 | (x & 0x80) << 24) * 0x1p120f;
}

// scale_value is the number of a scale: of E8M0 2^(e-127), where 0 is 2^-127 and 255 no number.
__device__ inline float scale_value(float s) { return s; }
__device__ inline float scale_value(u16 s) { return widen(s); }
__device__ inline float scale_value(u8 s) {
  return __uint_as_float(s == 0 ? 0x00400000 : s == 255 ? 0x7fc00000 : (u32)s << 23);
}

// over is (x & mask) | bits by one instruction, where the compiler makes two of constants.
__device__ inline u32 over(u32 x, u32 mask, u32 bits) {
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(x), "r"(mask), "r"(bits));
  return d;
}
// chosen takes bytes of x and y as __byte_perm, but where a digit of the selector is 8 or more, the byte's sign bit.
__device__ inline u32 chosen(u32 x, u32 y, u32 selector) {
  u32 d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(y), "r"(selector));
  return d;
}

__device__ inline u32 fma2(u32 x, u32 y, u32 z) {
  u32 d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(y), "r"(z));
  return d;
}
__device__ inline u32 mul2(u32 x, u32 y) {
  u32 d;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(x), "r"(y));
  return d;
}

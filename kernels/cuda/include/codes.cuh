// Weights in codes (kernels.QuantizedWeight): the number of a code and of a scale, in fp32. Exact: the one rounding of
// code * scale is the caller's product.
#pragma once
#include "definition.cuh"

typedef unsigned char u8;

// The codes of quant.Code.
constexpr int kINT4 = 0, kE2M1 = 1, kE4M3 = 2;

constexpr int bits_of(int code) { return code == kE4M3 ? 8 : 4; }

// code_value is the number of a code in the low bits of x. The bits of E2M1 and E4M3 are those of an fp32 of a smaller
// exponent: subnormals too.
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

__device__ inline u32 mul2(u32 x, u32 y) {
  u32 d;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(x), "r"(y));
  return d;
}

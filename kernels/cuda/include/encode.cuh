// Scales and codes of blocks of numbers, as quant.Encoding has them.
#pragma once
#include "rows.cuh"

typedef unsigned char u8;

constexpr int kINT4Group = 32, kFP8Block = 128;  // of quant.INT4 and quant.FP8
constexpr u32 kMagnitude = 0x7fffffff, kInfinity = 0x7f800000, kNaN = 0x7fc00000;

// Magnitudes are compared as integers, which order as the numbers do.
template <int Threads>
__device__ inline u32 most_of(u32 most) {
#pragma unroll
  for (int bit = 1; bit < Threads; bit <<= 1) most = max(most, __shfl_xor_sync(~0u, most, bit));
  return most;
}

// power_code is the least power of two, of E8M0, that is at least a magnitude over significand * 2^exponent.
__device__ inline u32 power_code(u32 most, u32 significand, int exponent) {
  return (u32)max((int)(most >> 23) - exponent + (int)((most & 0x7fffff) > significand), 0);
}

// power_of and inverse_of are a power of two of E8M0, and its reciprocal.
__device__ inline float power_of(u32 power) { return __uint_as_float(max(power << 23, 0x400000u)); }
__device__ inline float inverse_of(u32 power) { return __uint_as_float((254 - power) << 23); }

// e2m1_code is the nearest of 16 codes, ties to the even one.
__device__ inline u32 e2m1_code(float x) {
  float a = fabsf(x);
  u32 code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.f);
  return code | __float_as_uint(x) >> 31 << 3;
}

// Quotient divides by a scale that many numbers share: v/scale as IEEE has it, from the inverse of the scale and two
// steps of Newton, the second of which ends on the nearest number because the first is less than one away (Markstein,
// IBM J. R&D 34, 1990). Nothing underflows that matters: quotients below 2^-11 are zeros of both formats, whose sign
// the caller takes from v.
struct Quotient {
  float scale, inverse;
  __device__ explicit Quotient(float scale) : scale(scale), inverse(1.f / scale) {}
  // near reports whether the scale is of a size for which this is so.
  __device__ bool near() const { return scale >= 0x1p-80f && scale <= 0x1p80f; }
  __device__ float of(float v) const {
    float q = v * inverse;
    q = fmaf(fmaf(-scale, q, v), inverse, q);
    return fmaf(fmaf(-scale, q, v), inverse, q);
  }
};

// with_sign is x with the sign of v.
__device__ inline float with_sign(float x, float v) {
  return __uint_as_float(__float_as_uint(x) & kMagnitude | __float_as_uint(v) & ~kMagnitude);
}

// e4m3 is the E4M3 nearest to x, as quant.EncodeE4M3 has it; x is a number.
__device__ inline float e4m3(float x) {
  u32 b = __float_as_uint(x), a = b & kMagnitude;
  float y = __uint_as_float((a + 0x7ffff + (a >> 20 & 1)) & 0xfff00000);  // three bits of fp32's significand
  // subnormal: fp32 at this size lie 2^-9 apart
  if (a < __float_as_uint(1.f / 64)) y = (__uint_as_float(a) + 16384.f) - 16384.f;
  if (a >= __float_as_uint(448.f)) y = 448.f;
  return __uint_as_float(__float_as_uint(y) | (b & ~kMagnitude));
}

// e4m3_two is e4m3 of two numbers by the card's conversions; E4M3 is exact in f16.
__device__ inline void e4m3_two(float* q) {
  u16 pair;
  u32 halves;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(q[1]), "f"(q[0]));
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
  asm("cvt.f32.f16 %0, %1;" : "=f"(q[0]) : "h"((u16)halves));
  asm("cvt.f32.f16 %0, %1;" : "=f"(q[1]) : "h"((u16)(halves >> 16)));
}

// e4m3_codes are those of two numbers, the first in the low byte.
__device__ inline u32 e4m3_codes(float x, float y) {
  u16 pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(y), "f"(x));
  return pair;
}

// Bits of scales and codes where a number of the block is not finite.
constexpr u32 kNaNE8M0 = 255, kNaNBF16 = 0x7fc0, kNaNE4M3 = 0x7f;

// mxfp8_encode makes codes of MXFP8 of eight numbers of a block, whose largest magnitude has the bits `most`, and gives
// the scale.
__device__ inline u8 mxfp8_encode(const float* v, u32 most, u32* codes) {
  codes[0] = codes[1] = most >= kInfinity ? kNaNE4M3 * 0x01010101u : 0;
  if (most >= kInfinity) return kNaNE8M0;
  u32 power = power_code(most, 0x600000, 8);
  if (most == 0) return 0;
  float inverse = inverse_of(power);
#pragma unroll
  for (int j = 0; j < kEight; j += 4)
    codes[j / 4] = e4m3_codes(v[j] * inverse, v[j + 1] * inverse) |
                   e4m3_codes(v[j + 2] * inverse, v[j + 3] * inverse) << 16;
  return power;
}

constexpr int kAcross = kFP8Block / kEight, kSquareThreads = 512, kDown = kSquareThreads / kAcross,
              kPieces = kFP8Block / kDown;

// largest_of is the bits of the largest magnitude of a square, of which a thread has `own`, for all of its block.
// NaN is larger than every number.
__device__ inline u32 largest_of(u32 own) {
  __shared__ u32 mosts[kSquareThreads / kWarp];
  u32 most = most_of<kWarp>(own);
  if (warp_lane() == 0) mosts[threadIdx.x / kWarp] = most;
  __syncthreads();
  return most_of<kSquareThreads / kWarp>(mosts[warp_lane() % (kSquareThreads / kWarp)]);
}

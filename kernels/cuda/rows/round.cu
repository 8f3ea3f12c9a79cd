// What storing weights in 4 bits, or in E4M3, leaves of them: kernels.Rounder. Bound: the bytes of src and dst; each
// weight is read once.
// On an H200, 131,072 x 2,048 in bf16: INT4 282 us, 90% of a copy's bandwidth; FP8 289 us, 88%. Before, with the card's
// division for each weight, and E4M3 by integers: 345 and 422 us.
#include "team.cuh"

constexpr int kINT4Group = 32, kFP8Block = 128;  // of quant.INT4 and quant.FP8
constexpr u32 kMagnitude = 0x7fffffff, kInfinity = 0x7f800000, kNaN = 0x7fc00000;

// Magnitudes are compared as integers, which order as the numbers do.
template <int Threads>
__device__ inline u32 most_of(u32 most) {
#pragma unroll
  for (int bit = 1; bit < Threads; bit <<= 1) most = max(most, __shfl_xor_sync(~0u, most, bit));
  return most;
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

// int4_of makes eight columns what four bits leave of them, by the four threads of a group.
__device__ inline void int4_of(float* v) {
  constexpr int kThreads = kINT4Group / kEight;
  u32 most = 0;
#pragma unroll
  for (int j = 0; j < kEight; j++) most = max(most, __float_as_uint(v[j]) & kMagnitude);
  most = most_of<kThreads>(most);
  Quotient quotient(widen(narrow(__uint_as_float(most) / 7.f)));
  if (quotient.near()) {
#pragma unroll
    // A code is an integer, so -0 is 0. Its size is 7 at most: the scale is most/7 to nine bits.
    for (int j = 0; j < kEight; j++) v[j] = (rintf(quotient.of(v[j])) + 0.f) * quotient.scale;
    return;
  }
#pragma unroll 1
  for (int j = 0; j < kEight; j++) {
    float q = (fminf(fmaxf(rintf(v[j] / quotient.scale), -7.f), 7.f) + 0.f) * quotient.scale;
    v[j] = most >= kInfinity ? __uint_as_float(kNaN) : quotient.scale == 0.f ? 0.f : q;
  }
}

constexpr int kINT4Pieces = 4;

// A thread has eight columns in each of kINT4Pieces, which lie a block's threads apart and are on their way together. A
// row has threads for whole groups, so those of a group are neighbours in one warp; what has no columns does not leave.
template <class D, class S>
__device__ inline void round_int4(D* d, const S* s, int rows, int cols, int ds, int ss) {
  u32 across = (cols + kINT4Group - 1) / kINT4Group * (kINT4Group / kEight);
  int row[kINT4Pieces], col[kINT4Pieces], left[kINT4Pieces];
  Stored8<S> w[kINT4Pieces];
#pragma unroll
  for (int k = 0; k < kINT4Pieces; k++) {
    u32 i = (blockIdx.x * kINT4Pieces + k) * blockDim.x + threadIdx.x;
    row[k] = i / across, col[k] = i % across * kEight, left[k] = row[k] < rows ? cols - col[k] : 0;
    w[k].load(s + (size_t)row[k] * ss + col[k], left[k]);
  }
#pragma unroll
  for (int k = 0; k < kINT4Pieces; k++) {
    float v[kEight];
    w[k].values(v);
    int4_of(v);
    store8(d + (size_t)row[k] * ds + col[k], left[k], v);
  }
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

// fp8_of makes eight columns what E4M3 leaves of them in a square whose largest magnitude has the bits `most`.
__device__ inline void fp8_of(float* v, const Quotient& quotient, u32 most) {
  if (quotient.near()) {
#pragma unroll
    for (int j = 0; j < kEight; j += 2) {
      float q[2] = {quotient.of(v[j]), quotient.of(v[j + 1])};
      e4m3_two(q);
#pragma unroll
      for (int k = j; k < j + 2; k++)
        v[k] = with_sign(q[k - j], v[k]) * quotient.scale;
    }
    return;
  }
#pragma unroll 1
  for (int j = 0; j < kEight; j++) {
    float q = quotient.scale == 0.f ? 0.f : e4m3(v[j] / quotient.scale) * quotient.scale;
    v[j] = most < kInfinity ? q : __uint_as_float(kNaN);
  }
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

// A thread has eight columns of every kDown-th row of a square, which stay in registers as they are stored: d, s, rows
// and cols are those from its first on. INSIDE: the square is whole, and eight columns are one access.
template <bool INSIDE, class D, class S>
__device__ inline void round_square(D* d, const S* s, int rows, int cols, int ds, int ss) {
  auto left = [&](int i) { return i * kDown < rows ? cols : 0; };
  Stored8<S> w[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; i++) {
    const S* from = s + (size_t)i * kDown * ss;
    if constexpr (INSIDE) w[i].load_whole(from);
    else w[i].load(from, left(i));
  }
  u32 own = 0;
  float v[kEight];
#pragma unroll
  for (int i = 0; i < kPieces; i++) {
    w[i].values(v);
#pragma unroll
    for (int j = 0; j < kEight; j++) own = max(own, __float_as_uint(v[j]) & kMagnitude);
  }
  u32 most = largest_of(own);
  Quotient quotient(__uint_as_float(most) / 448.f);
#pragma unroll
  for (int i = 0; i < kPieces; i++) {
    w[i].values(v);
    fp8_of(v, quotient, most);
    D* to = d + (size_t)i * kDown * ds;
    if constexpr (INSIDE) {
      Columns<D, kEight> out;
      out.round(v);
      out.store(to);
    } else {
      store8(to, left(i), v);
    }
  }
}

// A block has a square, blockIdx (x across, y down, z group).
template <class D, class S>
__device__ inline void round_fp8(D* d, const S* s, int rows, int cols, int ds, int ss) {
  int col = blockIdx.x * kFP8Block + threadIdx.x % kAcross * kEight,
      row = blockIdx.y * kFP8Block + threadIdx.x / kAcross;
  size_t at = (size_t)blockIdx.z * rows + row;
  d += at * ds + col, s += at * ss + col;
  bool full = (blockIdx.x + 1) * kFP8Block <= cols && (blockIdx.y + 1) * kFP8Block <= rows;
  bool vector = ((size_t)d | (size_t)s | ds * sizeof(D) | ss * sizeof(S)) % 16 == 0;
  if (full && vector) round_square<true>(d, s, rows - row, cols - col, ds, ss);
  else round_square<false>(d, s, rows - row, cols - col, ds, ss);
}

#define ROUND(to, D, from, S)                                                              \
  KERNEL(round_int4_##to##_##from, D* d, const S* s, int rows, int cols, int ds, int ss) { \
    round_int4(d, s, rows, cols, ds, ss);                                                  \
  }                                                                                        \
  extern "C" __global__ void __launch_bounds__(kSquareThreads, 2)                          \
      round_fp8_##to##_##from(D* d, const S* s, int rows, int cols, int ds, int ss) {      \
    round_fp8(d, s, rows, cols, ds, ss);                                                   \
  }
ROUND(f32, float, f32, float)
ROUND(f32, float, bf16, u16)
ROUND(bf16, u16, f32, float)
ROUND(bf16, u16, bf16, u16)

// What storing weights in 4 bits, or in E4M3, leaves of them: kernels.Rounder. Bound: the bytes of src and dst; each weight is read once.
#include "rows.cuh"

constexpr int kINT4Group = 32, kFP8Block = 128;  // quant.INT4Group and FP8Block
constexpr u32 kMagnitude = 0x7fffffff, kInfinity = 0x7f800000, kNaN = 0x7fc00000;

// Magnitudes are compared as integers, which order as the numbers do.
template <int Threads>
__device__ inline u32 most_of(u32 most) {
#pragma unroll
  for (int bit = 1; bit < Threads; bit <<= 1) most = max(most, __shfl_xor_sync(~0u, most, bit));
  return most;
}

// A thread has eight columns, four threads a group. A row has threads for whole groups, so those of a group are neighbours in one warp; what has no columns does not leave.
template <class D, class S>
__device__ void round_int4(D* d, const S* s, int rows, int cols, int ds, int ss) {
  constexpr int kThreads = kINT4Group / kEight;
  u32 across = (cols + kINT4Group - 1) / kINT4Group * kThreads, i = blockIdx.x * blockDim.x + threadIdx.x;
  int row = i / across, col = i % across * kEight, left = row < rows ? cols - col : 0;
  float v[kEight];
  load8(s + (size_t)row * ss + col, left, v);
  u32 most = 0;
#pragma unroll
  for (int j = 0; j < kEight; j++) most = max(most, __float_as_uint(v[j]) & kMagnitude);
  most = most_of<kThreads>(most);
  float scale = __uint_as_float(most) / 7.f;
#pragma unroll
  for (int j = 0; j < kEight; j++) {
    float q = fminf(fmaxf(rintf(v[j] / scale), -8.f), 7.f) * scale;
    v[j] = most >= kInfinity ? __uint_as_float(kNaN) : scale == 0.f ? 0.f : q;
  }
  store8(d + (size_t)row * ds + col, left, v);
}

// e4m3 is the E4M3 nearest to x, as quant.EncodeE4M3 has it; x is a number.
__device__ inline float e4m3(float x) {
  u32 b = __float_as_uint(x), a = b & kMagnitude;
  float y = __uint_as_float((a + 0x7ffff + (a >> 20 & 1)) & 0xfff00000);  // three bits of fp32's significand
  if (a < __float_as_uint(1.f / 64)) y = (__uint_as_float(a) + 16384.f) - 16384.f;  // subnormal: fp32 at this size lie 2^-9 apart
  if (a >= __float_as_uint(448.f)) y = 448.f;
  return __uint_as_float(__float_as_uint(y) | (b & ~kMagnitude));
}

constexpr int kAcross = kFP8Block / kEight, kSquareThreads = 512, kDown = kSquareThreads / kAcross, kPieces = kFP8Block / kDown;

// A block has a square, blockIdx (x across, y down, z group); a thread eight columns of every kDown-th of its rows, which stay in registers as they are stored.
template <class D, class S>
__device__ void round_fp8(D* d, const S* s, int rows, int cols, int ds, int ss) {
  __shared__ u32 mosts[kSquareThreads / kWarp];
  int col = blockIdx.x * kFP8Block + threadIdx.x % kAcross * kEight, first = blockIdx.y * kFP8Block + threadIdx.x / kAcross;
  auto left = [&](int i) { return first + i * kDown < rows ? cols - col : 0; };
  auto at = [&](int i) { return (size_t)blockIdx.z * rows + first + i * kDown; };
  Stored8<S> w[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; i++) w[i].load(s + at(i) * ss + col, left(i));
  u32 most = 0;
  float v[kEight];
#pragma unroll
  for (int i = 0; i < kPieces; i++) {
    w[i].values(v);
#pragma unroll
    for (int j = 0; j < kEight; j++) {
      u32 a = __float_as_uint(v[j]) & kMagnitude;
      most = max(most, a > kInfinity ? 0 : a);
    }
  }
  most = most_of<kWarp>(most);
  if (warp_lane() == 0) mosts[threadIdx.x / kWarp] = most;
  __syncthreads();
  most = most_of<kSquareThreads / kWarp>(mosts[warp_lane() % (kSquareThreads / kWarp)]);
  float scale = __uint_as_float(most) / 448.f;
#pragma unroll
  for (int i = 0; i < kPieces; i++) {
    w[i].values(v);
#pragma unroll
    for (int j = 0; j < kEight; j++) {
      float y = e4m3(v[j] / scale) * scale;
      bool number = most < kInfinity && (__float_as_uint(v[j]) & kMagnitude) <= kInfinity;
      v[j] = scale == 0.f ? 0.f : number ? y : __uint_as_float(kNaN);
    }
    store8(d + at(i) * ds + col, left(i), v);
  }
}

#define ROUND(to, D, from, S)                                                                                                                    \
  KERNEL(round_int4_##to##_##from, D* d, const S* s, int rows, int cols, int ds, int ss) { round_int4(d, s, rows, cols, ds, ss); } \
  KERNEL(round_fp8_##to##_##from, D* d, const S* s, int rows, int cols, int ds, int ss) { round_fp8(d, s, rows, cols, ds, ss); }
ROUND(f32, float, f32, float)
ROUND(f32, float, bf16, u16)
ROUND(bf16, u16, f32, float)
ROUND(bf16, u16, bf16, u16)

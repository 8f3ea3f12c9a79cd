// Zero, Copy, Add, Accumulate, Scale: a thread for eight columns of a row; of fp32 that is only written, or read in
// several parts, for four in each half of its warp's. Bound: the bytes read and written.
#include "rows.cuh"

#define PIECE                       \
  Piece at(cols);                   \
  if (at.row >= rows) return;       \
  int left = cols - at.col;         \
  float v[kEight];

template <class T>
__device__ void zero(T* row, Piece at, int cols) {
  float v[kEight] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
  store8(row + at.col, cols - at.col, v);
}
KERNEL(zero16, u16* x, int rows, int cols, int stride) {
  Piece at(cols);
  if (at.row < rows) zero(x + (size_t)at.row * stride, at, cols);
}
KERNEL(zero32, float* x, int rows, int cols, int stride) {
  Piece at(cols);
  if (at.row >= rows) return;
  float* row = x + (size_t)at.row * stride;
  SideBySide side(at, cols);
  if (!side.all || ((size_t)(row + side.first) & 15)) {
    zero(row, at, cols);
    return;
  }
#pragma unroll
  for (int h = 0; h < 2; h++) *(float4*)(row + side.col(h)) = make_float4(0.f, 0.f, 0.f, 0.f);
}

template <class D, class S>
__device__ void copy(D* d, const S* s, int rows, int cols, int ds, int ss) {
  PIECE
  load8(s + (size_t)at.row * ss + at.col, left, v);
  store8(d + (size_t)at.row * ds + at.col, left, v);
}
KERNEL(copy_f32_bf16, float* d, const u16* s, int rows, int cols, int ds, int ss) { copy(d, s, rows, cols, ds, ss); }
KERNEL(copy_bf16_f32, u16* d, const float* s, int rows, int cols, int ds, int ss) { copy(d, s, rows, cols, ds, ss); }

template <class T>
__device__ void copy_bits(T* d, const T* s, int rows, int cols, int ds, int ss) {
  Piece at(cols);
  if (at.row < rows) move8(d + (size_t)at.row * ds + at.col, s + (size_t)at.row * ss + at.col, cols - at.col);
}
KERNEL(copy16, u16* d, const u16* s, int rows, int cols, int ds, int ss) { copy_bits(d, s, rows, cols, ds, ss); }
KERNEL(copy32, u32* d, const u32* s, int rows, int cols, int ds, int ss) { copy_bits(d, s, rows, cols, ds, ss); }

template <class T>
__device__ void add(T* out, const T* a, const T* b, int rows, int cols, int os, int as, int bs) {
  PIECE
  float w[kEight];
  load8(a + (size_t)at.row * as + at.col, left, v);
  load8(b + (size_t)at.row * bs + at.col, left, w);
#pragma unroll
  for (int j = 0; j < kEight; j++) v[j] = v[j] + w[j];
  store8(out + (size_t)at.row * os + at.col, left, v);
}
#define ADD(T) (T * out, const T* a, const T* b, int rows, int cols, int os, int as, int bs)
KERNELS(add, ADD, (out, a, b, rows, cols, os, as, bs))

// accumulate_whole is accumulate of a lane's columns side by side with the warp's: four parts are on their way before
// one is added.
__device__ inline void accumulate_whole(float* dst, const float* parts, int count, int ps, SideBySide side) {
  float4 sum[2];
#pragma unroll
  for (int h = 0; h < 2; h++) sum[h] = *(const float4*)(dst + side.col(h));
#pragma unroll 4
  for (int s = 0; s < count; s++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float4 part = *(const float4*)(parts + (size_t)s * ps + side.col(h)), v = sum[h];
      sum[h] = make_float4(v.x + part.x, v.y + part.y, v.z + part.z, v.w + part.w);
    }
#pragma unroll
  for (int h = 0; h < 2; h++) *(float4*)(dst + side.col(h)) = sum[h];
}

constexpr int kMostSums = 64;

// Sums are vectors of cols numbers at dst, each with count parts at parts, rows of that stride.
struct Sums {
  unsigned long long dst[kMostSums], parts[kMostSums];
  int cols[kMostSums], count[kMostSums], stride[kMostSums];
};

// accumulate: dst = ((dst + parts[0]) + parts[1]) + ... of the sum blockIdx.y. Those of a layer are one launch: most of
// them are short, and a launch takes 2 us.
KERNEL(accumulate, const __grid_constant__ Sums sums) {
  int sum = blockIdx.y, cols = sums.cols[sum], count = sums.count[sum], ps = sums.stride[sum];
  float* dst = (float*)sums.dst[sum];
  const float* parts = (const float*)sums.parts[sum];
  Piece at(cols);
  if (at.row >= 1) return;
  SideBySide side(at, cols);
  if (side.all && (((size_t)(dst + side.first) | (size_t)(parts + side.first)) & 15) == 0 && ps % 4 == 0) {
    accumulate_whole(dst, parts, count, ps, side);
    return;
  }
  int left = cols - at.col;
  float v[kEight];
  load8(dst + at.col, left, v);
  for (int s = 0; s < count; s++) {
    float w[kEight];
    load8(parts + (size_t)s * ps + at.col, left, w);
#pragma unroll
    for (int j = 0; j < kEight; j++) v[j] = v[j] + w[j];
  }
  store8(dst + at.col, left, v);
}

template <class T>
__device__ void scale(T* out, const T* x, float f, int rows, int cols, int os, int xs) {
  PIECE
  load8(x + (size_t)at.row * xs + at.col, left, v);
#pragma unroll
  for (int j = 0; j < kEight; j++) v[j] = v[j] * f;
  store8(out + (size_t)at.row * os + at.col, left, v);
}
#define SCALE(T) (T * out, const T* x, float f, int rows, int cols, int os, int xs)
KERNELS(scale, SCALE, (out, x, f, rows, cols, os, xs))

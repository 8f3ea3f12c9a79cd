// Zero, Copy, Add, Accumulate, Scale: a thread for eight columns of a row. Bound: the bytes read and written.
#include "rows.cuh"

#define PIECE                       \
  Piece at(cols);                   \
  if (at.row >= rows) return;       \
  int left = cols - at.col;         \
  float v[kEight];

template <class T>
__device__ void zero(T* x, int rows, int cols, int stride) {
  PIECE
#pragma unroll
  for (int j = 0; j < kEight; j++) v[j] = 0.f;
  store8(x + (size_t)at.row * stride + at.col, left, v);
}
KERNEL(zero16, u16* x, int rows, int cols, int stride) { zero(x, rows, cols, stride); }
KERNEL(zero32, float* x, int rows, int cols, int stride) { zero(x, rows, cols, stride); }

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

// accumulate: dst = ((dst + parts[0]) + parts[1]) + ...
KERNEL(accumulate, float* dst, const float* parts, int count, int cols, int ps) {
  Piece at(cols);
  if (at.row >= 1) return;
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

// AddBias: a thread for eight columns of a row. BiasGrad: a thread for a column of a group, blocks of 64 rows of each
// of its segments. Bound: the bytes of x and out, or of dy.
//   out[t] = round(x[t] + bias of the row's group); dbias += dy, a sum over rows
#include "rows.cuh"

// group_of is the group of row r: the first that ends behind it. offsets nil: one group.
__device__ inline int group_of(const int* offsets, int groups, int segments, int r) {
  if (!offsets) return 0;
  int from = 0, to = groups - 1;
  while (from < to) {
    int e = (from + to) / 2;
    if (offsets[(e + 1) * segments] > r) to = e;
    else from = e + 1;
  }
  return from;
}

template <class T, class B>
__device__ void add_bias(T* out, const T* x, const B* bias, const int* offsets, int groups, int segments, int rows,
                         int n, int os, int xs) {
  Piece at(n);
  if (at.row >= rows) return;
  int left = n - at.col;
  float v[kEight], b[kEight];
  load8(x + (size_t)at.row * xs + at.col, left, v);
  load8(bias + (size_t)group_of(offsets, groups, segments, at.row) * n + at.col, left, b);
#pragma unroll
  for (int j = 0; j < kEight; j++) v[j] = v[j] + b[j];
  store8(out + (size_t)at.row * os + at.col, left, v);
}
#define ADD_BIAS(name, T, B)                                                                                     \
  KERNEL(name, T* out, const T* x, const B* bias, const int* offsets, int groups, int segments, int rows, int n, \
         int os, int xs) {                                                                                       \
    add_bias(out, x, bias, offsets, groups, segments, rows, n, os, xs);                                          \
  }
ADD_BIAS(add_bias_f32_f32, float, float)
ADD_BIAS(add_bias_f32_bf16, float, u16)
ADD_BIAS(add_bias_bf16_f32, u16, float)
ADD_BIAS(add_bias_bf16_bf16, u16, u16)

template <class T>
__device__ void bias_grad(float* dbias, const T* dy, const int* offsets, int segments, int n, int ds) {
  int j = blockIdx.x * blockDim.x + threadIdx.x, e = blockIdx.y;
  if (j >= n) return;
  float total = dbias[(size_t)e * n + j];
  for (int s = e * segments; s < (e + 1) * segments; s++) {
    float sum = 0.f;
    for (int from = offsets[s], end = offsets[s + 1]; from < end; from += kRowBlock)
      sum = sum + sum_rows(from, min(from + kRowBlock, end), [&](size_t r) { return load(dy, r * ds + j); });
    total = total + sum;
  }
  dbias[(size_t)e * n + j] = total;
}
#define BIAS_GRAD(T) (float* dbias, const T* dy, const int* offsets, int segments, int n, int ds)
KERNELS(bias_grad, BIAS_GRAD, (dbias, dy, offsets, segments, n, ds))

// Combine: out[t] = round(sum over slots k ascending, from +0, of weights[t,k]*y[rowOf[t,k]]), each product rounded; weights nil: of y alone;
// with weights, products and sums are rounded on the way by Definition.Combine. A thread for
// eight columns of a token. Its gradient: dy[row] = round(weights[t,k]*dout[t]), dweights[t,k] = tree(dout[t]*y[row]), a warp for a (token, slot).
// Bound: the bytes of y and out, or of dout, y and dy.
#include "rows.cuh"

template <class T>
__device__ void combine(T* out, const T* y, const float* weights, const int* row_of, int rows, int cols, int k, int os, int ys) {
  Piece at(cols);
  if (at.row >= rows) return;
  int left = cols - at.col;
  float sum[kEight] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
#pragma unroll 4
  for (int i = at.row * k; i < (at.row + 1) * k; i++) {
    float v[kEight];
    load8(y + (size_t)row_of[i] * ys + at.col, left, v);
    if (weights)
#pragma unroll
      for (int j = 0; j < kEight; j++) sum[j] = round_combine(sum[j] + round_combine(v[j] * weights[i]));
    else
#pragma unroll
      for (int j = 0; j < kEight; j++) sum[j] = sum[j] + v[j];
  }
  store8(out + (size_t)at.row * os + at.col, left, sum);
}
#define COMBINE(T) (T * out, const T* y, const float* weights, const int* row_of, int rows, int cols, int k, int os, int ys)
KERNELS(combine, COMBINE, (out, y, weights, row_of, rows, cols, k, os, ys))

template <class T>
__device__ void combine_backward(T* dy, float* dweights, const T* dout, const T* y, const float* weights, const int* row_of, int pairs, int cols, int k, int dys,
                                 int ds, int ys) {
  int i = warp_row();
  if (i >= pairs) return;
  const T *d = dout + (size_t)(i / k) * ds, *v = y + (size_t)row_of[i] * ys;
  T* to = dy + (size_t)row_of[i] * dys;
  float weight = weights[i];
  float s = tree8(cols, [&](int c, int left, float* x) {
    float b[kEight], scaled[kEight];
    load8(d + c, left, x);
    load8(v + c, left, b);
#pragma unroll
    for (int j = 0; j < kEight; j++) scaled[j] = x[j] * weight, x[j] = x[j] * b[j];
    store8(to + c, left, scaled);
  });
  if (warp_lane() == 0) dweights[i] = s;
}
#define COMBINE_BACKWARD(T)                                                                                                                             \
  (T * dy, float* dweights, const T* dout, const T* y, const float* weights, const int* row_of, int pairs, int cols, int k, int dys, int ds, int ys)
KERNELS(combine_backward, COMBINE_BACKWARD, (dy, dweights, dout, y, weights, row_of, pairs, cols, k, dys, ds, ys))

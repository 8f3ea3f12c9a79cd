// LayerNorm: mean = tree(x)/n, c = x - mean, rstd = 1/sqrt(tree(c*c)/n + eps), out = round(c*rstd*w + bias). A warp for a row. Bound: the bytes of x and out.
#include "rows.cuh"

template <class T>
__device__ void layer_norm(T* out, const T* x, const T* w, const T* bias, int rows, int n, int os, int xs, float eps) {
  int r = warp_row();
  if (r >= rows) return;
  const T* row = x + (size_t)r * xs;
  T* to = out + (size_t)r * os;
  float mean = tree8(n, [&](int i, int left, float* v) { load8(row + i, left, v); }) / (float)n;
  auto centred = [&](int i, int left, float* v) {
    load8(row + i, left, v);
#pragma unroll
    for (int j = 0; j < kEight; j++) v[j] = v[j] - mean;
  };
  float rstd = r_std(tree8(n, [&](int i, int left, float* v) {
                       centred(i, left, v);
#pragma unroll
                       for (int j = 0; j < kEight; j++) v[j] = v[j] * v[j];
                     }), n, eps);
  for (int i = warp_lane() * kEight; i < n; i += kLanes) {
    float v[kEight], g[kEight], b[kEight];
    centred(i, n - i, v);
    load8(w + i, n - i, g);
    load8(bias + i, n - i, b);
#pragma unroll
    for (int j = 0; j < kEight; j++) v[j] = (v[j] * rstd) * g[j] + b[j];
    store8(to + i, n - i, v);
  }
}
#define LAYER_NORM(T) (T * out, const T* x, const T* w, const T* bias, int rows, int n, int os, int xs, float eps)
KERNELS(layer_norm, LAYER_NORM, (out, x, w, bias, rows, n, os, xs, eps))

// ReLU2 and its gradient: a thread for eight columns. Bound: the bytes of x, out and dx.
//   out = round(r*r), r = max(x, 0); dx = round(dout*(2*r))
#include "rows.cuh"

__device__ inline float ramp(float x) { return x <= 0.f ? 0.f : x; }  // NaN stays

template <class T>
__device__ void relu2(T* out, const T* x, int rows, int n, int os, int xs) {
  Piece at(n);
  if (at.row >= rows) return;
  float v[kEight];
  load8(x + (size_t)at.row * xs + at.col, n - at.col, v);
#pragma unroll
  for (int j = 0; j < kEight; j++) v[j] = ramp(v[j]) * ramp(v[j]);
  store8(out + (size_t)at.row * os + at.col, n - at.col, v);
}
#define RELU2(T) (T * out, const T* x, int rows, int n, int os, int xs)
KERNELS(relu2, RELU2, (out, x, rows, n, os, xs))

template <class T>
__device__ void relu2_backward(T* dx, const T* dout, const T* x, int rows, int n, int dxs, int ds, int xs) {
  Piece at(n);
  if (at.row >= rows) return;
  float v[kEight], d[kEight];
  load8(x + (size_t)at.row * xs + at.col, n - at.col, v);
  load8(dout + (size_t)at.row * ds + at.col, n - at.col, d);
#pragma unroll
  for (int j = 0; j < kEight; j++) v[j] = d[j] * (2.f * ramp(v[j]));
  store8(dx + (size_t)at.row * dxs + at.col, n - at.col, v);
}
#define RELU2_BACKWARD(T) (T * dx, const T* dout, const T* x, int rows, int n, int dxs, int ds, int xs)
KERNELS(relu2_backward, RELU2_BACKWARD, (dx, dout, x, rows, n, dxs, ds, xs))

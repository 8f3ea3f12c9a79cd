// SwiGLU and its gradient: a thread for eight columns. Bound: the bytes of gu, out and dgu.
//   out = round((g*sigm(g))*u); with s = sigm(g): du = round(dout*(g*s)), dg = round((dout*u)*(s*(1 + g*(1-s))))
#include "rows.cuh"

template <class T>
__device__ void swiglu(T* out, const T* gu, int rows, int n, int os, int gs) {
  Piece at(n);
  if (at.row >= rows) return;
  int left = n - at.col;
  float g[kEight], u[kEight];
  const T* from = gu + (size_t)at.row * gs + at.col;
  Stored8<T> gate, up;  // both on their way before one is widened
  gate.load(from, left), up.load(from + n, left);
  gate.values(g), up.values(u);
#pragma unroll
  for (int j = 0; j < kEight; j++) u[j] = (g[j] * sigmoid_def(g[j])) * u[j];
  store8(out + (size_t)at.row * os + at.col, left, u);
}
#define SWIGLU(T) (T * out, const T* gu, int rows, int n, int os, int gs)
KERNELS(swiglu, SWIGLU, (out, gu, rows, n, os, gs))

template <class T>
__device__ void swiglu_backward(T* dgu, const T* dout, const T* gu, int rows, int n, int dgs, int ds, int gs) {
  Piece at(n);
  if (at.row >= rows) return;
  int left = n - at.col;
  float g[kEight], u[kEight], d[kEight];
  const T* from = gu + (size_t)at.row * gs + at.col;
  load8(from, left, g);
  load8(from + n, left, u);
  load8(dout + (size_t)at.row * ds + at.col, left, d);
#pragma unroll
  for (int j = 0; j < kEight; j++) {
    float s = sigmoid_def(g[j]), up = d[j] * (g[j] * s);
    g[j] = (d[j] * u[j]) * (s * (1.f + g[j] * (1.f - s)));
    u[j] = up;
  }
  T* to = dgu + (size_t)at.row * dgs + at.col;
  store8(to, left, g);
  store8(to + n, left, u);
}
#define SWIGLU_BACKWARD(T) (T * dgu, const T* dout, const T* gu, int rows, int n, int dgs, int ds, int gs)
KERNELS(swiglu_backward, SWIGLU_BACKWARD, (dgu, dout, gu, rows, n, dgs, ds, gs))

// ClampedSwiGLU and its gradient: a thread for eight columns. Bound: the bytes of gu, out and dgu.
//   g = min(g, limit), u = min(max(u, -limit), limit): out = round((g*sigm(alpha*g))*(u+1)); with s = sigm(alpha*g): du
//   = round(dout*(g*s)),
//   dg = round((dout*(u+1))*(s*(1 + (alpha*g)*(1-s)))), each 0 where its clamp took effect
#include "rows.cuh"

__device__ inline float at_most(float x, float limit) { return x > limit ? limit : x; }
__device__ inline float at_least(float x, float limit) { return x < limit ? limit : x; }

template <class T>
__device__ void clamped_swiglu(T* out, const T* gu, int rows, int n, int os, int gs, float alpha, float limit) {
  Piece at(n);
  if (at.row >= rows) return;
  int left = n - at.col;
  float g[kEight], u[kEight];
  const T* from = gu + (size_t)at.row * gs + at.col;
  load8(from, left, g);
  load8(from + n, left, u);
#pragma unroll
  for (int j = 0; j < kEight; j++) {
    float x = at_most(g[j], limit), y = at_most(at_least(u[j], -limit), limit);
    u[j] = (x * sigmoid_def(alpha * x)) * (y + 1.f);
  }
  store8(out + (size_t)at.row * os + at.col, left, u);
}
#define CLAMPED_SWIGLU(T) (T * out, const T* gu, int rows, int n, int os, int gs, float alpha, float limit)
KERNELS(clamped_swiglu, CLAMPED_SWIGLU, (out, gu, rows, n, os, gs, alpha, limit))

template <class T>
__device__ void clamped_swiglu_backward(T* dgu, const T* dout, const T* gu, int rows, int n, int dgs, int ds, int gs,
                                        float alpha, float limit) {
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
    float x = at_most(g[j], limit), y = at_most(at_least(u[j], -limit), limit);
    float a = alpha * x, s = sigmoid_def(a);
    float du = d[j] * (x * s), dg = (d[j] * (y + 1.f)) * (s * (1.f + a * (1.f - s)));
    g[j] = g[j] > limit ? 0.f : dg;
    u[j] = u[j] > limit || u[j] < -limit ? 0.f : du;
  }
  T* to = dgu + (size_t)at.row * dgs + at.col;
  store8(to, left, g);
  store8(to + n, left, u);
}
#define CLAMPED_SWIGLU_BACKWARD(T) \
  (T * dgu, const T* dout, const T* gu, int rows, int n, int dgs, int ds, int gs, float alpha, float limit)
KERNELS(clamped_swiglu_backward, CLAMPED_SWIGLU_BACKWARD, (dgu, dout, gu, rows, n, dgs, ds, gs, alpha, limit))

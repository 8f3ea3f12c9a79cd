// ClampedSwiGLU and its gradient: a thread for an element. Bound: the bytes of gu, out and dgu.
//   g = min(g, limit), u = min(max(u, -limit), limit): out = round((g*sigm(alpha*g))*(u+1)); with s = sigm(alpha*g): du = round(dout*(g*s)),
//   dg = round((dout*(u+1))*(s*(1 + (alpha*g)*(1-s)))), each 0 where its clamp took effect
#include "definition.cuh"

__device__ inline float at_most(float x, float limit) { return x > limit ? limit : x; }
__device__ inline float at_least(float x, float limit) { return x < limit ? limit : x; }

template <class T>
__device__ void clamped_swiglu(T* out, const T* gu, int rows, int n, int os, int gs, float alpha, float limit) {
  for (int r = blockIdx.y; r < rows; r += gridDim.y)
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
      float g = at_most(load(gu, (size_t)r * gs + i), limit), u = at_most(at_least(load(gu, (size_t)r * gs + n + i), -limit), limit);
      store(out, (size_t)r * os + i, (g * sigmoid_def(alpha * g)) * (u + 1.f));
    }
}
#define CLAMPED_SWIGLU(T) (T * out, const T* gu, int rows, int n, int os, int gs, float alpha, float limit)
KERNELS(clamped_swiglu, CLAMPED_SWIGLU, (out, gu, rows, n, os, gs, alpha, limit))

template <class T>
__device__ void clamped_swiglu_backward(T* dgu, const T* dout, const T* gu, int rows, int n, int dgs, int ds, int gs, float alpha, float limit) {
  for (int r = blockIdx.y; r < rows; r += gridDim.y)
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
      float x = load(gu, (size_t)r * gs + i), y = load(gu, (size_t)r * gs + n + i), d = load(dout, (size_t)r * ds + i);
      float g = at_most(x, limit), u = at_most(at_least(y, -limit), limit);
      float a = alpha * g, s = sigmoid_def(a);
      float du = d * (g * s), dg = (d * (u + 1.f)) * (s * (1.f + a * (1.f - s)));
      store(dgu, (size_t)r * dgs + i, x > limit ? 0.f : dg);
      store(dgu, (size_t)r * dgs + n + i, y > limit || y < -limit ? 0.f : du);
    }
}
#define CLAMPED_SWIGLU_BACKWARD(T) (T * dgu, const T* dout, const T* gu, int rows, int n, int dgs, int ds, int gs, float alpha, float limit)
KERNELS(clamped_swiglu_backward, CLAMPED_SWIGLU_BACKWARD, (dgu, dout, gu, rows, n, dgs, ds, gs, alpha, limit))

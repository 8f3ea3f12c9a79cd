// SwiGLU and its gradient: a thread for an element. Bound: the bytes of gu, out and dgu.
//   out = round((g*sigm(g))*u); with s = sigm(g): du = round(dout*(g*s)), dg = round((dout*u)*(s*(1 + g*(1-s))))
#include "definition.cuh"

template <class T>
__device__ void swiglu(T* out, const T* gu, int rows, int n, int os, int gs) {
  for (int r = blockIdx.y; r < rows; r += gridDim.y)
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
      float g = load(gu, (size_t)r * gs + i), u = load(gu, (size_t)r * gs + n + i);
      store(out, (size_t)r * os + i, (g * sigmoid_def(g)) * u);
    }
}
#define SWIGLU(T) (T * out, const T* gu, int rows, int n, int os, int gs)
KERNELS(swiglu, SWIGLU, (out, gu, rows, n, os, gs))

template <class T>
__device__ void swiglu_backward(T* dgu, const T* dout, const T* gu, int rows, int n, int dgs, int ds, int gs) {
  for (int r = blockIdx.y; r < rows; r += gridDim.y)
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
      float g = load(gu, (size_t)r * gs + i), u = load(gu, (size_t)r * gs + n + i), d = load(dout, (size_t)r * ds + i);
      float s = sigmoid_def(g);
      store(dgu, (size_t)r * dgs + i, (d * u) * (s * (1.f + g * (1.f - s))));
      store(dgu, (size_t)r * dgs + n + i, d * (g * s));
    }
}
#define SWIGLU_BACKWARD(T) (T * dgu, const T* dout, const T* gu, int rows, int n, int dgs, int ds, int gs)
KERNELS(swiglu_backward, SWIGLU_BACKWARD, (dgu, dout, gu, rows, n, dgs, ds, gs))

// Decay of a recurrence's heads and its gradient: a thread for a head of a row. Bound: the bytes of a, g and step.
//   s = softplus(a + bias), step = min(max(s, lo), hi), g = -(exp(rate)*step)
//   z = (dstep - exp(rate)*dg)*sigm(a + bias), 0 where step is not s; da = round(z); dbias += z and drate += dg*g, sums
//   over rows
#include "definition.cuh"

// ln1p_def is kernels.Ln1p, of e in [0, 1].
__device__ inline float ln1p_def(float e) {
  float s = e / (2.f + e), z = s * s;
  float p = 1.f / 15.f;
  p = z * p + 1.f / 13.f;
  p = z * p + 1.f / 11.f;
  p = z * p + 1.f / 9.f;
  p = z * p + 1.f / 7.f;
  p = z * p + 1.f / 5.f;
  p = z * p + 1.f / 3.f;
  return (s + s) + ((s + s) * (z * p));
}

__device__ inline float softplus_def(float x) { return (x > 0.f ? x : 0.f) + ln1p_def(exp2_def(-fabsf(x) * kLog2E)); }

__device__ inline float exp_def(float x) { return x <= 0.f ? exp2_def(x * kLog2E) : 1.f / exp2_def(-(x * kLog2E)); }

template <class T>
__device__ void decay(float* g, float* step, const T* a, const float* rate, const float* bias, int rows, int n, int gs,
                      int ss, int as, float lo, float hi) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * n) return;
  size_t r = i / n;
  int j = i % n;
  float s = fminf(fmaxf(softplus_def(load(a, r * as + j) + bias[j]), lo), hi);
  step[r * ss + j] = s;
  g[r * gs + j] = -(exp_def(rate[j]) * s);
}
#define DECAY(T)                                                                                                     \
  (float* g, float* step, const T* a, const float* rate, const float* bias, int rows, int n, int gs, int ss, int as, \
   float lo, float hi)
KERNELS(decay, DECAY, (g, step, a, rate, bias, rows, n, gs, ss, as, lo, hi))

// zs and rates F32 [rows, n] are what each row adds to dbias and drate. dstep nil counts as +0.
template <class T>
__device__ void decay_backward(T* da, float* zs, float* rates, const float* dg, const float* dstep, const float* g,
                               const T* a, const float* rate, const float* bias, int rows, int n, int das, int dgs,
                               int dss, int gs, int as, float lo, float hi) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * n) return;
  size_t r = i / n;
  int j = i % n;
  float x = load(a, r * as + j) + bias[j], d = dg[r * dgs + j], part = exp_def(rate[j]) * d;
  float z = (dstep ? dstep[r * dss + j] - part : -part) * sigmoid_def(x), s = softplus_def(x);
  if (s < lo || s > hi) z = 0.f;
  zs[i] = z;
  rates[i] = d * g[r * gs + j];
  store(da, r * das + j, z);
}
#define DECAY_BACKWARD(T)                                                                                      \
  (T * da, float* zs, float* rates, const float* dg, const float* dstep, const float* g, const T* a,           \
   const float* rate, const float* bias, int rows, int n, int das, int dgs, int dss, int gs, int as, float lo, \
   float hi)
KERNELS(decay_backward, DECAY_BACKWARD,
        (da, zs, rates, dg, dstep, g, a, rate, bias, rows, n, das, dgs, dss, gs, as, lo, hi))

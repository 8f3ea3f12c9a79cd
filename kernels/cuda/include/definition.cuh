// The primitive operations of the definition, as kernels/math.go has them. Compiled with --fmad=false: a*b + c is two
// roundings, and only fmaf fuses.
#pragma once

#include "exp2.cuh"

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL(name, ...) extern "C" __global__ void name(__VA_ARGS__)

// KERNELS declares a kernel for each storage type: body<T> is called with its parameters.
#define KERNELS(name, parameters, arguments)                                            \
  extern "C" __global__ void name##_f32 parameters(float) { name<float> arguments; }     \
  extern "C" __global__ void name##_bf16 parameters(u16) { name<u16> arguments; }

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
constexpr int kLanes = 256, kWarp = 32;

__device__ inline float infinity() { return __uint_as_float(0x7f800000); }
__device__ inline float widen(u16 x) { return __uint_as_float((u32)x << 16); }

// narrow rounds to nearest even; NaN stays a quiet NaN.
__device__ inline u16 narrow(float x) {
  u32 b = __float_as_uint(x);
  if ((b & 0x7fffffff) > 0x7f800000) return (u16)(b >> 16) | 0x40;
  return (u16)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

// convert2 is two numbers by the card's conversion, which rounds as narrow does, but makes of NaN 0x7fff.
__device__ inline u32 convert2(float low, float high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// The roundings of a definition: to bf16 where it has them, which is known when this is compiled.
__device__ inline float round_combine(float x) {
#ifdef COMBINE_BF16
  return widen(narrow(x));
#else
  return x;
#endif
}
__device__ inline float round_router(float x) {
#ifdef ROUTER_BF16
  return widen(narrow(x));
#else
  return x;
#endif
}
// Norms whose weight is stored as its distance from 1 have no rounding.
__device__ inline float round_norm(float x, int plus_one) {
#ifdef NORM_BF16
  return plus_one ? x : widen(narrow(x));
#else
  return x;
#endif
}

__device__ inline float load(const float* p, size_t i) { return p[i]; }
__device__ inline float load(const u16* p, size_t i) { return widen(p[i]); }

__device__ inline void store(float* p, size_t i, float v) { p[i] = v; }
__device__ inline void store(u16* p, size_t i, float v) { p[i] = narrow(v); }

// exp2_def is 2^x for x <= 0 by the definition of the device.
__device__ inline float exp2_def(float x) {
#ifdef EXP2_EX2H
  return ex2h(x);
#else
  return exp2_poly(x);
#endif
}

// exp2_sub is Exp2((x - m)*scale) with the argument held at 0 or below, as vec.Exp2Sub.
__device__ inline float exp2_sub(float x, float scale, float m) {
  float t = (x - m) * scale;
  return exp2_def(t > 0.f ? 0.f : t);
}

__device__ inline float sigmoid_def(float x) {
  float e = exp2_def(-fabsf(x) * kLog2E);
  return (x >= 0.f ? 1.f : e) / (1.f + e);
}

// ln_def is the natural logarithm of a positive normal x.
__device__ inline float ln_def(float x) {
  u32 b = __float_as_uint(x);
  int e = (int)(b >> 23) - 127;
  float m = __uint_as_float((b & 0x7fffff) | 127u << 23);
  if (m >= 1.41421354f) {
    m = m * 0.5f;
    e++;
  }
  float s = (m - 1.f) / (m + 1.f), z = s * s;
  float p = z * (1.f / 9.f) + 1.f / 7.f;
  p = z * p + 1.f / 5.f;
  p = z * p + 1.f / 3.f;
  float r = (s + s) + ((s + s) * (z * p));
  return (float)e * kLn2 + r;
}

// A warp holds the 256 lanes of a reduction tree: thread t has lanes t, t+32, ... t+224.
struct Lanes {
  float v[kLanes / kWarp];
  __device__ Lanes() {
#pragma unroll
    for (int j = 0; j < kLanes / kWarp; j++) v[j] = 0.f;
  }
  // sum halves the lanes 128, 64, ... 1; every thread of the warp gets the result.
  __device__ float sum() {
#pragma unroll
    for (int s = 4; s > 0; s >>= 1)
#pragma unroll
      for (int j = 0; j < s; j++) v[j] = v[j] + v[j + s];
    float x = v[0];
#pragma unroll
    for (int s = 16; s > 0; s >>= 1) x = x + __shfl_xor_sync(~0u, x, s);
    return x;
  }
};

// tree is the definition's tree of f(0) ... f(n-1), by one warp.
template <class F>
__device__ inline float tree(int n, F f) {
  Lanes lanes;
  int t = threadIdx.x & 31, i = t;
  for (; i + kLanes - kWarp < n; i += kLanes)
#pragma unroll
    for (int j = 0; j < kLanes / kWarp; j++) lanes.v[j] += f(i + j * kWarp);
#pragma unroll
  for (int j = 0; j < kLanes / kWarp; j++)
    if (i + j * kWarp < n) lanes.v[j] += f(i + j * kWarp);
  return lanes.sum();
}

// larger is NaN if x or y is.
__device__ inline float larger(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

// largest is the maximum of f(0) ... f(n-1), by one warp; NaN if one is NaN; -0 becomes +0.
template <class F>
__device__ inline float largest(int n, F f) {
  float m = -infinity();
  for (int i = threadIdx.x & 31; i < n; i += kWarp) m = larger(m, f(i));
#pragma unroll
  for (int s = 16; s > 0; s >>= 1) m = larger(m, __shfl_xor_sync(~0u, m, s));
  return m + 0.f;
}

__device__ inline int warp_row() { return (blockIdx.x * blockDim.x + threadIdx.x) / kWarp; }
__device__ inline int warp_lane() { return threadIdx.x & 31; }

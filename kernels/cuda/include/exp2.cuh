// 2^x for x <= 0, both definitions of kernels.Exp2Mode: exp2_poly is kernels.Exp2, ex2h is kernels.Exp2H. Compiled with
// --fmad=false.
#pragma once

// exp2_normal is exp2_poly of a number that is not below -126: the result is a normal number.
__device__ inline float exp2_normal(float x) {
  const float magic = 12582912.f;
  float t = x + magic, f = x - (t - magic);
  float p = 1.53519242e-4f;
  p = fmaf(p, f, 1.33988739e-3f);
  p = fmaf(p, f, 9.61845741e-3f);
  p = fmaf(p, f, 5.55033758e-2f);
  p = fmaf(p, f, 2.40226462e-1f);
  p = fmaf(p, f, 6.93147182e-1f);
  p = fmaf(p, f, 1.f);
  return __uint_as_float(__float_as_uint(p) + (__float_as_uint(t) << 23));
}

__device__ inline float exp2_poly(float x) {
  if (x < -126.f) return 0.f;
  if (x != x) return x;
  return exp2_normal(x);
}

// ex2h is the instruction itself, which needs no help at the edges: below -126 it flushes to +0, a subnormal argument
// gives 1, NaN gives 0x7fffffff. A card on which it is another function fails selftest.cu.
__device__ inline float ex2h(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

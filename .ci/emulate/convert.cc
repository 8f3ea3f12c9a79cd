// The card's conversions and its 2^x.
#include <math.h>

#include "ptx.h"

namespace ptx {

// Segments are C0, C1 and C2 of kernels.Exp2HSegments, which `build` writes from the Go source.
static const int segments[64][3] = {
#include "segments.inc"
};

// Squares are x*x/2^19 of 17 bits, as kernels.truncatedSquare has them.
struct Squares {
  int of[1 << 17];
  Squares() {
    for (int x = 0; x < 1 << 17; x++) {
      int h = x >> 9, low = x & 511, q = h * h >> 1;
      for (int j = 10; j <= 16; j++) q += -(x >> j & 1) & (low >> (18 - j));
      of[x] = q;
    }
  }
};
static const Squares squares;

// ex2 is kernels.Exp2H, for x <= 0. Nothing here needs it above.
float ex2(float x) {
  if (x > 0.f) emu::fail("ex2.approx of %g: what the card gives above 0 is not recorded", (double)x);
  if (x < -126.f) return 0.f;
  if (x != x) return __uint_as_float(0x7fffffff);
  int t = (int)(x * (1 << 23)), w = t - 1, xl = w & ((1 << 17) - 1);
  const int* c = segments[w >> 17 & 63];
  long long y = (((long long)c[0] << 13) + (long long)c[1] * xl + (long long)c[2] * squares.of[xl] + 30690) >> 15;
  if ((t & ((1 << 23) - 1)) == 0) y++;
  return __uint_as_float((int)y + (w & ~((1 << 23) - 1)) + (126 << 23));
}

// e4m3_of is the E4M3 nearest to x, ties to even; beyond 448 it is 448, and NaN is 0x7f.
u16 e4m3_of(float x) {
  u16 sign = __float_as_uint(x) >> 31 << 7;
  float a = fabsf(x);
  if (x != x) return 0x7f;
  if (a >= 448.f) return sign | 0x7e;
  int e;
  frexpf(a, &e);
  e = a == 0.f || e - 1 < -6 ? -6 : e - 1;  // of the last place: subnormals have that of 2^-6
  int n = (int)__builtin_rintf(ldexpf(a, 3 - e));
  return sign | (n < 8 ? n : ((e + 7) << 3) + (n - 8));  // 16 is the next exponent's first
}

// half_of_e4m3 is exact.
u16 half_of_e4m3(u16 x) {
  int sign = x >> 7 & 1, e = x >> 3 & 15, m = x & 7;
  if (e == 15 && m == 7) return 0x7fff;
  if (e == 0 && m == 0) return sign << 15;
  if (e == 0) {  // subnormal: m * 2^-9
    int shift = __builtin_clz(m) - 28;
    e = 1 - shift, m = m << shift & 7;
  }
  return sign << 15 | (e + 8) << 10 | m << 7;
}

// float_of_half is exact.
float float_of_half(u16 x) {
  int e = x >> 10 & 31, m = x & 1023;
  if (e == 31 && m) return __uint_as_float(0x7fffffff);
  float size = e == 31 ? __uint_as_float(0x7f800000) : e == 0 ? ldexpf(m, -24) : ldexpf(1024 + m, e - 25);
  return x >> 15 ? -size : size;
}

// bf16_of_exact rounds once: fp32 in between keeps what is lost in its last place (rounding to odd).
u16 bf16_of_exact(double x) {
  float f = (float)x;
  if (x != x || (double)f == x) return bf16_of(f);
  u32 bits = __float_as_uint(f);
  if (fabs((double)f) > fabs(x)) bits--;
  return bf16_of(__uint_as_float(bits | 1));
}

// exact_difference is of numbers whose exponents lie so near that a double holds it.
double exact_difference(double x, double y) {
  double d = x - y, part = d - x, lost = (x - (d - part)) - (y + part);  // Knuth's two-sum
  if (d == d && fabs(d) < HUGE_VAL && lost != 0) emu::fail("sub.rn.bf16x2 of %g and %g: not exact in fp64", x, y);
  return d;
}

}  // namespace ptx

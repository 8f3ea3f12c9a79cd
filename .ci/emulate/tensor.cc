// The tensor core: its dot step tc16 as gemm.Step16 of kernels/cpu states it, for mma.sync and wgmma, and the
// instructions that move matrices between lanes.
#include <math.h>
#include <string.h>

#include "machine.h"

namespace emu {

constexpr int kK = 16;         // products of a step
constexpr int kFraction = 25;  // fractional bits that a term keeps, of the largest exponent of a step
constexpr int kWide = 16;      // accumulators side by side
constexpr int kZero = -1000;   // exponent of zero: below that of any product
constexpr int kMostColumns = 256;

typedef float Floats __attribute__((vector_size(kWide * 4)));
typedef int Ints __attribute__((vector_size(kWide * 4)));
typedef int HalfInts __attribute__((vector_size(kWide * 2)));
typedef double HalfDoubles __attribute__((vector_size(kWide * 4)));
typedef long long HalfLongs __attribute__((vector_size(kWide * 4)));
typedef float HalfFloats __attribute__((vector_size(kWide * 2)));

static inline Ints larger(Ints x, Ints y) { return x > y ? x : y; }

// Factors are kK factors of each of Count sums: as they came, and as significands in [1, 2) with a sign and exponents.
template <int Count>
struct Factors {
  alignas(64) u16 bits[kK][Count];
  alignas(64) float significand[kK][Count];
  alignas(64) int exponent[kK][Count];
  bool plain;  // none is subnormal, infinite or NaN

  // split takes the factors of the first `count` sums apart.
  void split(int count = Count) {
    typedef u16 Shorts __attribute__((vector_size(kWide * 2)));
    Ints odd = {};
    constexpr int kRow = Count < kWide ? kK * Count : Count;  // of what lies in a row
    for (int from = 0; from < kK * Count; from += kRow)
      for (int i = from; i < from + (Count < kWide ? kRow : count); i += kWide) {
        Ints x = __builtin_convertvector(*(const Shorts*)(bits[0] + i), Ints), e = x >> 7 & 0xff,
             zero = (x & 0x7fff) == 0;
        odd |= (e == 0xff) | ((e == 0) & ~zero);
        *(Ints*)(significand[0] + i) = zero ? Ints{} : (x & 0x8000) << 16 | 127 << 23 | (x & 0x7f) << 16;
        *(Ints*)(exponent[0] + i) = zero ? Ints{} + kZero : e - 127;
      }
    plain = true;
    for (int l = 0; l < kWide; l++) plain &= !odd[l];
  }
};

static bool finite(float x) { return (__float_as_uint(x) & 0x7f800000) != 0x7f800000; }
static float widened(u16 x) { return __uint_as_float((u32)x << 16); }

// Split is significand * 2^(exponent-23) with 24 significant bits.
struct Split {
  long long significand;
  int exponent;
};
static Split split(float x) {
  u32 b = __float_as_uint(x);
  long long m = b & 0x7fffff;
  int e = (int)(b >> 23 & 0xff) - 127;
  if (e != -127) {
    m |= 1 << 23;
  } else if (m) {
    int shift = __builtin_clz((u32)m) - 8;
    m <<= shift, e = -126 - shift;
  }
  return {b >> 31 ? -m : m, e};
}

// truncated is sum * 2^exponent, truncated toward zero to fp32; zero is +0.
static float truncated(long long sum, int exponent) {
  u64 magnitude = sum < 0 ? -sum : sum;
  int length = magnitude ? 64 - __builtin_clzll(magnitude) : 0, drop = std::max({length - 24, -149 - exponent, 0});
  magnitude = drop > 63 ? 0 : magnitude >> drop << drop;
  float v = (float)ldexp((double)magnitude, exponent);
  return magnitude == 0 ? 0.f : sum < 0 ? -v : v;
}

// infinite is a step with operands that are not finite: the sum of those, by IEEE rules.
static float infinite(float acc, const float* x, const float* y) {
  float sum = finite(acc) ? 0.f : acc;
  for (int k = 0; k < kK; k++)
    if (!finite(x[k]) || !finite(y[k])) sum += x[k] * y[k];
  return sum == sum ? sum : __uint_as_float(0x7fffffff);
}

// one is a step of one accumulator, whatever its operands.
static float one(float acc, const float* x, const float* y) {
  Split terms[kK + 1] = {split(acc)};
  terms[0].significand <<= 23;
  bool all = finite(acc);
  for (int k = 0; k < kK; k++) {
    Split a = split(x[k]), b = split(y[k]);
    terms[k + 1] = {a.significand * b.significand, a.exponent + b.exponent};
    all = all && finite(x[k]) && finite(y[k]);
  }
  if (!all) return infinite(acc, x, y);
  int top = -10000;
  for (Split t : terms)
    if (t.significand) top = std::max(top, t.exponent);
  long long sum = 0;
  for (Split t : terms) {
    int shift = std::min(top - t.exponent + 46 - kFraction, 63);
    if (t.significand > 0) sum += t.significand >> shift;
    if (t.significand < 0) sum -= -t.significand >> shift;
  }
  return truncated(sum, top - kFraction);
}

// of two; 0 where it would not be normal
static inline Floats power(Ints e) { return (Floats)(larger(e + 127, Ints{}) << 23); }

// scaled is the exact sums x + y, cut to 24 bits, times 2^exponent.
static inline HalfFloats scaled(HalfInts x, HalfInts y, HalfInts exponent) {
  HalfDoubles sum = __builtin_convertvector(x, HalfDoubles) + __builtin_convertvector(y, HalfDoubles);
  sum = (HalfDoubles)((HalfLongs)sum & ~((1ll << 29) - 1));
  return __builtin_convertvector(sum * (HalfDoubles)(__builtin_convertvector(exponent + 1023, HalfLongs) << 52),
                                 HalfFloats);
}

// many is a step of kWide accumulators that share the factors a; odd lanes are those that `one` must compute: with sums
// that may be subnormal, or an accumulator that is subnormal or not finite.
template <int A, int B>
static inline Floats many(Floats acc, const Factors<A>& a, int i, const Factors<B>& b, int j, Ints& odd) {
  Ints bits = (Ints)acc, field = bits >> 23 & 0xff, zero = field == 0;
  Ints own = zero ? Ints{} + kZero : field - 127, top = larger(own, Ints{} - 900);
  odd = (zero & ((bits & 0x7fffff) != 0)) | (field == 255);
#pragma GCC unroll 16
  for (int k = 0; k < kK; k++) top = larger(top, *(const Ints*)&b.exponent[k][j] + a.exponent[k][i]);
  odd |= (top < -101) & (top > -800);
  Ints base = kFraction - top, sums[2] = {};
#pragma GCC unroll 16
  for (int k = 0; k < kK; k++) {
    Floats product = *(const Floats*)&b.significand[k][j] * a.significand[k][i] *
                     power(*(const Ints*)&b.exponent[k][j] + a.exponent[k][i] + base);
    sums[k / 8] += __builtin_convertvector(product, Ints);  // eight fill 30 bits
  }
  Floats significand = zero ? Floats{} : (Floats)((bits & (int)0x807fffff) | 127 << 23);
  Ints last = sums[1] + __builtin_convertvector(significand * power(own + base), Ints), unit = top - kFraction;
  HalfInts x[2], y[2], e[2];
  HalfFloats halves[2];
  memcpy(x, &sums[0], sizeof x), memcpy(y, &last, sizeof y), memcpy(e, &unit, sizeof e);
  for (int h = 0; h < 2; h++) halves[h] = scaled(x[h], y[h], e[h]);
  memcpy(&acc, halves, sizeof acc);
  return acc;
}

// add makes a step of accumulators [rows, columns], `columns` a multiple of kWide.
template <int A, int B>
static void add(float* acc, int rows, int columns, const Factors<A>& a, const Factors<B>& b) {
  bool all = a.plain && b.plain;
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < columns; j += kWide) {
      float* at = acc + i * columns + j;
      Ints odd;
      Floats next = many(*(const Floats*)at, a, i, b, j, odd);
      bool some = !all;
      for (int l = 0; l < kWide; l++) some |= odd[l] != 0;
      for (int l = 0; some && l < kWide; l++) {
        if (all && !odd[l]) continue;
        float x[kK], y[kK];
        for (int k = 0; k < kK; k++) x[k] = widened(a.bits[k][i]), y[k] = widened(b.bits[k][j + l]);
        next[l] = one(at[l], x, y);
      }
      *(Floats*)at = next;
    }
}

// put_registers takes the operand a of a warp, 16 rows of 16 k: lane t has rows t/4 and t/4 + 8, k t%4*2, t%4*2 + 8 and
// the next.
template <int N>
static void put_registers(Factors<N>& f, int lane, const ptx::Values<4>& a) {
  for (int i = 0; i < 8; i++)
    f.bits[lane % 4 * 2 + i / 4 * 8 + i % 2][lane / 4 + i / 2 % 2 * 8] = a.v[i / 2] >> i % 2 * 16;
}

// step is mma.sync: the 16 rows go side by side, and the 8 columns follow each other.
void step(Warp& w) {
  if (w.arrived != ~0u) fail("mma.sync by a part of a warp");
  Factors<16> a;
  Factors<8> b;
  alignas(64) float acc[8][16];
  for (int t = 0; t < kWarp; t++) {
    const ptx::Fragments& own = *(const ptx::Fragments*)w.more[t];
    const float* d = (const float*)w.value[t];
    put_registers(a, t, own.a);
    for (int i = 0; i < 4; i++) b.bits[t % 4 * 2 + i / 2 * 8 + i % 2][t / 4] = own.b.v[i / 2] >> i % 2 * 16;
    for (int i = 0; i < 4; i++) acc[t % 4 * 2 + i % 2][t / 4 + i / 2 * 8] = d[i];
  }
  a.split(), b.split();
  add(acc[0], 8, 16, b, a);
  for (int t = 0; t < kWarp; t++)
    for (int i = 0; i < 4; i++) ((float*)w.value[t])[i] = acc[t % 4 * 2 + i % 2][t / 4 + i / 2 * 8];
}

// Described is an operand of wgmma in shared memory (PTX ISA, "matrix descriptor"): 128-byte swizzled rows, of k where
// the operand lies along k, else of the other dimension.
struct Described {
  const char* shared;
  u32 start, leading, stride;
  bool rows_are_k;

  Described(const Grid& g, u64 d, bool rows_are_k)
      : shared(g.shared),
        start((d & 0x3fff) << 4),
        leading((d >> 16 & 0x3fff) << 4),
        stride((d >> 32 & 0x3fff) << 4),
        rows_are_k(rows_are_k) {
    if (d >> 62 != 1) fail("a descriptor of wgmma that is not 128-byte swizzled");
  }
  // piece is eight elements from (i, k) on, along k or along i.
  const u16* piece(int i, int k) const {
    u32 address = start + (rows_are_k ? i / 64 * leading + k / 8 * stride + k % 8 * 128 + i % 64 * 2
                                      : i / 8 * stride + i % 8 * 128 + k * 2);
    return (const u16*)(shared + (address ^ (address >> 7 & 7) << 4));
  }
  template <int N>
  void load(Factors<N>& f, int first, int count) const {
    if (rows_are_k) {
      for (int k = 0; k < kK; k++)
        for (int i = 0; i < count; i += 8) memcpy(f.bits[k] + i, piece(first + i, k), 16);
      return;
    }
    for (int i = 0; i < count; i++)
      for (int k = 0; k < kK; k += 8) {
        const u16* from = piece(first + i, k);
        for (int e = 0; e < 8; e++) f.bits[k + e][i] = from[e];
      }
  }
};

// Code is an E4M3 number: an integer in units of 2^-9, and the exponent of its first bit.
struct Code {
  int units, exponent;
  bool nan;
  Code() {}
  explicit Code(unsigned char x) : nan((x & 0x7f) == 0x7f) {
    int field = x >> 3 & 15, size = field ? (8 + (x & 7)) << (field - 1) : x & 7;
    units = x & 0x80 ? -size : size, exponent = size ? 31 - __builtin_clz(size) - 9 : kZero;
  }
};

// step_of_codes is a step of E4M3: products are integers in units of 2^-18, and the sum in such of 2^-31, below which
// no term has bits; all bits below the 13th behind the largest exponent's are cut, before the sum and after it.
static float step_of_codes(float acc, const Code* x, const Code* y) {
  constexpr int kCodes = 32, kKept = 13, kUnit = 31;
  int top = acc != 0.f ? ilogbf(acc) : kZero;
  bool nan = acc != acc;
  for (int k = 0; k < kCodes; k++) {
    if (x[k].units && y[k].units) top = std::max(top, x[k].exponent + y[k].exponent);
    nan |= x[k].nan | y[k].nan;
  }
  if (nan) return __uint_as_float(0x7fffffff);
  if (top == kZero) return 0.f;
  int shift = top - kKept + kUnit;
  auto cut = [](long long v, int bits) { return v < 0 ? -(-v >> bits) : v >> bits; };
  long long sum = cut((long long)ldexp((double)acc, kUnit), shift);
  for (int k = 0; k < kCodes; k++) sum += cut(((long long)x[k].units * y[k].units) << (kUnit - 18), shift);
  int length = sum ? 64 - __builtin_clzll(sum < 0 ? -sum : sum) : 0, drop = std::max(length - kKept - 1, 0);
  return (float)ldexp((double)cut(sum, drop), drop + top - kKept);
}

// Sums are a warp's part of the sums of wgmma, 16 rows. Lane t has d[4j + i] of row t/4 + i/2*8, column 8j + t%4*2 +
// i%2.
struct Sums {
  int columns, padded;
  alignas(64) float acc[16 * kMostColumns];

  template <class F>
  void each(const Issued& p, F f) {
    for (int t = 0; t < kWarp; t++)
      for (int j = 0; j < columns / 8; j++)
        for (int i = 0; i < 4; i++)
          f(p.lanes[t].d[4 * j + i], acc[(t / 4 + i / 2 * 8) * padded + 8 * j + t % 4 * 2 + i % 2]);
  }

  // add_codes is add of E4M3 operands, both along k.
  void add_codes(const Warp& w, const ptx::Product& p) {
    static thread_local Code a[16][32], b[kMostColumns][32];
    auto load = [&](const Described& from, int first, int count, Code(*to)[32]) {
      for (int i = 0; i < count; i++)
        for (int k = 0; k < 32; k++) to[i][k] = Code(((const unsigned char*)from.piece(first + i, k / 16 * 8))[k % 16]);
    };
    const Grid& g = *w.lanes->grid;
    load(Described(g, p.from, false), w.lanes->thread.x / kWarp % 4 * 16, 16, a);
    load(Described(g, p.b, false), 0, columns, b);
    for (int i = 0; i < 16; i++)
      for (int j = 0; j < columns; j++) acc[i * padded + j] = step_of_codes(acc[i * padded + j], a[i], b[j]);
  }

  // add continues the chains over the step of one product.
  void add(const Warp& w, const Issued& p) {
    static thread_local Factors<16> a;
    static thread_local Factors<kMostColumns> b;
    const Grid& g = *w.lanes->grid;
    const ptx::Product& first = p.lanes[0];
    for (const ptx::Product& own : p.lanes)
      if (own.columns != first.columns || own.b != first.b || own.from != first.from || own.add != first.add)
        fail("lanes of a warp differ in a wgmma");
    if (first.codes) return add_codes(w, first);
    if (first.registers) {
      for (int t = 0; t < kWarp; t++) put_registers(a, t, p.lanes[t].a);
    } else {
      Described(g, first.from, first.a_rows).load(a, w.lanes->thread.x / kWarp % 4 * 16, 16);
    }
    Described(g, first.b, first.b_rows).load(b, 0, columns);
    for (int k = 0; k < kK; k++) std::fill(b.bits[k] + columns, b.bits[k] + padded, 0);
    a.split(), b.split(padded);
    emu::add(acc, 16, padded, a, b);
  }
};

void multiply(const Warp& w, size_t count) {
  static thread_local Sums sums;
  for (size_t i = 0; i < count;) {
    const Issued& first = w.products[i];
    sums.columns = first.lanes[0].columns, sums.padded = std::max(sums.columns, kWide);
    std::fill(sums.acc, sums.acc + 16 * sums.padded, 0.f);
    if (first.lanes[0].add) sums.each(first, [](float& d, float& sum) { sum = d; });
    do sums.add(w, w.products[i++]);
    while (i < count && w.products[i].lanes[0].d == first.lanes[0].d && w.products[i].lanes[0].add &&
           w.products[i].lanes[0].columns == sums.columns);
    sums.each(first, [](float& d, float& sum) { d = sum; });
  }
}

// load_matrices is ldmatrix.x4: lane 8j + i gives row i of matrix j, lane t gets of each the elements t%4*2 and the
// next of row t/4, or of column t/4.
void load_matrices(Warp& w, bool transposed) {
  if (w.arrived != ~0u) fail("ldmatrix by a part of a warp");
  for (int t = 0; t < kWarp; t++)
    if (w.value[t] % 16) fail("ldmatrix of a row that does not begin at a multiple of 16");
  for (int t = 0; t < kWarp; t++)
    for (int j = 0; j < 4; j++) {
      auto at = [&](int row, int column) -> u32 { return ((const u16*)w.value[8 * j + row])[column]; };
      int i = t / 4, k = t % 4 * 2;
      ((u32*)w.more[t])[j] = transposed ? at(k, i) | at(k + 1, i) << 16 : at(i, k) | at(i, k + 1) << 16;
    }
}

// transpose_matrix is movmatrix of 8 x 8 elements that lie as a matrix of ldmatrix.
void transpose_matrix(Warp& w) {
  if (w.arrived != ~0u) fail("movmatrix by a part of a warp");
  auto at = [&](int row, int column) { return (u32)w.value[row * 4 + column / 2] >> column % 2 * 16 & 0xffff; };
  for (int t = 0; t < kWarp; t++) w.result[t] = at(t % 4 * 2, t / 4) | at(t % 4 * 2 + 1, t / 4) << 16;
}

}  // namespace emu

namespace ptx {

using namespace emu;

void wgmma(const Product& p) {
  Thread* t = self();
  Warp& w = *t->warp;
  u32 number = w.issued[t->lane]++;
  if (number == w.products.size()) w.products.emplace_back();
  w.products[number].lanes[t->lane] = p;
}
void wgmma_commit_group_sync_aligned() { meet(kCommit, ~0u, 0); }
void wgmma_wait_group_sync_aligned(int left) { meet(kAwait, ~0u, left); }

}  // namespace ptx
